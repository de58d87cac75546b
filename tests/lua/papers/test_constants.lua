-- The sources of the constants with which the papers' recipes simulate.
local core = require "moe.core"
local expect = require "expect"
local test = require "test"

local function all()
  local out = {}
  for _, paper in ipairs { "lancet", "lina", "pipemoe", "proprophet" } do
    local w = expect.runs(('C = require("moe").constants "%s"'):format(paper))
    for _, c in ipairs(w.globals.C) do out[#out + 1] = c end
  end
  return out
end

test("every constant of a paper's models, clusters and stacks has a source", function()
  local without = {}
  for _, c in ipairs(all()) do
    if not c.source or c.source == "" then without[#without + 1] = c.file .. ": " .. c.name end
  end
  expect.equal(without, {})
end)

test("what recipes and the engine set stands there as it is listed", function()
  for _, c in ipairs(all()) do
    local file = c.file:find "%." and assert(io.open(core.recipe_dir .. "/../../" .. c.file))
    if file then
      assert(file:read "*a":find(c.value, 1, true), c.file .. ": " .. c.value)
      file:close()
    end
  end
end)

test("an assumed constant may say its source, which results have", function()
  local w = expect.runs [[
local moe = require "moe"
C = moe.cluster.p4de { nodes = 2, nic = { bytes_per_s = moe.assumed { value = 3e9, lo = 2e9,
  hi = 4e9,
  why = "a guess", source = "none: made up" } } }]]
  expect.equal(w.globals.C.assumed["cluster.p4de.nic.bytes_per_s"].source, "none: made up")
  expect.fails('local moe = require "moe"\nmoe.constants "lancett"', 2, "Did you mean 'lancet'?")
end)
