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

local function placed(fields)
  return expect.runs(expect.HEAD .. ("R = moe.prophet.place { %s }"):format(fields), nil, nil,
    function(world, core)
      core.prophet_place = function(spec)
        world.asked = spec
        return { holders = { { 1, 2 }, { 2 } } }
      end
    end)
end

test("the core gets the plan of a method in Lua, and all slots for a layout", function()
  local world = placed
    "policy = 'moonep', routed = { { 6, 2 }, { 2, 0 } }, residents = 1, shadows = 1"
  expect.equal(world.asked.placed, { moves = false,
    holders = { { { device = 1, tokens = 5 }, { device = 2, tokens = 3 } },
      { { device = 2, tokens = 2 } } } })
  expect.equal({ world.globals.R.replicas, world.globals.R.bound }, { 1, 5 })
  for _, policy in ipairs { "laer", "eplb" } do
    local spec = placed(("policy = '%s', routed = { { 6, 2 }, { 2, 0 } }, shadows = 1"):format(
      policy)).asked
    expect.equal({ spec.residents, spec.shadows }, { 2, 0 })
  end
  expect.equal(placed("policy = 'swap', routed = { { 6, 2 }, { 2, 0 } }").asked.shadows, 2)
end)

test("options and rates of a placement that cannot be are refused", function()
  local function refused(fields, ...)
    expect.fails(expect.HEAD .. ("moe.prophet.place { routed = { { 1, 2 } }, %s }"):format(
      fields), 2, ...)
  end
  refused("policy = 'llep', options = { facto = 1 }", "Did you mean 'factor'?")
  refused("policy = 'llep', options = { factor = 0 }", "moe.prophet.place.options.factor: 0")
  refused("policy = 'echo', input_bytes = 1", "bytes_per_s: is missing, although")
  expect.fails(expect.HEAD .. [[moe.prophet.place { policy = "laer", residents = 1,
    routed = { { 1 }, { 1 } } }]], 2, "moe.prophet.place.residents: 1 is not allowed")
end)

test("the optimum of a layer is found, or refused if too much would be tried", function()
  local world = placed "policy = 'echo', routed = { { 1 } }"
  expect.equal(world.asked.policy, "echo")
  world = expect.runs(expect.HEAD .. [[R = moe.prophet.optimum { shadows = 1,
    routed = { { 9, 0, 0 }, { 0, 2, 0 }, { 0, 1, 0 } } }]])
  expect.equal(world.globals.R, 4)
  expect.fails(expect.HEAD .. [[local routed = {}
    for e = 1, 16 do routed[e] = { 1, 1, 1, 1 } end
    moe.prophet.optimum { routed = routed, shadows = 3 }]], 4, "cases would be tried")
end)
