-- `moebench list`, `moebench doc` and the type stubs.
local expect = require "expect"
local world = require "world"
local test = require "test"

local function say(mode, argument)
  local w = world.run("", {}, "run")
  w.said = {}
  local core = package.loaded["moe.core"]
  local out = {}
  core.say = function(text) out[#out + 1] = text end
  core.recipe = nil
  local ok, err = pcall(w.moe._main, mode, argument)
  return table.concat(out, "\n"), not ok and err or nil
end

local function list(kind) return say("list", kind) end
local function doc(topic) return say("doc", topic) end

test("every kind is listed, alone or with the others", function()
  local all = list(nil)
  for _, kind in ipairs { "claims", "clusters", "executors", "gates", "metrics", "models", "ops",
    "passes", "placements", "stacks", "systems", "workloads" } do
    local one = list(kind)
    assert(#one > 0 and all:find(one, 1, true), kind)
  end
  assert(list("passes"):find "capacity_pipeline +cuts .+ { degree = 2 }", list("passes"))
  assert(list("metrics"):find("iteration_ms +time of a step"), list("metrics"))
  assert(list("clusters"):find("p4de +AWS p4de.24xlarge"), list("clusters"))
end)

test("the topic of a built-in cluster has its numbers, with sources", function()
  for name in list("clusters"):gmatch "\n  (%S+)" do
    local text = doc("cluster." .. name)
    assert(name == "custom" or text:find "memory_bytes" and text:find "nic" and not
      text:find "no source", text)
  end
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

test("a field that many topics have alike is documented once, with their names", function()
  local text = doc "routing"
  local _, count = text:gsub("in place of the gate;", "")
  expect.equal(count, 1)
  assert(text:find("'routing' of model.decoder, .*model.gpt2_moe, .*model.mixtral_8x7b"), text)
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
  for _, part in ipairs { "---@meta",
    "---@field layers integer|moe.Assumed number of blocks (1 to 10000)",
    '---@field scope "token"|"batch"', "---@field degree? number number of parts; 1 leaves ",
    "---@field link? moe.Link", "---@field gemm_efficiency? number|moe.Assumed",
    "---@field systems moe.System[]",
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

test("every field and method is documented on at most 100 columns, and in the stubs", function()
  local stubs, overview = list "stubs", doc(nil)
  local classes, core, print_doc = {}, require "moe.core", require("moe.doc").doc
  for class, body in stubs:gmatch "%-%-%-@class ([%w_.]+)([^\n]*.-)\n\n" do
    classes[class] = classes[class] or body
  end
  for _, t in ipairs(require("moe.topics").all()) do
    local text
    core.say = function(said) text = said end
    print_doc(t.name)
    assert(text:find(t.doc:match "^%S+", 1, true), t.name)
    assert(t.name:match "^pass%." or ("\n" .. overview):find("\n  " .. t.name, 1, true), t.name)
    for line in text:gmatch "[^\n]+" do assert(#line <= 100, line) end
    for _, m in ipairs(t.members) do
      local plain = m.name:match "^[%w_]+$"
      local shown = m.method and t.as .. ":" .. m.name or "\n  " .. m.name
      assert(not plain or text:find(shown, 1, true), t.name .. "." .. m.name)
      assert(not plain or classes[t.class]:find("\n---@field " .. m.name, 1, true),
        t.class .. " " .. m.name)
    end
  end
end)

test("a topic is asked for by its name, its last part and what examples call it", function()
  for asked, part in pairs { ["model.gpt2_moe"] = "integer, 1 to 10000", model = "(default 50257)",
    p = "p:shadow(expert: integer, device: integer)", plan = "plan:order(lane: string,",
    zipf = "workload.zipf", ctx = "ctx (moe.PlacementContext)", lancet = "system.lancet\n",
    results = "iteration_ms            number, ms", gate = "gate.switch",
    recompute = "moe.pass.recompute { fields }: moe.Pass", patience = "'patience' of search\n",
    ["policy.gate"] = "see also: gate_context, scores", ["moe.Op"] = "op (moe.Op)" } do
    assert(doc(asked):find(part, 1, true), asked .. ": " .. doc(asked))
  end
  expect.equal(select(2, doc "polcy.gate").message,
    "doc: unknown topic 'polcy.gate'. Did you mean 'policy.gate'?; `moebench doc` lists them")
end)

test("what is not documented is refused with its name", function()
  local schema = require "moe.base.schema"
  local function message(f) return select(2, pcall(f)) end
  local lamp = schema.methods("lamp", "lamp", "a light", { { "glow", "()", "gives light" } })
  expect.equal(message(function() function lamp:shine() end end),
    "the method lamp:shine has no doc")
  expect.equal(message(schema.check_methods),
    "the method lamp:glow is documented but not defined")
  table.remove(schema.types)
  expect.equal(message(function()
    schema.record("lamp", "lamp", "a light", { { "glow", "()" } })
  end), "the member 'glow' of the type lamp has no type or no doc")
  expect.equal(message(function()
    schema.functions("moe", "name", { glow = { print, "()", "nil" } })
  end), "moe.glow: give the function, what it takes, what it gives and a doc")
  expect.equal(message(function()
    require("moe.topics").members_of({ watts = { type = "number" } }, "lamp")
  end), "the field 'watts' of lamp has no doc")
end)
