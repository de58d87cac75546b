-- Policies written in Lua.
local expect = require "expect"
local world = require "world"
local test = require "test"

local GATE = [[
local g = moe.policy.gate { name = "mine", scope = "token", k = 2, route = function() end,
  params = { slack = 1, on = true } }
]]

local MODEL = "moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16, vocab = 256,"
  .. " batch = 2, experts = 4, gate = %s }"

test("a gate policy reaches the core with its options, and gives the model its k", function()
  local w = expect.runs('local moe = require "moe"\n' .. GATE .. "moe.train { model = "
    .. MODEL:format("g { slack = 3 }") .. " }")
  local gate = w.plans[1].gate
  expect.equal(gate.name, "mine")
  expect.equal(gate.options, { slack = 3, on = true })
  expect.equal(gate.weight, "prob")
  expect.equal(type(gate.route), "function")
  expect.equal(w.plans[1].model.gate, "mine")
  expect.equal(w.plans[1].model.k, 2)
end)

test("options of a policy have the types of their defaults, and no others are there", function()
  local head = 'local moe = require "moe"\n' .. GATE
  expect.fails(head .. "g { slak = 1 }", 4, "mine: unknown key 'slak'", "Did you mean 'slack'?")
  expect.fails(head .. "g { slack = 'x' }", 4, "mine.slack: 'x' is not allowed; give a number")
  expect.fails(head .. "g 'x'", 4, "mine: 'x' is not allowed; give a table")
  expect.fails('local moe = require "moe"\nmoe.policy.pass { name = "p", at = "step", params = {\n'
    .. "f = function() end }, apply = function() end }", 3, "params.f")
end)

test("a gate is not its constructor, and a schedule is not a gate", function()
  local head = 'local moe = require "moe"\n' .. GATE
  expect.fails(head .. "local m = " .. MODEL:format "g", 4, "call the gate's constructor")
  expect.fails('local moe = require "moe"\n' .. [[
local s = moe.policy.schedule { name = "s", apply = function() end }
local m = ]] .. MODEL:format "s {}", 3, "gate: a moe.pass object is not allowed")
  expect.fails(head .. "local s = moe.system 'x' { g {} }", 4, "give a pass")
end)

test("definitions are checked", function()
  local head = 'local moe = require "moe"\nmoe.policy.'
  expect.fails(head .. 'gate { name = "x", route = function() end }', 2, "scope: is missing")
  expect.fails(head .. 'gate { name = "x", scope = "tokens", route = function() end }', 2,
    "Did you mean 'token'?")
  expect.fails(head .. 'gate { name = "switch", scope = "token", route = function() end }', 2,
    "'switch' is the name of a built-in gate")
  expect.fails(head .. 'pass { name = "serial", at = "step", apply = function() end }', 2,
    "built-in")
  expect.fails(head .. 'schedule { name = "x" }', 2, "apply: is missing")
  expect.fails(head .. 'scheduler { name = "x" }', 2, "unknown kind of policy 'scheduler'")
  expect.fails('local moe = require "moe"\n' .. GATE .. GATE, 4, "'mine' is defined twice")
end)

test("passes and schedules reach the core as stages in the order of the system", function()
  local w = expect.runs(expect.HEAD .. [[
local a = moe.policy.pass { name = "a", at = "forward", apply = function() end }
local b = moe.policy.schedule { name = "b", params = { n = 1 }, apply = function() end }
moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "x" { moe.pass.irregular_a2a {}, a {}, b { n = 2 } } }
]])
  local stages = w.plans[1].system.stages
  local said = {}
  for i, s in ipairs(stages) do said[i] = ("%s %s %s"):format(s.name, s.kind, type(s.apply)) end
  expect.equal(said, { "irregular_a2a forward nil", "a forward function", "b schedule function" })
  expect.equal(stages[3].options, { n = 2 })
end)

test("a rank's state stops before anything runs and knows the policies by name", function()
  local w = world.run('local moe = require "moe"\n' .. GATE .. "moe.train { model = "
    .. MODEL:format("g {}") .. " }", {}, "policies")
  expect.equal(w.error.kind, "stop")
  expect.equal(#w.plans, 0)
  expect.equal(w.moe._policy("gate", "mine").scope, "token")
  expect.equal(w.moe._policy("gate", "other"), nil)
end)

test("a policy in a case, which ranks do not make, is refused at its line", function()
  for _, kind in ipairs { "gate", "pass", "placement", "schedule" } do
    expect.fails([[
local moe = require "moe"
return moe.experiment { name = "x", case = function()
  local p = moe.policy.]] .. kind .. [[ {
    name = "mine" }
end }
]], 3, ("moe.policy.%s: the policy is defined inside the function `case`"):format(kind),
    "before moe.experiment")
  end
end)

local PLACEMENT = [[
local p = moe.policy.placement { name = "mine", every = 4, shadows = 2, params = { n = 1 },
  place = function() end }
]]

test("a placement reaches the core as a stage, with what an instance changed", function()
  local w = expect.runs(expect.HEAD .. PLACEMENT .. [[
moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "x" { p { n = 3, shadows = 1 }, moe.pass.serial {} } }
]])
  local stage = w.plans[1].system.stages[1]
  expect.equal(stage.kind, "placement")
  expect.equal(stage.options,
    { n = 3, every = 4, shadows = 1, extra_residents = 0, expected_copies = 1, static_rows = 0,
      plan_us = 0 })
  expect.equal(stage.placement, { at = "step", moves = true, weighted = false, library = false })
  expect.equal(w.plans[1].simulate, { steps = 8 })
end)

test("a placement of the same step moves no experts unless it says so, which is refused", function()
  local w = expect.runs(expect.HEAD .. [[
local p = moe.policy.placement { name = "mine", at = "layer", place = function() end }
moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 }, system = moe.system "x" { p {} } }
]])
  expect.equal(w.plans[1].system.stages[1].placement.moves, false)
  expect.fails(expect.HEAD .. [[
local p = moe.policy.placement { name = "mine", at = "layer",
  moves = true, place = function() end }
]], 3, "moves: experts move with their state only between steps")
end)

test("a placement's definition and options are checked", function()
  local head = 'local moe = require "moe"\nmoe.policy.placement { name = "x", place = print, '
  expect.fails(head .. "every = 0 }", 2, "every: 0 is not allowed; give")
  expect.fails(head .. "every = 1.5 }", 2, "every: 1.5 is not allowed")
  expect.fails(head .. "evry = 2 }", 2, "unknown key 'evry'", "Did you mean 'every'?")
  expect.fails(head .. "at = 'steps' }", 2, "Did you mean 'step'?")
  expect.fails(head .. "params = { shadows = 2 } }", 2,
    "params.shadows: every placement has an option of this name")
  expect.fails('local moe = require "moe"\nmoe.policy.placement { name = "x" }', 2,
    "place: is missing")
  expect.fails('local moe = require "moe"\nmoe.policy.placement { name = "prophet", '
    .. "place = print }", 2, "'prophet' is the name of a built-in pass")
  local used = 'local moe = require "moe"\n' .. PLACEMENT
  expect.fails(used .. "p { shadow = 1 }", 4, "unknown key 'shadow'", "Did you mean 'shadows'?")
  expect.fails(used .. "p { every = 0 }", 4, "mine.every: 0 is not allowed")
end)

test("systems of a case are simulated for as many steps, more than one where experts are placed",
  function()
    local function steps(systems, entry)
      local w = expect.runs(expect.HEAD .. PLACEMENT .. ([[
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { %s }, run = { %s } }]]):format(systems, entry or '"simulate"'))
      local out = {}
      for i, spec in ipairs(w.plans) do out[i] = spec.simulate and spec.simulate.steps or 0 end
      return out
    end
    local placed = 'moe.system "raf" {}, moe.system "x" { p {} }'
    expect.equal(steps 'moe.system "raf" {}', { 0 })
    expect.equal(steps(placed), { 8, 8 })
    expect.equal(steps(placed, '{ "simulate", steps = 3 }'), { 3, 3 })
    expect.fails(expect.HEAD .. "local e = moe.experiment { name = 'x', model = m, systems = {},\n"
      .. "run = { { 'simulate', stps = 3 } } }", 3, "Did you mean 'steps'?")
  end)

test("a policy that fails in the middle of a run fails it; the steps before stand in the results",
  function()
    for _, kind in ipairs { "run", "user" } do
      local function stops(made)
        made.stop_reason = "placement 'mine', rank 0, step 2, layer 1: oh no"
        made.wrong_input = kind == "user"
      end
      local w = world.run(expect.HEAD .. PLACEMENT .. [[
return moe.experiment { name = "x", model = m, systems = { moe.system "x" { p {} } },
  run = { { "cpu", ranks = 2, steps = 3 } } }]], {}, "run", stops)
      expect.equal(w.error.kind, kind)
      assert(w.message:find("oh no", 1, true), w.message)
      expect.equal(#w.results.runs[1].losses, 3)
      assert(w.results.runs[1].stop_reason:find("oh no", 1, true))
      w = world.run(expect.HEAD .. PLACEMENT
        .. 'moe.train { model = m, ranks = 2, system = moe.system "x" { p {} } }', {}, "run", stops)
      expect.equal(w.error.kind, kind)
      expect.equal(#w.error.result.losses, 1)
      expect.equal(w.message:match "^recipe%.lua:%d+: " ~= nil, kind == "user")
    end
  end)
