-- moe.workload, moe.loads and a model's routing: what is checked, and what the core gets.
local expect = require "expect"
local test = require "test"
local world = require "world"

local function zipf(fields)
  return expect.HEAD .. "L = moe.workload 'zipf' { " .. fields .. " }\n"
end

test("a workload is asked for with its defaults; its seed is --seed where none is given", function()
  local asked = expect.runs(zipf "s = 2, seed = 7").workload
  expect.equal(asked, { name = "zipf", seed = 7,
    options = { s = 2, max_over_mean = 0, drift = 0, memory = 50, top1 = 0, top2 = 0, rise = 0 } })
  expect.equal(expect.runs(zipf "").workload.seed, 1)
  local w = expect.runs(zipf "", {}, nil, function(_, core) core.args.seed = 5 end)
  expect.equal(w.workload.seed, 5)
  expect.runs(expect.HEAD .. "moe.workload 'balanced' ()")
end)

test("unknown workloads and options are named, and values out of range", function()
  expect.fails(expect.HEAD .. "moe.workload 'zpif' {}", 2,
    "moe.workload: unknown workload 'zpif'. Did you mean 'zipf'?")
  expect.fails(zipf "sigma = 1", 2,
    "moe.workload.zipf: unknown key 'sigma', have: drift, max_over_mean")
  expect.fails(zipf "s = -1", 2, "moe.workload.zipf.s: -1 is not allowed; give a number from 0")
  expect.fails(expect.HEAD .. "moe.workload 'rotating_hotspot' { period = 1.5 }", 2,
    "period: 1.5 is not allowed; give an integer from 1")
  expect.fails(zipf "seed = -1", 2, "seed: -1 is not allowed; give an integer from 0")
end)

test("loads are asked of a routing model, ids from 1", function()
  local w = expect.runs(zipf "" .. [[
R = moe.loads { routing = L, ranks = 2, tokens = 8, experts = 4, layer = 3 }]])
  expect.equal(w.loads, { handle = "handle", query = { ranks = 2, tokens = 8, experts = 4, k = 1,
    step = 1, layer = 3 } })
  expect.equal(w.globals.R, { { 1, 2 } })
  expect.fails(zipf "" .. "moe.loads { routing = L, ranks = 2, tokens = 8, experts = 4, k = 5 }", 3,
    "k is too large")
  expect.fails(zipf "" .. "moe.loads { routing = 'zipf', ranks = 2, tokens = 8, experts = 4 }", 3,
    "moe.loads.routing: 'zipf' is not allowed; give a workload or a trace")
end)

local function model(fields)
  return [[
local moe = require "moe" local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32,
  heads = 4, seq = 16, batch_per_device = 2, experts_per_device = 2, ]] .. fields .. " }\n"
end

test("a model's routing reaches the core in place of its gate, on ranks and on a cluster",
  function()
    local routing = "routing = moe.workload 'zipf' { seed = 3 }"
    local w = expect.runs(model(routing) .. "moe.train { model = m, ranks = 2 }")
    expect.equal(w.plans[1].routing, { handle = "handle", name = "zipf(seed=3)" })
    expect.equal({ w.plans[1].model.gate, w.plans[1].model.k }, { "top_k", 1 })
    for _, two in ipairs { ", k = 2", ", gate = 'top2'" } do
      local plans = expect.runs(model(routing .. two) .. "moe.train { model = m }").plans
      expect.equal(plans[1].model.k, 2)
    end
    w = expect.runs(model(routing) .. [[
return moe.experiment { name = "x", model = m, systems = { moe.system "raf" {} },
  cluster = moe.cluster.p4de { nodes = 1 }, run = { "simulate", { "cpu", ranks = 2 } } }]])
    expect.equal(#w.plans, 2)
    for i, run in ipairs(w.results.runs) do
      expect.equal(w.plans[i].routing.name, "zipf(seed=3)")
      expect.equal(run.routing, "zipf(seed=3)")
    end
  end)

test("a routing model may come with a target's model", function()
  local w = expect.runs(model "gate = 'top2'" .. [[
return moe.experiment { name = "x", model = m, systems = { moe.system "raf" {} },
  run = { { "cpu", ranks = 2, model = { routing = moe.workload "balanced" {} } } } }]])
  expect.equal(w.plans[1].routing.name, "balanced(seed=1)")
  expect.equal(w.plans[1].model.k, 2)
  expect.fails(model "routing = 'zipf'", 2, "model.gpt2_moe.routing: 'zipf' is not allowed")
end)

test("a gate that does not just take the best experts chooses by a workload's scores", function()
  local plan = [[
moe.plan { model = m, system = moe.system "raf" {}, cluster = moe.cluster.p4de { nodes = 1 } }]]
  local function made(fields)
    local w = expect.runs((([[
local moe = require "moe"
local g = moe.policy.gate { name = "g", scope = "token", k = 2, route = function() end }
local m = moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2,
  experts_per_device = 2, FIELDS }
]]):gsub("FIELDS", fields)) .. plan)
    return w.plans[1].model.gate, w.plans[1].routing.scores, w.plans[1].gate ~= nil
  end
  local function expect_gate(fields, name, scores, policy)
    local gate, by_scores, has_policy = made(fields)
    expect.equal({ gate, by_scores or false, has_policy }, { name, scores, policy })
  end
  expect_gate("gate = g {}, routing = moe.workload 'zipf' {}", "g", true, true)
  expect_gate("gate = 'expert_choice', routing = moe.workload 'zipf' {}", "expert_choice", true,
    false)
  expect_gate("gate = 'top2', routing = moe.workload 'zipf' {}", "top_k", false, false)
  expect_gate("gate = 'expert_choice', routing = moe.workload 'balanced' {}", "top_k", false, false)
  for _, choices in ipairs { "moe.workload 'balanced' {}", "moe.trace 'a.trace' {}" } do
    expect.fails([[
local moe = require "moe"
local g = moe.policy.gate { name = "g", scope = "token", route = function() end }
local m = moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2,
  experts_per_device = 2, gate = g {}, routing = ]] .. choices .. " }", 4,
      "has choices but no scores by which the gate 'g' could choose")
  end
end)

test("choices fewer than the model's k are said", function()
  world.run ""
  local assumed_routing = require "moe.results.assumed_routing"
  local function fewer(choices, k, of)
    local run = { parameters = { k = k }, assumed_routing = { gate = "mine", choices_of = of,
      scores = "even", choices = choices, dropped = 0 } }
    local lines = assumed_routing.lines { run, run }
    return table.concat(lines, "\n"):match "Fewer.*"
  end
  expect.equal(fewer(1.01, 2), "Fewer choices than k = 2: under gate mine a token gets 1.01 on "
    .. "average, and compute and traffic are of these")
  assert(fewer(0, 1, "trace x"):find("k = 1: under trace x a token gets 0.00", 1, true))
  expect.equal({ fewer(2, 2) or false, fewer(2.5, 2) or false }, { false, false })
end)

test("of a gate that reads no scores it is said that a workload has no effect", function()
  world.run ""
  local assumed_routing = require "moe.results.assumed_routing"
  local function said(gate)
    local run = { routing = "zipf(s=1)", parameters = { gate = gate },
      assumed_routing = { gate = gate, scores = "zipf(s=1)", choices = 1, dropped = 0 } }
    return assumed_routing.lines({ run }, "Predicted")[1], assumed_routing.chooser(run)
  end
  for _, gate in ipairs { "hash", "random" } do
    local line, chooser = said(gate)
    expect.equal(line, ("Predicted: gate %s, which reads no scores; those of zipf(s=1) have "
      .. "no effect, 1.00 choices per token, 0.0%% of them dropped"):format(gate))
    expect.equal(chooser, gate .. " gate, which reads no scores; those of zipf(s=1) have no effect")
  end
  local line, chooser = said "expert_choice"
  assert(line:find("gate expert_choice on scores of zipf(s=1), 1.00", 1, true), line)
  expect.equal(chooser, "expert_choice gate on scores of zipf(s=1)")
end)

test("a trace is a model's routing, too", function()
  local w = expect.runs(model "routing = moe.trace 'a.trace' { cycle = true }"
    .. "moe.train { model = m, record = 'b.trace' }")
  expect.equal(w.plans[1].routing, { handle = "replay", name = "a.trace, cycle" })
  expect.equal(w.executed[1].options.record, "b.trace")
  expect.fails(expect.HEAD .. "moe.trace 'a' { cycles = true }", 2,
    "moe.trace: unknown key 'cycles'. Did you mean 'cycle'?")
  expect.fails(expect.HEAD .. "moe.trace {}", 2, "moe.trace: a table is not allowed")
  expect.fails(model "" .. "moe.train { model = m, record = '../b.trace' }", 3,
    "moe.train.record: '../b.trace' is outside the output folder")
end)

test("other tools' traces are imported and exported with checked fields", function()
  local w = expect.runs(expect.HEAD
    .. "moe.trace.import { format = 'csv', files = { 'a.csv' }, to = 'a.trace' }\n"
    .. "moe.trace.export { format = 'tensorrt', trace = 'a.trace', to = 'a.json', layer = 2 }", {},
    nil, function(w) w.files["a.csv"] = "0,1\n" end)
  expect.equal(w.imported, { { to = "a.trace", source = "a.csv", steps = 1, layers = 1, ranks = 1,
    tokens = 1, experts = 2, k = 1, blocks = { 0 } }, { 1 } })
  expect.equal(w.loads.query, { step = 1, layer = 2, ranks = 1, tokens = 1, experts = 2, k = 1 })
  expect.equal(world.decode(w.files["out/a.json"]).ep_size, 1)
  local function fails(call, fields, ...)
    expect.fails(expect.HEAD .. ("moe.trace.%s { to = 'x', %s }"):format(call, fields), 2, ...)
  end
  fails("import", "format = 'cvs', files = { 'a' }", "format: 'cvs' is not allowed")
  fails("import", "format = 'csv', files = { 'a', 'b' }",
    "files: has 2 files, but the format 'csv' takes one")
  fails("import", "format = 'megatron', files = { 'a' }, k = 2", "k: is not used by the format")
  fails("import", "format = 'csv', files = { 'a' }, where = { a = 'b' }",
    "where: is not used by the format")
  fails("import", "format = 'rank_loads', files = { 'a' }, where = { a = 1 }", "where.a: ")
  fails("export", "format = 'rank_loads', trace = 'a'", "format: 'rank_loads' is not allowed")
  fails("export", "format = 'csv', trace = 'a', step = 2", "step: is not used by the format")
  fails("exprot", "", "moe.trace: unknown function 'exprot'. Did you mean 'export'?")
end)

test("a check, and a rank that looks for policies, stop before a trace would be written", function()
  for _, mode in ipairs { "check", "policies" } do
    for _, call in ipairs { "import { format = 'csv', files = { 'a.csv' }, to = 'a.trace' }",
      "export { format = 'csv', trace = 'a.trace', to = 'a.csv' }" } do
      local w = world.run(expect.HEAD .. "moe.trace." .. call, {}, mode)
      expect.equal({ w.imported, next(w.files) }, {})
      expect.equal(w.error and w.error.kind, mode == "policies" and "stop" or nil)
    end
  end
end)

test("two traces are not written to one name; the same one may be made again", function()
  local import = "moe.trace.import { format = 'csv', files = { '%s' }, to = '%s' }\n"
  local function files(w)
    for name, text in pairs { a = "0,1", b = "0,1", bad = "0" } do w.files[name] = text end
  end
  local function fails(text, ...)
    expect.failed(world.run(expect.HEAD .. text, nil, nil, files), 3, ...)
  end
  expect.runs(expect.HEAD .. import:format("a", "x") .. import:format("a", "x")
    .. import:format("b", "y"), nil, nil, files)
  fails(import:format("a", "x") .. import:format("b", "./x"),
    "moe.trace.import.to: './x' is already written by moe.trace.import of a")
  -- An import that failed has written nothing.
  local w = expect.runs(expect.HEAD .. "pcall(moe.trace.import, { format = 'csv', "
    .. "files = { 'bad' }, to = 'x' })\n" .. import:format("a", "x"), nil, nil, files)
  expect.equal(w.imported[1].source, "a")
  fails(import:format("a", "x") .. "moe.trace.export { format = 'csv', trace = 'y', to = 'x' }",
    "moe.trace.export.to: 'x'")
  expect.fails(expect.HEAD .. import:format("a", "results.json"), 2, "is a name that moebench uses")
end)

test("an executed run of an experiment records into a file of its own", function()
  local w = expect.runs(model "" .. [[
return moe.experiment { name = "x", model = m, systems = { moe.system "raf" {} },
  run = { { "cpu", ranks = 2, record = "routing.trace" } } }]])
  expect.equal(w.executed[1].options.record, "trace-001-raf-routing.trace")
  expect.equal(w.results.runs[1].record, "trace-001-raf-routing.trace")
end)
