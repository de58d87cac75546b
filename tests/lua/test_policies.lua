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
local m = ]] .. MODEL:format "s {}", 3, "gate: a table is not allowed")
  expect.fails(head .. "local s = moe.system 'x' { g {} }", 4, "give a pass")
end)

test("definitions are checked", function()
  local head = 'local moe = require "moe"\nmoe.policy.'
  expect.fails(head .. 'gate { name = "x", route = function() end }', 2, "scope: is missing")
  expect.fails(head .. 'gate { name = "x", scope = "tokens", route = function() end }', 2,
    "Did you mean 'token'?")
  expect.fails(head .. 'gate { name = "switch", scope = "token", route = function() end }', 2,
    "'switch' is the name of a built-in one")
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
  for _, kind in ipairs { "gate", "pass", "schedule" } do
    expect.fails([[
local moe = require "moe"
return moe.experiment { name = "x", case = function()
  local p = moe.policy.]] .. kind .. [[ {
    name = "mine" }
end }
]], 3, ("moe.policy.%s: stands in a case"):format(kind), "before moe.experiment")
  end
end)
