-- Lina's systems, models, packing controller and statistic of locality.
local expect = require "expect"
local test = require "test"

local HEAD = [[local moe = require "moe"
local cluster = moe.cluster.lina { nodes = 4 }
local function model(t) t.size = t.size or "transformer_xl" return moe.model.lina(t) end
]]

local function names(stages)
  local out = {}
  for i, s in ipairs(stages) do out[i] = s.name end
  return out
end

test("Lina's systems: the ablation adds a stage at a time, each gradient an all-reduce of its own",
  function()
    local w = expect.runs(HEAD .. [[
return moe.experiment { name = "x", model = model {}, cluster = cluster, systems = {
  moe.system "lina_baseline" {}, moe.system "lina_fixed" {}, moe.system "lina_priority" {},
  moe.system "lina_partition" {}, moe.system "lina_pipelining" {} } }]])
    local r = w.results.runs
    local expected = { {}, { "fixed" }, { "priority" }, { "priority", "chunked" },
      { "priority", "chunked", "micro_ops" } }
    for i, stages in ipairs(expected) do expect.equal(names(r[i].stages), stages) end
    expect.equal(r[1].all_reduce.bucket_bytes, 25 * 2 ^ 20)
    for i = 2, 5 do
      expect.equal(r[i].all_reduce, { lane = "comm_reduce", place = "ready", bucket_bytes = 0 })
    end
    expect.equal(r[4].stages[2].options.which, "all_reduce")
    expect.equal(r[5].stages[3].options.bytes, 30e6)
  end)

test("Lina's models have an expert per device in every FFN, and sizes with bands", function()
  local w = expect.runs(HEAD .. [[
return moe.experiment { name = "x", model = model { size = "gpt2" }, cluster = cluster,
  systems = { moe.system "raf" {} } }]])
  local run = w.results.runs[1]
  expect.equal(run.parameters.experts, 16)
  expect.equal(run.parameters.moe_every, 1)
  expect.equal(run.parameters.dtype, "tf32")
  local assumed = {}
  for _, a in pairs(run.assumed) do assumed[a.name] = true end
  for _, name in ipairs { "model.batch_per_device", "model.capacity_factor",
    "cluster.intra.bytes_per_s" } do
    assert(assumed[name], name .. " is not assumed")
  end
  expect.fails(HEAD .. "model { size = 'gpt3' }", 4, "model.lina.size", "gpt2")
end)

-- Experts of a micro-op take 2 ms; its all-to-all 8 ms over all 16 devices, less in a smaller
-- group.
local function made_up(w)
  w.micro_ops = function(spec)
    return { ffn_ms = 2, a2a_ms = 8 * (spec.model.ep or spec.ranks) / spec.ranks, num = 1 }
  end
end

test("packing doubles the experts per device until they take as long as the all-to-all", function()
  local w = expect.runs(HEAD .. [[P = moe.lina.packing { model = model {}, cluster = cluster }]],
    nil, "run", made_up)
  local p = w.globals.P
  expect.equal({ p.n, p.ep, #p.trace, p.settled_step, p.exchange_ms }, { 4, 4, 3, 18, 4 })
  for i, t in ipairs(p.trace) do
    expect.equal({ t.n, t.a2a_ms, t.step }, { 2 ^ (i - 1), 8 / 2 ^ (i - 1), 6 + 4 * i })
  end
end)

test("packing stays below its most and starts when it is told to", function()
  local w = expect.runs(HEAD .. [[
P = moe.lina.packing { model = model {}, cluster = cluster, most = 2, begin_step = 0, every = 1 }
]], nil, "run", made_up)
  expect.equal({ w.globals.P.n, w.globals.P.settled_step }, { 2, 1 })
  expect.fails(HEAD .. "moe.lina.packing { model = model {}, cluster = cluster, most = 0 }", 4,
    "most")
end)

test("system lina plans with the experts that its packing chose, and says what it saw", function()
  local w = expect.runs(HEAD .. [[
return moe.experiment { name = "x", model = model {}, cluster = cluster, systems = {
  moe.system "lina" {}, moe.system "lina_pipelining" {},
  moe.system "mine" { moe.pass.serial {}, packing = { most = 2 } } } }]], nil, "run", made_up)
  local r = w.results.runs
  expect.equal({ r[1].packing.n, r[1].packing.ep, r[3].packing.n }, { 4, 4, 2 })
  assert(r[2].packing == nil)
  expect.equal(names(r[1].stages), names(r[2].stages))
  local eps = {}
  for i, spec in ipairs(w.plans) do eps[i] = spec.model.ep or 0 end
  expect.equal({ eps[1], eps[2], eps[3], eps[4] }, { 16, 8, 4, 4 })
end)

test("what does not fit comes from the host, and goes there, once per step", function()
  local w = expect.runs(HEAD .. [[P = moe.lina.packing { model = model {}, cluster = cluster,
  host_bytes_per_s = 1e9 }]], nil, "run", function(w)
    made_up(w)
    w.peak_bytes = function() return math.floor(39.39 * 2 ^ 30) + 1e9 end
  end)
  expect.equal({ w.globals.P.offload_bytes, w.globals.P.offload_ms }, { 1e9, 2000 })
end)

test("the capacity factor without drops is that of the largest load of all batches", function()
  local w = expect.runs([[local moe = require "moe"
F = moe.lina.capacity_factor { routing = moe.workload "zipf" {}, ranks = 2, tokens = 8,
  experts = 4, k = 2, layers = 3, batches = 2, step = 4 }]], nil, nil, function(_, core)
    core.loads = function(_, q)
      local most = q.step == 5 and q.layer == 3 and 9 or 5
      return { { 4, 4, 4, 4 }, { 1, most, 15 - most, 0 } }
    end
  end)
  assert(math.abs(w.globals.F / (10 * 4 / (2 * 8)) - 1) < 1e-8, w.globals.F)
end)

test("locality is the share of tokens on the experts most popular in their group", function()
  -- Choices of a rank's six tokens in each layer, from 0; -1 is none.
  local chosen = { { 0, 0, 0, 1, 1, -1 }, { 2, 2, 1, 0, 1, 1 }, { 0, 0, 0, 0, 0, 0 } }
  local asked = {}
  local w = expect.runs([[local moe = require "moe"
R = moe.lina.locality { routing = moe.workload "zipf" {}, ranks = 2, tokens = 6, experts = 3,
  k = 1, layers = 3, batches = 2, step = 4 }]], nil, nil, function(_, core)
    core.choices = function(_, q)
      asked[#asked + 1] = ("%d.%d.%d"):format(q.step, q.rank, q.layer)
      return chosen[q.layer]
    end
  end)
  expect.equal(w.globals.R.layers, { { layer = 2, share = { 0.6, 1 } },
    { layer = 3, share = { 1, 1 } } })
  expect.equal(w.globals.R.share, { (4 * 3 + 4 * 6) / (4 * 11), 1 })
  expect.equal(table.concat(asked, " "),
    "4.1.1 4.1.2 4.1.3 4.2.1 4.2.2 4.2.3 5.1.1 5.1.2 5.1.3 5.2.1 5.2.2 5.2.3")
end)
