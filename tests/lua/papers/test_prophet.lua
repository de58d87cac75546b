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

-- Figure 6 of the paper in numbers: 5, 2 and 2 inputs.
local ENGINE = [[
local moe = require "moe"
local G = { { 3, 2, 0 }, { 0, 1, 1 }, { 0, 0, 2 } }
local function with(t, more)
  for k, v in pairs { routed = G, input_bytes = 10, expert_bytes = 3, bytes_per_s = 20,
    inputs_per_s = 4 } do t[k] = v end
  for k, v in pairs(more or {}) do t[k] = v end
  return t
end
local function plan(more) return moe.prophet.plan(with({ alpha = 0.5 }, more)) end
local function place(policy, more) return moe.prophet.place(with({ policy = policy }, more)) end
local function same(a, b)
  assert(#a == #b)
  for i = 1, #b do assert(a[i] == b[i], table.concat(a, " ")) end
end
local function near(a, b) assert(math.abs(a - b) <= 1e-12 * b, a .. " " .. b) end
]]

test("a recipe plans figure 6: who is copied where, and what it takes by the model", function()
  expect.plans(ENGINE .. [[
local p = plan { n = 1 }
assert(#p.selected == 2)
assert(p.selected[1].expert == 1 and p.selected[2].expert == 2)
same(p.selected[1].devices, { 2 })
same(p.selected[2].devices, { 3 })
same(p.computed, { 3, 3, 3 })
same(p.received, { 0, 0, 0 })
same(p.computed_without, { 5, 2, 2 })
same(p.received_without, { 2, 1, 0 })
near(p.time_without_s, 4 * 2 * 10 / 20 + 3 * 5 / 4)
near(p.time_s, 3 * 3 / 4 + 2 * 2 * 2 * 3 / (3 * 20))
near(p.balance_without, math.sqrt(2))
assert(p.balance == 0 and p.rb == math.huge)
near(plan { n = 1, copy_bytes_per_s = 40 }.time_s, 3 * 3 / 4 + 2 * 2 * 2 * 3 / (3 * 40))
near(plan { n = 1, equation = 8 }.time_s, 3 * 3 / 4)
assert(plan { n = 1, expert_bytes = 3e6, equation = 8, fnec_s = 1e6, bnec_s = 1e6 }.time_s < 3)
assert(#plan { max_selected = 1 }.selected <= 1)
]])
end)

test("devices may have several experts, and a plan that gains nothing is empty", function()
  expect.plans(ENGINE .. [[
local p = plan { routed = { { 0, 9 }, { 0, 1 }, { 0, 0 }, { 0, 0 } }, expert_bytes = 0 }
assert(#p.selected == 1 and p.selected[1].expert == 1)
same(p.selected[1].devices, { 2 })
p = plan { expert_bytes = 1e9 }
assert(#p.selected == 0 and p.time_s == p.time_without_s and p.rb == 1)
p = plan { routed = { { 7 } } }
assert(#p.selected == 0 and p.computed[1] == 7)
]])
end)

test("any policy is asked on the same counts, and prophet's is what plan says", function()
  expect.plans(ENGINE .. [[
local planned, placed = plan(), place("prophet", { options = { alpha = 0.5, hidden = 0 } })
near(placed.time_s, planned.time_s)
near(placed.time_without_s, planned.time_without_s)
same(placed.computed, planned.computed)
same(placed.holders[1], { 1, 2 })
same(placed.holders[2], { 2, 3 })
same(placed.holders[3], { 3 })
local top = place("top_k", { options = { k = 1 } })
same(top.holders[1], { 1, 2, 3 })
same(top.computed, { 3, 4, 2 })
near(top.time_s, 4 * 1 * 10 / 20 + 3 * 4 / 4 + 2 * 3 * 3 / (3 * 20))
assert(top.move_s == 0)
local even = place("eplb", { residents = 2, state_bytes = 6 })
assert(even.balance < even.balance_without and #even.holders[1] > 1)
assert(even.move_s >= (3 + 6) / 20 and even.break_even_steps > 0)
assert(place("fixed").rb == 1 and place("fixed").break_even_steps == 0)
]])
  for _, row in ipairs {
    { "place 'prophe'", "recipe.lua:", "unknown placement policy 'prophe'",
      "Did you mean 'prophet'?" },
    { "place('top_k', { options = { k = 1, n = 2 } })", "unknown option of top_k 'n', have: k" },
    { "place('top_k', { options = { k = 0 } })", "top_k.k = 0 is not allowed; give a whole" },
    { "place('top_k', { shadows = 0 })", "top_k: placement.shadows = 0" },
    { "place('top_k', { options = { k = '2' } })",
      "moe.prophet.place.options.k: '2' is not allowed; give a number" },
    { "plan {\nrouted = {\n{ 1, 0 / 0 } } }", "recipe.lua:18: moe.prophet.plan.routed[1][2]: ",
      "is not allowed; give an integer" },
    { "plan { routed = {} }", "moe.prophet.plan.routed: the list is empty" },
    { "plan { n = 'all' }", "n: 'all' is not allowed" },
    { "plan { bytes_per_s = 0 }", "moe.prophet.plan.bytes_per_s: 0" },
    { "plan { alpha = -1 }", "moe.prophet.plan.alpha: -1" },
    { "moe.prophet.plan { routed = G }", ": is missing" },
  } do
    expect.plans(ENGINE .. row[1], unpack(row, 2))
  end
end)
