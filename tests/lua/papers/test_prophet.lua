-- moe.prophet: what is checked, and what the core gets.
local expect = require "expect"
local test = require "test"

local RATES = "input_bytes = 2, expert_bytes = 3, bytes_per_s = 4, inputs_per_s = 5"

local function setup(world, core)
  core.prophet_plan = function(spec)
    world.asked = spec
    return { selected = {}, time_s = 1 }
  end
end

local function asked(fields)
  return expect.runs(expect.HEAD .. ("R = moe.prophet.plan { %s, %s }"):format(RATES, fields), nil,
    nil, setup).asked
end

local function fails(fields, ...)
  return expect.fails(expect.HEAD .. ("moe.prophet.plan { %s, %s }"):format(RATES, fields), 2, ...)
end

test("a plan is asked for with the paper's one rate, blocking copies and n chosen", function()
  local spec = asked "routed = { { 1, 2 }, { 3, 4 } }"
  expect.equal({ spec.alpha, spec.equation, spec.fnec_s, spec.bnec_s }, { 1, 6, 0, 0 })
  expect.equal(spec.n == nil and spec.copy_bytes_per_s == nil, true)
  expect.equal(spec.routed, { { 1, 2 }, { 3, 4 } })
  expect.equal(asked("routed = { { 1, 2 } }, n = 1").n, 1)
end)

test("fields of a plan that cannot be are refused", function()
  fails("routed = { { 1, 2 }, { 3, 4, 5 } }", "routed[2]: has 3 numbers, but routed[1] has 2")
  fails("routed = { {}, {} }", "moe.prophet.plan.routed[1]: the list is empty")
  fails("routed = { { 1.5 } }", "moe.prophet.plan.routed[1][1]: 1.5 is not allowed")
  fails("routed = { 1, 2 }", "moe.prophet.plan.routed[1]: 1 is not allowed; give a list")
  fails("routed = { { 1, 2 } }, n = 2", "give an integer from 0 to 1, or 'auto'")
  fails("routed = { { 1, 2 } }, n = 0.5", "moe.prophet.plan.n: 0.5 is not allowed")
  fails("routed = { { 1, 2 } }, equation = 1", "give 6 or 8")
  fails("routed = { { 1, 2 } }, alpa = 1", "Did you mean 'alpha'?")
end)
