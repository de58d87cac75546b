-- Points, systems, targets, and what is on disk afterwards.
local expect = require "expect"
local world = require "world"
local test = require "test"

local function experiment(fields)
  return expect.HEAD .. [[
return moe.experiment { name = "x", over = { nodes = { 2, 4 }, gpu = { "p4de", "p3dn" } },
  params = { factor = 1, word = "a", flag = false },
  case = function(p) return { model = m, cluster = moe.cluster[p.gpu] { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "tutel" {}, moe.system "lancet_dw" {} } } end,
]] .. fields .. "}"
end

local function points(w)
  local out = {}
  for _, run in ipairs(w.results.runs) do
    if run.system == "raf" and run.point then
      out[#out + 1] = ("%s %d"):format(run.point.gpu, run.point.nodes)
    end
  end
  return out
end

test("the points are the product of all lists", function()
  local w = expect.runs(experiment "")
  expect.equal(points(w), { "p4de 2", "p4de 4", "p3dn 2", "p3dn 4" })
  expect.equal(#w.results.runs, 12)
  expect.equal(w.results.runs[1].provenance, "simulated")
  expect.equal(w.results.runs[1].devices, 16)
end)

test("--set narrows a list and replaces a parameter", function()
  expect.equal(points(expect.runs(experiment "", { set = { gpu = "p3dn" } })),
    { "p3dn 2", "p3dn 4" })
  local w = expect.runs(experiment "", { set = { nodes = "4.0", factor = "2", word = "b",
    flag = "true" } })
  expect.equal(points(w), { "p4de 4", "p3dn 4" })
  expect.equal(w.results.experiments[1].params, { factor = 2, word = "b", flag = true })
  expect.equal(w.results.experiments[1].over, { gpu = { "p4de", "p3dn" }, nodes = { 4 } })
end)

local function set(name, text) return world.run(experiment "", { set = { [name] = text } }) end

test("--set of an unknown name, a value not in the list, or of another type is refused", function()
  expect.failed(set("nodez", "2"), 2, "--set nodez=2: unknown name 'nodez'. Did you mean 'nodes'?")
  expect.failed(set("gpu", "p5"), 2, "--set gpu=p5", "have: p4de, p3dn")
  expect.failed(set("factor", "two"), 2, "--set factor=two: give a number")
  expect.failed(set("flag", "yes"), 2, "--set flag=yes: give a boolean")
  local message = set("factor", "nan").message
  assert(message:find("--set factor=nan: 'nan' is no number", 1, true), message)
end)

test("a case that reads a name it does not have is an error", function()
  expect.fails(expect.HEAD .. [[
return moe.experiment { name = "x", over = { nodes = { 2 } }, case = function(p)
  return { model = m, cluster = moe.cluster.p4de { nodes = p.nods }, systems = {} } end }
]], 3, "case: unknown coordinate 'nods'. Did you mean 'nodes'? (nodes = 2)")
end)

test("a case that returns false has no point there; nothing but false is an error", function()
  local function over_nodes(returned)
    return expect.HEAD .. [[
return moe.experiment { name = "x", over = { nodes = { 2, 4, 8 } }, case = function(p)
  return ]] .. returned .. [[ and { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {} } } end }
]]
  end
  local runs = expect.runs(over_nodes "p.nodes ~= 4").results.runs
  expect.equal({ #runs, runs[1].devices, runs[2].devices }, { 2, 16, 64 })
  expect.fails(over_nodes "false", 2, "experiment.case: returned false for every point")
end)

test("a case gives the link of the executed entries", function()
  local function with(run, link)
    return expect.HEAD .. [[
return moe.experiment { name = "x", over = { mb = { 100, 200 } }, run = { ]] .. run .. [[ },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = 2 },
    link = ]] .. (link or "{ bytes_per_s = p.mb * 1e6, latency_us = 5 }") .. [[,
    systems = { moe.system "raf" {} } } end }
]]
  end
  local runs = expect.runs(with '{ "cpu", ranks = 2 }').results.runs
  expect.equal({ #runs, runs[1].link.bytes_per_s, runs[2].link.bytes_per_s }, { 2, 1e8, 2e8 })
  expect.fails(with '"simulate"', 4, "experiment.case.link: no entry of experiment.run is executed")
  expect.fails(with '{ "cpu", ranks = 2, link = { bytes_per_s = 1e9, latency_us = 1 } }', 4,
    "experiment.case.link: experiment.run[1] gives a link too; omit one of the two")
  expect.fails(with('{ "cpu", ranks = 2 }', "{ latency_us = 5 }"), 4, "link.bytes_per_s")
end)

test("moe.best takes the fastest by simulation and records what it chose from", function()
  local run = expect.runs(experiment "").results.runs[2]
  expect.equal(run.system, "tutel")
  expect.equal(run.choice, "degree=4")
  expect.equal(run.iteration_ms, 90)
  expect.equal(#run.candidates, 4)
  expect.equal(run.stages[1].options, { degree = 4 })
end)

test("a choice passes over what cannot be planned, and says so; with nothing left it fails",
  function()
    local function run(degrees)
      return world.run(([[
local moe = require "moe"
return moe.experiment { name = "x", cluster = moe.cluster.p4de { nodes = 2 },
  model = moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16, vocab = 256,
    batch_per_device = 2, experts_per_device = 2 },
  systems = { moe.system "mine" { moe.best(moe.pass.capacity_pipeline, { degree = %s }) } },
  run = { "simulate" } }]]):format(degrees), nil, "run", function(_, core)
        local plan = core.plan
        core.plan = function(spec)
          for _, stage in ipairs(spec.system.stages) do
            if stage.options.degree > 4 then error("degree: has a capacity of 4", 0) end
          end
          return plan(spec)
        end
      end)
    end
    local w = run "{ 1, 2, 8 }"
    assert(not w.error, w.message)
    local record = w.results.runs[1]
    expect.equal({ record.choice, #record.candidates }, { "degree=2", 3 })
    expect.equal(record.without_effect,
      { { stage = "degree=8", reason = "degree: has a capacity of 4" } })
    assert(w.output:find("Without effect in mine: stage 'degree=8'", 1, true), w.output)
    expect.failed(run "{ 8, 16 }", 5, "degree: has a capacity of 4")
  end)

test("two searches in one system are a product", function()
  local w = expect.runs(expect.HEAD .. [[
local c = moe.pass.capacity_pipeline
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "s" { moe.best(c, { degree = { 1, 4 } }),
    moe.best(moe.pass.dw_schedule, { if_slower = { "undo", "keep" } }) } } }
]])
  expect.equal(#w.plans, 4)
  expect.equal(w.results.runs[1].choice, "degree=4 if_slower=undo")
end)

test("assumed constants of the cluster stand with every simulated run", function()
  local run = expect.runs(experiment "").results.runs[1]
  expect.equal(run.assumed["cluster.p4de.device.gemm_efficiency"].value, 0.68)
end)

test("a system given twice, none, and an unknown one to execute are refused", function()
  local head = expect.HEAD .. 'return moe.experiment { name = "x", model = m,\n'
  expect.fails(head .. 'systems = { moe.system "raf" {}, moe.system "raf" {} } }', 3,
    "experiment.systems[2]: 'raf' is in the list twice")
  expect.fails(head .. "systems = {} }", 3, "systems: the list is empty")
  expect.fails(head .. 'systems = { moe.system "raf" {} },\n'
    .. 'run = { { "cpu", systems = { "rav" } } } }', 4, "run[1].systems[1]: unknown system 'rav'")
end)

test("a list with a gap is refused at the gap, and not read up to it", function()
  local head = expect.HEAD .. 'return moe.experiment { name = "x", model = m,\n'
  expect.fails(head .. 'systems = { moe.system "raf" {}, nil, nil, moe.system "lancet" {} } }', 3,
    "experiment.systems[2]: is nil, though value number 4 follows")
  expect.fails(head .. 'systems = { moe.system "raf" {} },\nrun = { "simulate", nil, { "cpu" } } }',
    4, "experiment.run[2]: is nil, though value number 3 follows")
  expect.fails(expect.HEAD .. 'moe.system "raf" { nil, moe.pass.serial {} }', 2,
    "system 'raf'[1]: is nil, though value number 2 follows")
end)

test("a coordinate without a name and a value that is not a number are refused", function()
  local head = expect.HEAD .. 'return moe.experiment { name = "x", model = m,\n'
    .. 'systems = { moe.system "raf" {} }, over = %s }'
  expect.fails(head:format "{ { 1, 2 } }", 3, "experiment.over: the key '1' is not allowed")
  expect.fails(head:format "{ n = { 0 / 0 } }", 3, "experiment.over.n[1]: nan is not allowed")
  expect.fails(expect.HEAD .. "moe.best(moe.pass.capacity_pipeline, { degree = { 0 / 0, 2 } })", 2,
    "degree", "nan is not allowed")
end)

test("case and model together, over without case, simulate without cluster are refused", function()
  local head = expect.HEAD .. 'return moe.experiment { name = "x", '
  expect.fails(head .. "model = m,\ncase = function() end }", 3, "give either case or model")
  expect.fails(head .. 'model = m, systems = { moe.system "raf" {} },\nover = { a = { 1 } } }', 3,
    "has no effect without case")
  expect.fails(head .. 'model = m, systems = { moe.system "raf" {} } }', 2, "cluster is missing")
  expect.fails(head .. "case = function() end }", 2,
    "experiment.case: returned nothing; return a table of the point's case, or false")
  expect.fails(head .. "case = function() return { model = m, sytems = {} } end }", 2,
    "experiment.case: unknown key 'sytems'. Did you mean 'systems'?")
  expect.fails(head .. 'over = {\n a = {} }, case = function() end }', 3,
    "over.a: the list is empty")
  expect.fails(head .. 'over = { a = { 1 } }, params = { a = 1 }, case = function() end }', 2,
    "is also in experiment.params")
end)

test("an options table beside the entries of run is not passed over", function()
  expect.fails(expect.HEAD .. [[
return moe.experiment { name = "x", model = m, systems = { moe.system "raf" {} },
  run = { "cpu",
    ranks = 2 } }
]], 4, "experiment.run: must be a list; the key 'ranks' is not allowed")
  expect.fails(expect.HEAD .. 'return moe.experiment { name = "x", model = m,\n'
    .. 'run = { "cudo" } }', 3, "unknown executor 'cudo'", "'cuda'?")
end)

local CPU = 'run = { "simulate", { "cpu", ranks = 2, steps = 3, link = { bytes_per_s = 1e8 } } }, '

test("points that make the same executed run share it", function()
  local w = expect.runs(experiment(CPU))
  expect.equal(#w.executed, 3)
  expect.equal(#w.results.runs, 15)
  local run = w.results.runs[13]
  expect.equal(run.executor, "cpu")
  expect.equal(#run.points, 4)
  expect.equal(run.provenance, "emulated")
  expect.equal(run.drops, { 7, 7, 7 })
end)

test("executed runs that differ in a gate's options or a pass's are not shared", function()
  local w = expect.runs([[
local moe = require "moe"
local g = moe.policy.gate { name = "mine", scope = "token", params = { n = 1 },
  route = function() end }
return moe.experiment { name = "x", over = { n = { 1, 2 }, degree = { 1, 2 } },
  case = function(p) return { model = moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4,
      vocab = 256, seq = 16, batch = 2, experts = 4, gate = g { n = p.n } },
    systems = { moe.system "s" { moe.pass.capacity_pipeline { degree = p.degree } } } } end,
  run = { { "cpu", ranks = 2 } } }
]])
  expect.equal(#w.executed, 4)
end)

test("what differs on a target replaces the model's fields, partners included", function()
  local w = expect.runs(experiment [[
    run = { { "cpu", ranks = 2, model = { layers = 4, batch = 8 } } }]])
  local model = w.executed[1].spec.model
  expect.equal(w.executed[1].spec.optimizer.lr, 0.1)
  expect.equal({ model.layers, model.hidden, model.batch_per_device }, { 4, 32, 4 })
  expect.fails(experiment 'run = { { "cpu",\n model = { layerz = 4 } } }', 7,
    "experiment.run[1].model: unknown key 'layerz'")
  expect.fails(experiment 'run = { { "cpu",\n model = { batch = 2, batch_per_device = 2 } } }', 7,
    "not both")
end)

test("an optimizer of the target stands instead of the point's", function()
  local w = expect.runs(experiment [[
    run = { { "cpu", ranks = 2, optimizer = { lr = 0.01 } } }, ]])
  expect.equal(w.executed[1].spec.optimizer, { name = "sgd", lr = 0.01, momentum = 0.9,
    clip_norm = 0 })
  expect.fails(experiment 'run = { { "cpu",\n optimizer = { lrr = 1 } } }', 7,
    "experiment.run[1].optimizer: unknown key 'lrr'")
end)

test("the first step is a sample but not in the medians; the error is of those", function()
  local run = expect.runs(experiment(CPU)).results.runs[13]
  expect.equal(#run.samples_ms, 3)
  assert(run.samples_ms[1] > run.samples_ms[2])
  expect.equal(run.iteration_ms, run.samples_ms[2])
  assert(math.abs(run.prediction.error - 0.1) < 1e-9)
end)

test("a prediction is on disk before its run starts", function()
  local seen
  local text = experiment('run = { { "cpu", ranks = 2 } }')
  local w = world.run(text, {}, "run", function(w, core)
    local plan = core.plan
    core.plan = function(spec)
      local p = plan(spec)
      local run = p.run
      p.run = function(...)
        seen = seen or world.lines(w.files["out/runs.jsonl"])[3].record
        return run(...)
      end
      return p
    end
  end)
  assert(not w.error, w.message)
  assert(seen.prediction.frozen and seen.prediction.iteration_ms > 0)
  expect.equal(seen.losses, nil)
end)

test("results complete before a failure are on disk and printed, the error once", function()
  local w = world.run(experiment(CPU), {}, "run", function(w) w.fails_in = "tutel" end)
  expect.equal(w.error.kind, "run")
  expect.equal(w.message, "rank 1 is gone (system 'tutel')")  -- at all points of the experiment
  local complete = {}
  for _, run in ipairs(w.results.runs) do
    if run.executor == "cpu" and run.iteration_ms then complete[#complete + 1] = run.system end
  end
  expect.equal(complete, { "raf", "lancet_dw" })  -- in turns with it, they go on
  assert(w.output:find("Executed on 2 CPU ranks", 1, true), w.output)
  assert(w.files["out/trace-013-raf-executed.json"])
end)

test("a deadline that passes while a model is built names the line and what helps", function()
  local w = world.run(experiment "", {}, "run", function(_, core)
    core.plan = function()
      error(core.failure("run", "a call passed the deadline of 5 s (in model 'm')"), 0)
    end
  end)
  assert(w.message:find "^recipe.lua:%d+: a call passed the deadline.*: give fewer layers",
    w.message)
end)

test("a refused point does not end a sweep", function()
  local text = [[
local moe = require "moe"
local e = moe.experiment { name = "e", over = { experts = { 6, 8, 12, 16 } }, case = function(p)
  return { cluster = moe.cluster.p4de { nodes = p.experts == 16 and 1.5 or 1 },
    systems = { moe.system "raf" {}, moe.system "tutel" {} },
    model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
      batch_per_device = 2, experts = p.experts } } end%s }
N = #moe.run(e).runs
]]
  local one_system = function(_, core)
    local plan = core.plan
    core.plan = function(spec)
      if spec.system.name == "tutel" then error("an axis is too short", 0) end
      return plan(spec)
    end
  end
  local w = world.run(text:format "", {}, "run", one_system)
  for _, part in ipairs { "8 +8 +raf +%d", "6 +%- +raf, tutel +refused +%- ",
    "16 +%- +%- +refused ", "8 +%- +tutel +refused ",
    "Refused: recipe.lua:3: .*nodes: 1.5 is not allowed.*experts = 16",
    "Refused: recipe.lua:6: model.experts: 12 experts cannot", "'tutel', experts = 8%)\n" } do
    assert(w.output:find(part), part .. "\n" .. w.output)
  end
  assert(w.error and w.error.kind == "user", w.message)
  assert(w.message:find("; refused: 4, run: 1", 1, true), w.message)
  expect.equal({ w.globals.N, #w.results.runs, #w.results.experiments[1].refused }, { 1, 1, 4 })
  expect.equal(w.results.experiments[1].planned, 1)
  -- What was to be executed is no row of the simulated table.
  w = world.run(text:format(', run = { "simulate", { "cpu", ranks = 2, steps = 2 } }'), {}, "run",
    one_system)
  expect.equal(select(2, w.output:gsub("tutel +refused", "")), 3)
  -- Where nothing is left, the first error is the recipe's.
  w = world.run(text:format(', run = { { "cpu", ranks = 5, steps = 2 } }'), {}, "run")
  expect.failed(w, 6, "model.experts: 6 experts cannot be spread evenly over 5 ranks")
  assert(not w.message:find "; refused:", w.message)
  w = world.run(text:format(', run = { { "cpu", ranks = 4, steps = 2 } }'), {}, "run", one_system)
  assert(w.message:find("experts = 16); refused: 4, run: 2", 1, true), w.message)
  expect.equal(#w.executed, 2)
end)

test("the error of a system that cannot be planned names the system and the point", function()
  local function fails(message)
    return world.run(experiment "", {}, "run", function(_, core)
      local plan, asked = core.plan, 0
      core.plan = function(spec)
        asked = asked + 1
        if asked >= 2 then error(message, 0) end
        return plan(spec)
      end
    end).message:gsub("; refused: 11, run: 1$", "")
  end
  expect.equal((fails "an axis is too short"),
    "recipe.lua:5: an axis is too short (system 'tutel', gpu = p4de, nodes = 2)")
  -- What the message says is not said again.
  expect.equal((fails "'x' in system 'tutel' at gpu = p4de, nodes = 2 is too short"),
    "recipe.lua:5: 'x' in system 'tutel' at gpu = p4de, nodes = 2 is too short")
  expect.equal((fails "in system 'tutel' nodes = 24"), "recipe.lua:5: in system 'tutel' nodes = 24 "
    .. "(gpu = p4de, nodes = 2)")
end)

test("a show that fails because runs are missing does not hide the error of the run", function()
  local text = experiment('run = { "simulate", { "cpu", ranks = 2 } }, '
    .. "show = function(R) print(R:where { executor = 'cpu' }.runs[1].losses[1]) end")
  local w = world.run(text, {}, "run", function(w) w.fails_in = "raf" end)
  expect.equal(w.message, "rank 1 is gone (system 'raf')")
  assert(w.output:find("show fails on these runs, which are not all: ", 1, true), w.output)
  assert(w.output:find("vs first", 1, true), w.output)  -- the usual tables
end)

test("tables of simulated runs are printed before the first executed run", function()
  local seen
  expect.runs(experiment(CPU), {}, "run", function(w, core)
    local run = core.run_in_turns
    core.run_in_turns = function(...)
      seen = seen or table.concat(w.said, "\n")
      return run(...)
    end
  end)
  assert(seen:find("vs first", 1, true), seen)
end)

test("--executor chooses targets, --ranks changes their ranks", function()
  local w = expect.runs(experiment(CPU), { executor = "cpu", ranks = 4 })
  expect.equal(#w.results.runs, 3)
  expect.equal(w.executed[1].spec.ranks, 4)
  expect.failed(world.run(experiment "", { executor = "cpu" }), 2,
    "--executor: unknown executor for this recipe 'cpu', have: simulate")
end)

test("--ranks without a run on ranks is an error before anything is simulated", function()
  for _, args in ipairs { { ranks = 4 }, { ranks = 4, executor = "simulate" } } do
    local w = world.run(experiment(args.executor and CPU or ""), args)
    expect.failed(w, nil, "--ranks 4: changes nothing: nothing here is executed on ranks")
    expect.equal(w.simulated, {})
  end
  expect.runs(expect.HEAD .. "moe.train { model = m, ranks = 2 }", { ranks = 4 })
end)

test("a run without the look for NaN is predicted without it", function()
  local w = expect.runs(experiment((CPU:gsub('"cpu",', '"cpu", check_finite = false,'))))
  expect.equal(w.executed[1].spec.cost.check_finite, false)
  expect.equal(w.executed[1].options.check_finite, false)
  expect.equal(expect.runs(experiment(CPU)).executed[1].options.check_finite, true)
end)

test("what runs on CPU ranks runs on a GPU by --executor cuda, profiled there", function()
  local w = expect.runs(experiment(CPU), { executor = "cuda" })
  expect.equal(#w.executed, 3)
  local spec = w.executed[1].spec
  expect.equal({ spec.cost.device, spec.cost.rehearse, spec.ranks }, { "cuda", 0, 2 })
  expect.equal(w.executed[1].options.executor, "cuda")
  expect.equal(w.results.runs[1].executor, "cuda")
  assert(w.output:find("Executed on 2 ranks of 1 x H200, emulated link", 1, true), w.output)
  local own = expect.runs(experiment((CPU:gsub('"cpu",', '"cuda",'))))
  expect.equal(own.executed[1].spec.cost.device, "cuda")
  expect.equal(own.results.runs[13].executor, "cuda")
  local bf16 = CPU:gsub('"cpu",', '"cuda", precision = "bf16",')
  expect.equal(expect.runs(experiment(bf16)).results.runs[13].precision, "bf16")
end)

test("where there is no GPU that is said before anything runs, at the recipe's line", function()
  local function no_gpu(w) w.no_gpu = "the CUDA plugin sees no GPU" end
  local w = world.run(experiment(CPU), { executor = "cuda" }, nil, no_gpu)
  expect.failed(w, nil, "--executor cuda: the CUDA plugin sees no GPU")
  expect.equal(#w.plans, 0)
  local entry = CPU:gsub('"cpu",', '"cuda",')
  expect.failed(world.run(experiment(entry), {}, nil, no_gpu), 6,
    "experiment.run[2]: the CUDA")
  expect.runs(experiment(entry), { executor = "simulate" }, nil, no_gpu)
  expect.failed(world.run(expect.HEAD .. 'moe.train { model = m, executor = "cuda" }', {}, nil,
    no_gpu), 2, "moe.train.executor: the CUDA plugin sees no GPU")
end)

test("real runs are rehearsed for their predictions unless the recipe says 0 steps", function()
  local function rehearsed(entry)
    local w = expect.runs(experiment(entry), { executor = "cpu" })
    return w.executed[1].spec.cost.rehearse
  end
  expect.equal(rehearsed(CPU), 8)
  expect.equal(rehearsed((CPU:gsub('"cpu",', '"cpu", rehearse = 0,'))), 0)
end)

test("checking plans everything for every target and runs nothing", function()
  local w = expect.runs(experiment(CPU), {}, "check")
  expect.equal(#w.executed, 0)
  expect.equal(w.output, "ok: x, 15 plans")
  expect.equal(next(w.files), nil)
  local last = w.plans[#w.plans]
  expect.equal(last.cost.kind, "roofline")
end)

test("experiments of one recipe stand together in results.json", function()
  local w = expect.runs(expect.HEAD .. [[
local function one(name) return moe.experiment { name = name, model = m,
  cluster = moe.cluster.p4de { nodes = 2 }, systems = { moe.system "raf" {} } } end
return { one "a", one "b" }
]])
  expect.equal(#w.results.experiments, 2)
  expect.equal({ w.results.runs[1].experiment, w.results.runs[2].experiment }, { "a", "b" })
end)

test("a recipe returns experiments or nothing", function()
  for _, value in ipairs { "42", "{}", "{ 1 }", "'x'", "false" } do
    expect.fails("local moe = require 'moe'\nreturn " .. value, 2,
      "that is neither an experiment nor a list of experiments")
  end
  expect.equal(expect.runs("local x = 1", {}, "check").output,
    "ok: the recipe runs nothing")
end)

test("values of over may be booleans; the same one twice is refused", function()
  local text = expect.HEAD .. [[
return moe.experiment { name = "x", over = { wide = %s }, case = function(p)
  return { model = m, cluster = moe.cluster.p4de { nodes = p.wide and 4 or 2 },
    systems = { moe.system "raf" {} } } end }
]]
  local w = expect.runs(text:format "{ true, false }", { set = { wide = "false" } })
  expect.equal({ #w.results.runs, w.results.runs[1].devices }, { 1, 16 })
  expect.fails(text:format "{ true, true }", 2, "over.wide[2]: 'true' is in the list twice")
  expect.fails(text:format "{ {} }", 2, "over.wide[1]: a table is not allowed")
end)

test("values of over may be things with a name", function()
  local w = expect.runs(expect.HEAD .. [[
local g = moe.policy.gate { name = "mine", scope = "token", route = function() end }
return moe.experiment { name = "x", over = { gate = { "switch", g {} } },
  case = function(p) return { model = moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4,
      seq = 16, batch_per_device = 2, experts_per_device = 2, gate = p.gate },
    cluster = moe.cluster.p4de { nodes = 2 }, systems = { moe.system "raf" {} } } end }
]], { set = { gate = "mine" } })
  expect.equal(w.results.runs[1].point, { gate = "mine" })
  expect.equal(w.plans[1].gate.name, "mine")
end)

test("a kept outcome that no simulation can give is simulated anew", function()
  local recipe = expect.HEAD .. 'return moe.experiment { name = "x", model = m, '
    .. 'cluster = moe.cluster.p4de { nodes = 1 }, systems = { moe.system "raf" {} } }'
  local first = expect.runs(recipe)
  local function again(change)
    local w = expect.runs(recipe, {}, "run", function(w)
      for key, kept in pairs(first.outcomes) do w.outcomes[key] = { change(kept[1]), kept[2] } end
    end)
    expect.equal(w.results.runs[1].iteration_ms, first.results.runs[1].iteration_ms)
    return w.results.experiments[1].simulations
  end
  expect.equal(again(function(outcome) return outcome end), { done = 0, found = 1 })
  local texts = { function() return "" end, function() return "null" end,
    function() return "{}" end, function() return "[1]" end, function() return '"x"' end }
  for name, value in pairs { iteration_ms = -5, peak_bytes = -2 ^ 50, stages = 3, log = { 1 },
    samples_ms = { -1 }, assumed_routing = {}, holders = "x", unheard_of = 1 } do
    texts[#texts + 1] = function(outcome)
      outcome = world.decode(outcome)
      outcome[name] = value
      return world.encode(outcome)
    end
  end
  for _, change in ipairs(texts) do expect.equal(again(change), { done = 1, found = 0 }) end
end)

test("an experiment that ends early says how many of its runs were done", function()
  local w = world.run(expect.HEAD .. [[
return moe.experiment { name = "x", over = { nodes = { 1, 2, 4 } }, case = function(p) return {
  model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
  systems = { moe.system "raf" {} } } end }]], {}, "run", function(_, core)
    local add = core.append_output
    core.append_output = function(name, text, anew)
      add(name, text, anew)
      if text:find('"nodes":2', 1, true) then error(core.failure("run", "interrupted"), 0) end
    end
  end)
  assert(w.error)
  assert(w.output:find("Incomplete: 2 of 3 runs were done", 1, true), w.output)
  expect.equal(w.results.experiments[1].planned, 3)
end)

test("entries of run are names of executors or tables that begin with them", function()
  local function fails(run, ...)
    expect.fails(expect.HEAD .. 'return moe.experiment { name = "x", model = m,\n'
      .. 'systems = { moe.system "raf" {} },\nrun = ' .. run .. " }", 4, ...)
  end
  fails("{}", "experiment.run: the list is empty; give at least one entry")
  fails("{ { executor = 'cpu' } }", "experiment.run[1]: a table is not allowed; give the name",
    '{ "cpu", ... }', "cpu, cuda, simulate")
  fails("{ 5 }", "experiment.run[1]: 5 is not allowed")
  fails("{ m }", "experiment.run[1]: a moe.model object is not allowed")
  fails("{ { 'cqu' } }", "experiment.run[1]: unknown executor 'cqu'")
end)

test("a record that cannot be written does not lose the others", function()
  local w = world.run(experiment "", {}, "run", function(made)
    made.without_effect = function(spec)
      return spec.system.name == "tutel" and { { stage = "s", reason = "none" } } or {}
    end
    package.loaded["moe.results.results"].FIELDS.without_effect = nil
  end)
  assert(w.message:find("'without_effect' is in a record but not in", 1, true), w.message)
  expect.equal(#w.results.runs, 8)
  assert(w.output:find("Incomplete: 8 of 12 runs were done", 1, true), w.output)
end)
