-- `moebench list` and the type stubs.
local expect = require "expect"
local world = require "world"
local test = require "test"

local function list(kind)
  local w = world.run("", {}, "run")
  w.said = {}
  local core = package.loaded["moe.core"]
  local out = {}
  core.say = function(text) out[#out + 1] = text end
  core.recipe = nil
  local ok, err = pcall(w.moe._main, "list", kind)
  return table.concat(out, "\n"), not ok and err or nil
end

test("every kind is listed, alone or with the others", function()
  local all = list(nil)
  for _, kind in ipairs { "claims", "clusters", "executors", "gates", "metrics", "models", "ops",
    "passes", "placements", "systems", "workloads" } do
    local one = list(kind)
    assert(#one > 0 and all:find(one, 1, true), kind)
  end
  assert(list("passes"):find "capacity_pipeline +cuts .+ { degree = 2 }", list("passes"))
  assert(list("metrics"):find("iteration_ms +time of a step"), list("metrics"))
  assert(list("clusters"):find("p4de +AWS p4de.24xlarge"), list("clusters"))
end)

test("a known system says which passes it is made of, with their options", function()
  local all = list "systems"
  for _, part in ipairs { "lancet_dw            lancet without its pipelines\n",
    "  = irregular_a2a, used_rows, fallback of partition { max_parts = 8, 4, 2 }, dw_schedule\n",
    "  = best of capacity_pipeline { degree = 1, 2, 4, 8 }", "  = no pass\n",
    "  = priority, chunked, micro_ops, packing\n" } do
    assert(all:find(part, 1, true), part .. all)
  end
end)

test("an unknown kind is named with the nearest one, without a place", function()
  local _, err = list "gatez"
  expect.equal(err.message, "list: unknown kind 'gatez'. Did you mean 'gates'?")
end)

test("the stubs are Lua, and know every field that is checked", function()
  local text = list "stubs"
  local chunk = assert(loadstring(text, "stubs"))
  local stub = chunk()
  for _, name in ipairs { "experiment", "train", "plan", "system", "best", "run", "results",
    "claim", "assumed" } do
    expect.equal(type(stub[name]), "function", name)
  end
  expect.equal(type(stub.pass.capacity_pipeline), "function")
  for _, part in ipairs { "---@meta", "---@field layers integer|moe.Assumed blocks (1 to 10000)",
    '---@field scope "token"|"batch"', "---@field degree? number parts; 1 leaves ",
    "---@field link? moe.Link", "---@field gemm_efficiency? number|moe.Assumed",
    "---@field systems (moe.System)[]",
    "---@field bytes_per_s number achieved bytes per second" } do
    assert(text:find(part, 1, true), part)
  end
end)

test("every class that a stub names is defined", function()
  local text, defined = list "stubs", {}
  for name in text:gmatch("%-%-%-@class ([%w_.]+)") do defined[name] = true end
  for line in text:gmatch("%-%-%-@[fpr][^\n]*") do
    for name in line:gmatch("moe%.[%w_.]+") do
      -- Words of the documentation may name functions of the library.
      if not name:match("^moe%.%l") or name:match("^moe%.p[ao][ls]%l+%.") then
        assert(defined[name:gsub("%.$", "")], name .. " in " .. line)
      end
    end
  end
end)
