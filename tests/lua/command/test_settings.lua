-- --set: what it reaches, how it is checked, and that none is without effect.
local expect = require "expect"
local world = require "world"
local test = require "test"

local CPU = '{ "cpu", ranks = 2, steps = 3, model = { batch = 8 }, link = { bytes_per_s = 1e8 } }'

-- Two points, gpu = p4de and p3dn, three systems, simulated and executed.
local function recipe(run)
  return expect.HEAD .. [[
return moe.experiment { name = "x", over = { gpu = { "p4de", "p3dn" } }, params = { n = 2 },
  case = function(p) return { model = m, cluster = moe.cluster[p.gpu] { nodes = p.n },
    systems = { moe.system "raf" {}, moe.system "tutel" {}, moe.system "lancet" {} } } end,
  run = { ]] .. (run or '"simulate", ' .. CPU) .. " } }"
end

local function set(settings, run, args)
  args = args or {}
  args.set = settings
  return world.run(recipe(run), args)
end

local function runs(settings, run, args)
  local w = set(settings, run, args)
  assert(not w.error, w.message)
  return w.results.runs, w
end

-- The setting fails with its own text, once, and these parts.
local function fails(name, value, ...)
  local w = set { [name] = value }
  local text = ("--set %s=%s"):format(name, value)
  assert(w.error and w.error.kind == "user", w.message or "no error was raised")
  local _, times = w.message:gsub(text:gsub("%W", "%%%0"), "")
  assert(times == 1, w.message)
  for _, part in ipairs { ... } do assert(w.message:find(part, 1, true), w.message) end
  expect.equal(#w.plans, 0, "plans of a wrong command line")
end

test("a setting does what the same value in the recipe does", function()
  local function plain(spec)
    return { model = spec.model, cluster = spec.cluster, system = spec.system.all_reduce,
      stages = #spec.system.stages, steps = spec.simulate and spec.simulate.steps }
  end
  for name, case in pairs {
    ["model.layers"] = { "6", "layers = 2", "layers = 6" },
    ["cluster.nodes"] = { "4", "nodes = p.n", "nodes = 4" },
    ["run.simulate.steps"] = { "5", '"simulate", ', '{ "simulate", steps = 5 }, ' },
    ["system.lancet.all_reduce.place"] = { "ready", '"lancet" {}', '"lancet" { all_reduce = '
      .. '{ place = "ready" } }' },
    ["system.partition.max_parts"] = { "4", '"lancet" {}', '"lancet" { moe.pass.irregular_a2a {}, '
      .. "moe.pass.used_rows {}, moe.pass.partition { max_parts = 4 }, moe.pass.dw_schedule {} }" },
  } do
    local text = recipe()
    local i, j = text:find(case[2], 1, true)
    local by_hand = expect.runs(text:sub(1, i - 1) .. case[3] .. text:sub(j + 1))
    local _, w = runs { [name] = case[1] }
    expect.equal(#w.plans, #by_hand.plans, name)
    for p, spec in ipairs(w.plans) do expect.equal(plain(spec), plain(by_hand.plans[p]), name) end
  end
  -- Rates that follow the number of nodes do so beside a field of the link that the recipe gives.
  local function with_nic(nodes)
    return (recipe():gsub("nodes = p%.n", ("nodes = %s, nic = { latency_us = 3 }"):format(nodes)))
  end
  local by_hand = expect.runs(with_nic "4")
  local w = expect.runs(with_nic "p.n", { set = { ["cluster.nodes"] = "4" } })
  for p, spec in ipairs(w.plans) do expect.equal(plain(spec), plain(by_hand.plans[p])) end
end)

test("a factor is of each point's own value, and keeps a peak's assumed share", function()
  local _, own = runs {}
  local _, w = runs { ["cluster.nic.bytes_per_s"] = "x2", ["cluster.device.launch_us"] = "x0.5" }
  for i, spec in ipairs(w.plans) do
    if spec.cluster.name ~= "cpu" then
      local before = own.plans[i].cluster
      expect.equal(spec.cluster.nic.bytes_per_s, 2 * before.nic.bytes_per_s)
      expect.equal(spec.cluster.device.launch_us, 0.5 * before.device.launch_us)
    end
  end
  local before = own.results.runs[1].assumed["cluster.p4de.device.launch_us"]
  local after = w.results.runs[1].assumed["cluster.p4de.device.launch_us"]
  expect.equal({ after.value, after.lo, after.hi },
    { before.value / 2, before.lo / 2, before.hi / 2 })
end)

test("one rate or a factor takes the place of the rates by element type, or one of them", function()
  local function rates(path, value)
    local _, w = runs({ [path] = value }, '"simulate"')
    return w.plans[1].cluster.device.gemm_flops_per_s
  end
  local _, own = runs({}, '"simulate"')
  local before = own.plans[1].cluster.device.gemm_flops_per_s
  expect.equal(rates("cluster.device.gemm_flops_per_s", "1e14"), 1e14)
  expect.equal(rates("cluster.device.gemm_flops_per_s", "x2"), 2 * before)
  expect.equal(rates("cluster.device.peak_gemm_flops_per_s", "x2"), 2 * before)
  local efficiency = before / 312e12
  assert(math.abs(rates("cluster.device.peak_gemm_flops_per_s.bf16", "1e15") / (1e15 * efficiency)
    - 1) < 1e-12)
end)

test("several values are a coordinate, in results and in the table", function()
  local list, w = runs({ ["cluster.nic.bytes_per_s"] = "x0.5,x1,1e9", gpu = "p4de" }, '"simulate"')
  expect.equal(#list, 9)
  expect.equal(list[1].point, { gpu = "p4de", ["cluster.nic.bytes_per_s"] = "x0.5" })
  expect.equal(list[9].point["cluster.nic.bytes_per_s"], 1e9)
  expect.equal(list[9].cluster_parameters.nic.bytes_per_s, 1e9)
  expect.equal(w.results.experiments[1].over["cluster.nic.bytes_per_s"], { "x0.5", "x1", 1e9 })
  assert(w.output:find("cluster.nic.bytes_per_s  gpu", 1, true), w.output)
  list, w = runs({ n = "1,4" }, '"simulate"')
  expect.equal({ #list, list[1].devices, list[12].devices }, { 12, 8, 32 })
  expect.equal(w.results.experiments[1].over.n, { 1, 4 })
  list = runs({ ["run.cpu.steps"] = "2,4", gpu = "p4de" }, CPU)
  expect.equal({ #list, list[1].steps, list[6].steps }, { 6, 2, 4 })
end)

test("a list of numbers takes other numbers and factors, in the order given", function()
  local text = expect.HEAD .. [[
return moe.experiment { name = "x", over = { nodes = { 2, 4 } }, case = function(p) return {
  model = m, cluster = moe.cluster.p4de { nodes = p.nodes }, systems = { moe.system "raf" {} } }
  end }]]
  local function nodes(value)
    return expect.runs(text, { set = { nodes = value } }).results.experiments[1].over.nodes
  end
  expect.equal(nodes "32,2", { 32, 2 })
  expect.equal(nodes "x2", { 4, 8 })
  expect.equal(nodes "x1,x2", { 2, 4, 8 })
end)

test("a wrong value has the schema's own message, and names the setting and the line", function()
  fails("model.layers", "0", "recipe.lua:1", "layers: 0 is not allowed; give an integer from 1")
  fails("model.layers", "x0.3", "0.6 is not allowed")
  fails("model.layers", "six", "'six' is not allowed; give an integer")
  fails("cluster.nic.latency_us", "-1", "cluster.p4de.nic.latency_us: -1 is not allowed")
  fails("system.lancet.zero", "2", "zero: 2 is not allowed")
  fails("system.partition.max_parts", "0", "max_parts: 0 is not allowed")
  fails("run.cpu.steps", "0", "experiment.run[2].steps: 0 is not allowed")
  fails("run.cpu.model.layers", "0", "layers: 0 is not allowed")
end)

test("a path that does not exist says what does", function()
  fails("model.layerz", "6", "Did you mean 'layers'?")
  fails("modle.layers", "6", "Did you mean 'model'?")
  fails("cluster.nic.foo", "6", "unknown key 'foo', have: bytes_per_s")
  fails("cluster.nic", "6", "has fields of its own; give one of: bytes_per_s")
  fails("cluster.nodes.x", "6", "cluster.nodes: has no fields")
  fails("system.lancot.zero", "1", "Did you mean 'lancet'?")
  fails("system.lancet.capacity_pipeline.degree", "1", "unknown pass or field", "partition")
  fails("system.partition.max_part", "1", "Did you mean 'max_parts'?")
  fails("system.lancet.max_parts", "1", "Did you mean 'partition.max_parts'?")
  fails("system.max_parts", "1", "Did you mean 'partition.max_parts'?")
  fails("model.routing", "zipf", "is no number, text or boolean")
  fails("layers", "6", "unknown name 'layers', have: gpu, n, cluster.<field>")
end)

test("a name that no experiment has is named before another mistake that may follow from it",
  function()
    local text = recipe():gsub("p%.n }", "nil }")
    expect.failed(world.run(text, { set = { m = "2" } }), nil, "--set m=2: unknown name 'm'")
    assert(not world.run(text).message:find("--set", 1, true))
  end)

test("a function that runs something refuses a name that nothing has before it runs", function()
  local text = expect.HEAD .. [[
moe.train { model = m, ranks = 2, system = moe.system "raf" {}, steps = 2 }
]]
  local w = world.run(text, { set = { seed = "2" } })
  expect.failed(w, 2, "--set seed=2: unknown name 'seed'")
  expect.equal(#w.plans, 0)
  expect.equal(#world.run(text).plans, 1)
end)

test("a setting that reaches nothing is an error; the own value is the base case", function()
  for name, own in pairs { ["model.layers"] = "2", ["cluster.nic.bytes_per_s"] = "x1",
    ["system.raf.zero"] = "0" } do
    expect.equal(runs({ [name] = own }, '"simulate"')[1].iteration_ms,
      runs({}, '"simulate"')[1].iteration_ms)
  end
  fails("run.cuda.steps", "4", "no entry of run has this executor")
  local function unused(settings, args, text)
    local w = set(settings, nil, args)
    assert(w.error and w.message:find(text, 1, true), w.message or "no error was raised")
  end
  unused({ ["cluster.nodes"] = "4" }, { executor = "cpu" }, "no run here is simulated")
  unused({ ["model.batch_per_device"] = "4" }, { executor = "cpu" }, "give run.<executor>.model.b")
  runs { ["model.batch_per_device"] = "4" }  -- that of the simulated runs
  local w = world.run('require "moe".model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16,'
    .. "batch = 2, experts = 4 }", { set = { ["model.layers"] = "4" } })
  assert(w.message:find("--set model.layers=4: reaches nothing", 1, true), w.message)
end)

local TWO = [[
local function run(name, over, run)
  return moe.run(moe.experiment { name = name, over = over, run = { run }, case = function(p)
    return { model = m, cluster = moe.cluster.p4de { nodes = over.nodes and p.nodes or 2 },
      systems = { moe.system "raf" {} } } end }) end
a = run("a", { nodes = { 2, 4 } }, "simulate")
b = run("b", { rows = { 1, 2 } }, { "cpu", ranks = 2 })
]]

test("of a recipe with several experiments one must have the name, the entry or executor",
  function()
    local function both(args)
      local w = world.run(expect.HEAD .. TWO, args)
      return w.globals.a and #w.globals.a.runs, w.globals.b and #w.globals.b.runs, w
    end
    local a, b, w = both { set = { nodes = "4" } }
    expect.equal({ a, b, w.message }, { 1, 1 })
    a, b, w = both { set = { rows = "2" } }
    expect.equal({ a, b, w.message }, { 2, 1 })
    a, b, w = both { set = { ["run.cpu.steps"] = "2" } }
    expect.equal({ a, b, w.executed[1].options.steps }, { 2, 1, 2 })
    a, b, w = both { executor = "cpu" }
    expect.equal({ a, b }, { 0, 1 })
    assert(w.output:find("a is left out by --executor cpu", 1, true), w.output)
    a, b = both { executor = "simulate" }
    expect.equal({ a, b }, { 2, 0 })
    -- A name that the recipe does not mention cannot be that of a later experiment.
    a, b, w = both { set = { noodes = "2" } }
    expect.equal({ a == nil, b == nil, #w.plans }, { true, true, 0 })
    -- What might have been one's and was none's is an error at the end.
    a, b, w = both { set = { name = "2" } }
    assert(a and b and w.message:find("unknown name 'name'", 1, true), w.message)
  end)

test("the check of a script's options refuses values and settings of other names", function()
  local text = expect.HEAD .. [[
local set = moe.options({ n = 2 }, function(name, value)
  if value == nil then return name .. " is unknown here" end
  return value > 4 and "is above 4"
end)
moe.plan { model = m, cluster = moe.cluster.p4de { nodes = set.n }, system = moe.system "raf" {} }
]]
  expect.equal(expect.runs(text, { set = { n = "3" } }).plans[1].ranks, 24)
  for setting, why in pairs { n = "--set n=5: is above 4",
    ["model.layers"] = "--set model.layers=5: model.layers is unknown here" } do
    local w = world.run(text, { set = { [setting] = "5" } })
    expect.equal({ w.error.kind, w.message, #w.plans }, { "user", why, 0 })
  end
end)

test("settings reach moe.train, moe.plan and moe.infer, without sweeps", function()
  local text = expect.HEAD .. [[
moe.train { model = m, ranks = 2, steps = 3 }
moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 1 }, system = moe.system "lancet" {} }
]]
  local w = expect.runs(text, { set = { ["model.layers"] = "4", ["run.cpu.steps"] = "x2",
    ["system.partition.max_parts"] = "2", ["cluster.nodes"] = "2" } })
  expect.equal({ w.plans[1].model.layers, w.plans[2].model.layers, w.plans[2].ranks,
    w.executed[1].options.steps, w.plans[2].system.stages[3].options.max_parts },
    { 4, 4, 16, 6, 2 })
  w = world.run(text, { set = { ["model.layers"] = "4,6" } })
  assert(w.message:find("several values are a sweep", 1, true), w.message)
end)

test("a field of a model that an entry runs is set, in experiments and in functions", function()
  for _, entry in ipairs { '{ "cpu", ranks = 2, steps = 3 }', CPU } do
    for _, mode in ipairs { "run", "check" } do
      local text = recipe('"simulate", ' .. entry)
      local w = expect.runs(text, { set = { ["run.cpu.model.layers"] = "4" } }, mode)
      for _, spec in ipairs(w.plans) do
        expect.equal(spec.model.layers, spec.cluster.name == "cpu" and 4 or 2, spec.cluster.name)
      end
    end
  end
  local list, w = runs({ ["run.cpu.model.layers"] = "2,4", gpu = "p4de" }, CPU)
  expect.equal({ #list, w.executed[1].spec.model.layers, w.executed[4].spec.model.layers },
    { 6, 2, 4 })
  for _, call in ipairs { "train", "infer" } do
    w = world.run(expect.HEAD .. "moe." .. call .. " { model = m, ranks = 2 }",
      { set = { ["run.cpu.model.layers"] = "4" } })
    expect.equal(w.executed[1].spec.model.layers, 4)
    w = world.run(expect.HEAD .. "moe." .. call .. " { model = m, ranks = 2 }",
      { set = { ["run.cpu.model.layerz"] = "4" } })
    expect.failed(w, nil, "--set run.cpu.model.layerz=4: ", "Did you mean 'layers'?")
    expect.equal(#w.executed, 0)
  end
  runs({ ["run.cpu.model.layers"] = "2" }, CPU)
  fails("run.cuda.model.layers", "4", "no entry of run has this executor")
  fails("run.simulate.model.layers", "4", "run.simulate: unknown key 'model', have: edits, steps")
  w = set({ ["run.cpu.model.layers"] = "4", ["model.layers"] = "6", gpu = "p4de" }, CPU)
  expect.failed(w, nil, "--set model.layers=6: changes nothing", "run.<executor>.model.layers")
end)

test("--ranks and a setting of ranks are not given together", function()
  for _, text in ipairs { recipe(), expect.HEAD .. "moe.train { model = m, ranks = 2 }" } do
    local w = world.run(text, { ranks = 1, set = { ["run.cpu.ranks"] = "4" } })
    assert(w.error and w.error.kind == "command", w.message or "no error was raised")
    assert(w.message:find("--set run.cpu.ranks=4: --ranks 1 gives", 1, true), w.message)
    expect.equal(#w.executed, 0)
  end
end)

test("another optimizer has the fields that the recipe gave, and its own defaults", function()
  local function optimizer(fields, values)
    values["run.cpu.optimizer.name"] = "adamw"
    local function only(entry) return (recipe(entry):gsub(', "p3dn"', "")) end
    local texts = { only('{ "cpu", optimizer = ' .. fields .. " }"),
      only('{ "cpu" }'):gsub("model = m,", "model = m, optimizer = " .. fields .. ","),
      expect.HEAD .. "moe.train { model = m, optimizer = " .. fields .. " }" }
    local list = {}
    for i, text in ipairs(texts) do
      local w = world.run(text, { set = values })
      list[i] = w.message or w.plans[1].optimizer
    end
    return list
  end
  for _, o in ipairs(optimizer("{}", {})) do
    expect.equal(o, { name = "adamw", beta1 = 0.9, beta2 = 0.999, eps = 1e-8, lr = 1e-3,
      weight_decay = 0.01, clip_norm = 0 })
  end
  for _, o in ipairs(optimizer("{ lr = 0.5 }", { ["run.cpu.optimizer.lr"] = "x2" })) do
    expect.equal({ o.lr, o.momentum }, { 1 })
  end
  for _, message in ipairs(optimizer("{ momentum = 0.9 }", {})) do
    assert(message:find("momentum: is not a field of adamw", 1, true), message)
  end
  for _, message in ipairs(optimizer("{}", { ["run.cpu.optimizer.lr"] = "x2" })) do
    assert(message:find("no value to multiply", 1, true), message)
  end
end)

test("settings of a grid give micro-batches to a recipe without one", function()
  local text = expect.HEAD .. "moe.train { model = m, ranks = 2 }"
  local function run(values) return world.run(text, { set = values }) end
  expect.equal(run({ ["grid.micro_batches"] = "3" }).plans[1].model.micro_batches, 3)
  local both = run { ["grid.micro_batches"] = "2", ["grid.global_batch"] = "32" }
  assert(both.message:find("give either global_batch or micro_batches", 1, true), both.message)
  local infer = world.run(expect.HEAD .. "moe.infer { model = m, ranks = 2, batches = 1 }",
    { set = { ["grid.micro_batches"] = "2" } })
  assert(infer.message:find("moe.infer has no grid", 1, true), infer.message)
end)

test("a parameter's own value is the base case",
  function()
    runs({ n = "2" }, '"simulate"')
    runs({ n = "x1" }, '"simulate"')
    runs({ gpu = "p4de,p3dn" }, '"simulate"')  -- a choice that leaves none out
    runs({ gpu = "p3dn,p4de" }, '"simulate"')
    runs({ n = "2,4" }, '"simulate"')
    local one = [[
local function e(n) return moe.experiment { name = "e" .. n, params = { nodes = n },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {} } } end } end
return { ]]
    expect.runs(expect.HEAD .. one .. "e(2), e(4) }", { set = { nodes = "4" } })
    expect.runs(expect.HEAD .. one .. "e(4) }", { set = { nodes = "4" } })
  end)

test("the table says what params were set to, and not the names of its coordinates", function()
  local _, w = runs({ n = "4", gpu = "p4de", ["model.layers"] = "6" }, '"simulate"')
  assert(w.output:find("With --set model.layers=6 --set n=4\n", 1, true), w.output)
  _, w = runs({ n = "2,4" }, '"simulate"')
  assert(not w.output:find("With --set", 1, true), w.output)
end)

test("--executor and --sensitivity that no experiment makes use of are refused before a run",
  function()
    local train = expect.HEAD .. "moe.train { model = m, ranks = 2, steps = 2 }"
    local function refused(text, args, ...)
      local w = world.run(text, args)
      expect.failed(w, nil, ...)
      return w
    end
    for _, args in ipairs { { executor = "simulate" }, { sensitivity = "iteration_ms" } } do
      local name = next(args)
      local option = ("--%s %s: changes nothing"):format(name, args[name])
      expect.equal(#refused(train, args, option).executed, 0)
      -- Of a recipe that might have an experiment this is known at its end.
      expect.equal(#refused(train .. " -- no experiment", args, option).executed, 1)
    end
    expect.runs(train, { executor = "cpu" })
    local none = "--sensitivity iteration_ms: changes nothing"
    local single = recipe(CPU):gsub(', "p3dn"', "")
    expect.equal(#refused(single, { sensitivity = "iteration_ms" }, none).executed, 0)
    expect.equal(#refused(recipe(), { sensitivity = "iteration_ms", executor = "cpu" }, none)
      .executed, 0)
    runs({}, nil, { sensitivity = "iteration_ms" })
    local own = 'sensitivity = { "iteration_ms" }, run ='
    refused(recipe(CPU):gsub("run =", own), {}, "recipe.lua:5",
      "experiment.sensitivity[1]: 'iteration_ms' is of simulated runs")
    expect.runs(recipe():gsub("run =", own), { executor = "cpu" })
  end)

test("a coordinate on which no run depends is refused, and a setting that makes it so is named",
  function()
    local text = expect.HEAD .. [[
return moe.experiment { name = "x", over = { gate = { "switch", "top2" } }, case = function(p)
  return { model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
    batch_per_device = 2, experts_per_device = 2, gate = p.gate },
    cluster = moe.cluster.p4de { nodes = 1 }, systems = { moe.system "raf" {} } } end,
  run = { "simulate", { "cpu", ranks = 2 } } }]]
    expect.runs(text, { set = { ["model.layers"] = "4" } })
    expect.failed(world.run(text, { set = { ["model.gate"] = "bpr", ["model.layers"] = "4" } }), 2,
      "experiment.over.gate: has no effect with --set model.gate=bpr, since",
      "--set gate=<value>")
    text = text:gsub("p.gate", '"bpr"')
    expect.fails(text, 2, "experiment.over.gate: has no effect, since", "let `case` read it")
    expect.failed(world.run(text, { set = { ["model.layers"] = "4" } }), 2, "let `case` read it")
    expect.runs(text, { executor = "cpu" })
  end)
