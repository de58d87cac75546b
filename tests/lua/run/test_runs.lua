-- What an experiment's runs are called, share and write: one heading a configuration, one execution
-- of equal runs, one writer a file.
local expect = require "expect"
local world = require "world"
local test = require "test"

local TINY = [[
local moe = require "moe"
local function model(t)
  local all = { layers = 2, hidden = 32, heads = 4, vocab = 256, seq = 16, batch = 4, experts = 4 }
  for k, v in pairs(t or {}) do all[k] = v end
  return moe.model.gpt2_moe(all)
end
local raf = moe.system "raf" {}
local g = moe.policy.gate { name = "mine", scope = "token", params = { n = 1 },
  route = function() end }
]]

local CPU = 'run = { { "cpu", ranks = 2 } }'

-- Two points, p.b = 1 and 2, with this case; `more` is what else the experiment has.
local function two(case, more)
  return TINY .. ("return moe.experiment { name = 'x', over = { b = { 1, 2 } }, %s,\n"
    .. "case = function(p) local one = p.b == 1 return { systems = { raf }, %s } end }"):format(
      more or CPU, case)
end

-- What stands above each table of executed runs, each text once.
local function headings(w)
  local list, seen = {}, {}
  for text in w.output:gmatch "(Executed on.-)\n[^\n]*; predictions frozen" do
    if not seen[text] then list[#list + 1] = text end
    seen[text] = true
  end
  return list
end

test("executed runs that differ in whatever it is have headings that differ", function()
  local cases = {
    ["routing's name"] = two [[
      model = model { routing = moe.workload(one and 'zipf' or 'balanced') {} }]],
    ["routing's seed"] = two "model = model { routing = moe.workload 'zipf' { seed = p.b } }",
    ["gate's options"] = two "model = model { gate = g { n = p.b } }",
    gate = two "model = model { gate = one and 'switch' or 'top2' }",
    optimizer = two "model = model(), optimizer = { lr = p.b }",
    fill = two "model = model { fill = p.b / 2 }",
    ep = two "model = model { ep = p.b }",
    blocks = two "model = model { moe_every = p.b }",
    capacity = two "model = model { capacity_factor = 1 + p.b * 1e-9 }",
    steps = two("model = model()", 'run = { { "cpu", ranks = 2, steps = 1 }, '
      .. '{ "cpu", ranks = 2, steps = 2 } }'),
    precision = two("model = model()", 'run = { { "cpu", ranks = 2 }, '
      .. '{ "cpu", ranks = 2, precision = "f64" } }'),
    link = two("model = model()", 'run = { { "cpu", ranks = 2, link = { bytes_per_s = 1e8 } }, '
      .. '{ "cpu", ranks = 2, link = { bytes_per_s = 1e8 + 1 } } }'),
    share = two("model = model()", 'run = { { "cpu", ranks = 2, link = { bytes_per_s = 1e8 } }, '
      .. '{ "cpu", ranks = 2, link = { bytes_per_s = 1e8, share = "per_flow" } } }'),
    rehearsal = two("model = model()", 'run = { { "cpu", ranks = 2, rehearse = 0 }, '
      .. '{ "cpu", ranks = 2, rehearse = 4 } }'),
  }
  for what, text in pairs(cases) do
    local w = expect.runs(text)
    expect.equal(#w.executed, 2, what)
    assert(#headings(w) == 2, what .. "\n" .. w.output)
  end
end)

test("a pace reaches the executor, the prediction, the record and the heading", function()
  local function run(fields, setup)
    return expect.runs(two("model = model()", 'run = { { "cpu", ranks = 2, link = '
      .. "{ bytes_per_s = 1e8 }" .. fields .. " } }"), nil, nil, setup)
  end
  local w = run ", pace = 4.5"
  local one = w.executed[1]
  expect.equal({ one.options.pace, one.spec.cost.pace, w.results.runs[1].pace },
    { 4.5, 4.5, 4.5 })
  assert(w.output:find("Executed on 2 CPU ranks at pace 4.5, emulated link", 1, true), w.output)
  w = run ""
  expect.equal({ w.executed[1].options.pace == nil, w.executed[1].spec.cost.pace == nil },
    { true, true })
  assert(w.output:find("Executed on 2 CPU ranks, emulated link", 1, true), w.output)
  local function behind(ms) return function(made) made.behind_ms = ms end end
  local late = run(", pace = 4", behind(100))  -- of a step of 880 ms
  expect.equal(late.results.runs[1].disturbed,
    "ranks fell behind by 11% of the step; give a larger pace than 4")
  expect.equal(run(", pace = 4", behind(40)).results.runs[1].disturbed, nil)
end)

test("a run of more ranks than cores says so unless it has a pace", function()
  local function run(fields)
    local w = expect.runs(two("model = model { experts = 8 }", 'run = { { "cpu", link = '
      .. "{ bytes_per_s = 1e8 }, ranks = " .. fields .. " } }"))
    return w.results.runs[1].crowded, w.output
  end
  local text, output = run "4"
  expect.equal(text, "4 ranks share 2 cores, so that times say little; give a pace of 2.2 or more")
  assert(output:find(text, 1, true), output)
  expect.equal(run "4, pace = 3", nil)
  expect.equal(run "2", nil)
end)

test("a pace is refused without a link, on a GPU, between processes and outside its range",
  function()
    local function train(fields)
      return TINY .. "moe.train { model = model(), ranks = 2, " .. fields .. " }"
    end
    local function fails(fields, text) expect.fails(train(fields), 10, text) end
    local link = ", link = { bytes_per_s = 1e8 }"
    fails("pace = 3", "moe.train.pace: 3 needs an emulated link")
    fails("executor = 'cuda', pace = 3" .. link,
      "moe.train.pace: 3 needs the executor cpu, and here it is cuda")
    fails("pace = 0.5" .. link, "moe.train.pace: 0.5 is not allowed; give a number from 1 to 1000")
    fails("pace = 0" .. link, "moe.train.pace: 0 is not allowed; give a number from 1 to 1000")
    fails("pace = 1001" .. link, "moe.train.pace: 1001 is not allowed")
    fails("pace = 'auto'" .. link, "moe.train.pace: 'auto' is not allowed")
    local function processes(_, core) core.processes = 2 end
    expect.failed(world.run(train "pace = 3", nil, nil, processes), 10,
      "moe.train.pace: 3 needs ranks that are threads of one process, and 2 processes were started")
    expect.fails(TINY .. "moe.infer { model = model(), ranks = 2, pace = 2 }", 10,
      "moe.infer.pace: 2 needs an emulated link")
    expect.fails(two("model = model()", 'run = { { "cpu", ranks = 2, pace = 2 } }'), nil,
      "experiment.run[1].pace: 2 needs an emulated link")
    -- Runs of a plan have no link, and so no pace.
    expect.fails(TINY .. "moe.plan { model = model { batch = 8, experts = 8 }, system = raf,\n"
      .. "cluster = moe.cluster.p4de { nodes = 1 } }:run('cpu', { pace = 2 })", 11,
      "moe.plan.run: unknown key 'pace'")
  end)

test("selectors of results do not mix executed runs that differ in routing", function()
  local w = expect.runs(two("model = model { routing = moe.workload 'zipf' { seed = p.b } }",
    CPU .. ", show = print"):gsub("return moe%.experiment", "local E = moe.experiment") .. [[

best = #moe.run(E):best { "iteration_ms" }.runs]])
  expect.equal(w.globals.best, 2)
end)

test("simulated runs of two entries, or of nodes of two sizes, have rows of their own", function()
  local w = expect.runs(TINY .. [[
return moe.experiment { name = "x", model = model { batch = 16, experts = 16 }, systems = { raf },
  cluster = moe.cluster.p4de { nodes = 2 }, run = { { "simulate", steps = 2 }, "simulate" } }]])
  assert(w.output:find("\n +1 +16  raf") and w.output:find("\n +2 +16  raf"), w.output)
  w = expect.runs(TINY .. [[
return moe.experiment { name = "x", over = { nodes = { 1, 2 } }, case = function(p) return {
  model = model(), systems = { raf }, cluster = moe.cluster.custom { nodes = p.nodes,
    devices_per_node = 4 / p.nodes, nic = { bytes_per_s = 1e9 }, intra = { bytes_per_s = 1e10 },
    device = { gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e11 } } } end }]])
  assert(w.output:find("\n +1 +4  raf") and w.output:find("\n +2 +4  raf"), w.output)
end)

test("points that are equal where they are executed share the run", function()
  local equal = {
    ["the model's name"] = two "model = model { name = 'm' .. p.b }",
    ["the cluster"] = two [[model = model(),
      cluster = moe.cluster[one and 'p4de' or 'p3dn'] { nodes = 2 }]],
    ["its type on a GPU"] = two "model = model { dtype = one and 'bf16' or 'f16' }",
    ["what is the default"] = two "model = model(one and {} or { ep = 2, capacity_factor = 1.25 })",
    ["an optimizer's defaults"] = two "model = model(), optimizer = one and {} or { lr = 0.1 }",
    ["what the entry replaces"] = two("model = model { layers = 2 * p.b, seq = 8 * p.b }",
      'run = { { "cpu", ranks = 2, model = { layers = 2, seq = 16 } } }'),
  }
  for what, text in pairs(equal) do
    local w = expect.runs(text)
    expect.equal(#w.executed, 1, what)
    expect.equal(#w.results.runs[1].points, 2, what)
  end
end)

test("a system's packing tells executed runs apart", function()
  local w = expect.runs(two([[model = model(), systems = { moe.system "lina" {
    moe.pass.priority {}, packing = { most = p.b } } }]]):gsub("systems = { raf }, ", ""), nil, nil,
    function(w) w.micro_ops = function() return { ffn_ms = 2, a2a_ms = 1, num = 1 } end end)
  expect.equal(#w.executed, 2)
end)

test("two runs do not write one checkpoint or record", function()
  local entry = ' { "cpu", ranks = 2, checkpoint_to = "m.ckpt" }'
  expect.fails(two("model = model()", "run = {" .. entry .. " }"):gsub("{ raf }",
    '{ raf, moe.system "tutel" {} }'), nil, "experiment.run[1].checkpoint_to: 'm.ckpt'", "raf",
    "tutel")
  expect.fails(two("model = model { layers = 2 * p.b }", "run = {" .. entry .. " }"), nil,
    "experiment.run[1].checkpoint_to: 'm.ckpt'", "run[1] at b = 1,", "run[1] at b = 2 would")
  local other = entry:gsub("m%.", "./m.")
  expect.fails(two("model = model()", "run = {" .. entry .. "," .. other .. " }"), nil,
    "experiment.run[2].checkpoint_to: './m.ckpt'")
  expect.runs(two("model = model()", "run = {" .. entry .. " }"))
  local train = "moe.train { model = model(), ranks = 2, %s }\n"
  for _, field in ipairs { "checkpoint_to", "record" } do
    local one = train:format(field .. " = 'a'")
    expect.fails(TINY .. one .. one, 11, "moe.train." .. field .. ": 'a'", "line 10")
  end
  expect.runs(TINY .. train:format "checkpoint_to = 'a'"
    .. train:format "resume_from = 'a', checkpoint_to = 'a'")
  expect.fails(TINY .. train:format "checkpoint_to = 'results.json'", 10,
    "moe.train.checkpoint_to: 'results.json'")
end)

test("a record is simulated once, whatever is shown of it", function()
  local w = expect.runs(TINY .. [[
return moe.experiment { name = "x", over = { layers = { 2, 4, 6, 8, 10 } }, run = { "simulate" },
  case = function(p) return { cluster = moe.cluster.p4de { nodes = 2 },
    model = model { layers = p.layers, batch = 16, experts = 16 },
    systems = { raf, moe.system "serial" { moe.pass.serial {} } } } end }]])
  expect.equal({ #w.results.runs, #w.simulated, #w.shown }, { 10, 10, 8 })
  for i, timelines in ipairs(w.shown) do
    assert(timelines == w.simulated[i], "another simulation is traced")
    expect.equal(timelines.options, { executor = "simulate", keep = "last", links = true })
  end
  expect.equal(w.simulated[9].options, { executor = "simulate" })
  w = expect.runs(TINY .. [[
return moe.experiment { name = "x", model = model(), systems = { raf },
  run = { { "cpu", ranks = 2, steps = 3 } } }]])
  -- An executed run is simulated when it is planned, and again after the rehearsal before it runs.
  expect.equal({ #w.simulated, #w.shown, w.rehearsed }, { 2, 2, 1 })
  assert(w.shown[1] == w.simulated[2])
end)

test("earlier results are kept once, before the first result, and it says where", function()
  local text = two "model = model()"
  local w = expect.runs(text, nil, nil, function(w) w.earlier = "3" end)
  expect.equal({ w.kept, w.warned }, { 1, { "the earlier results in out are now in out/3" } })
  expect.equal({ expect.runs(text).warned }, { {} })
  expect.equal(expect.runs(text, nil, "check").kept, nil)
end)

test("an experiment that is neither returned nor run is an error at its line", function()
  local text = two("model = model()"):gsub("return moe%.experiment", "local E = moe.experiment")
  expect.fails(text, 10, "experiment 'x'", "return it")
  expect.runs(text .. "\nmoe.run(E)")
end)

test("a system's label says what its passes and its packing chose", function()
  local function degrees(...)
    local log = {}
    for i, d in ipairs { ... } do
      log[i] = { op = "b" .. i, stage = "pipemoe", why = ("degree %d: forward"):format(d) }
    end
    return function(w) w.log = log end
  end
  local pipe = two("model = model()"):gsub("raf = moe.system \"raf\" {}",
    'raf = moe.system "p" { moe.pass.serial {} }')
  local w = expect.runs(pipe, nil, nil, degrees(4, 4))
  assert(w.output:find("\np (degree=4) ", 1, true), w.output)
  expect.equal(w.results.runs[1].degrees, { 4, 4 })
  w = expect.runs(pipe, nil, nil, degrees(4, 2))
  assert(w.output:find("\np (degree=4,2) ", 1, true), w.output)
  w = expect.runs(TINY .. [[
return moe.experiment { name = "x", model = model { batch = 16, experts = 16 },
  cluster = moe.cluster.p4de { nodes = 2 }, systems = { moe.system "lina" {} } }]], nil, nil,
    function(one)
      one.micro_ops = function(spec)
        return { ffn_ms = spec.model.ep < 16 and 2 or 1, a2a_ms = 1.5, num = 1 }
      end
    end)
  assert(w.output:find("lina (packing=2)", 1, true), w.output)
end)

test("an executor without precisions is named in recipes as simulate is", function()
  world.with_rows("executors", { { name = "null", doc = "no time", precisions = {}, gpu = false,
    kind = "executor" } }, function()
    local w = expect.runs(TINY .. [[
return moe.experiment { name = "x", run = { "null" }, systems = { raf },
  model = model { batch = 16, experts = 16 }, cluster = moe.cluster.p4de { nodes = 2 } }]])
    expect.equal(w.simulated[1].options, { executor = "null", keep = "last", links = true })
    expect.equal(w.results.runs[1].executor, "null")
  end)
end)
