-- Steps of several micro-batches: executed, they are the steps of one rank that has the rows of
-- micro-batch m and rank r as its micro-batch m ranks + r.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local function run(m, ranks, micro, system, clip_norm)
  return moe.train { model = m, ranks = ranks, steps = 3, precision = 'f64', system = system,
    init = 'reference', tokens = 'reference', grid = moe.grid { micro_batches = micro },
    optimizer = { name = 'adamw', clip_norm = clip_norm } }
end
local function apart(a, b)
  local worst = 0
  for _, key in ipairs { 'grad_l2', 'param_l2' } do
    for name, x in pairs(a[key]) do
      worst = math.max(worst, math.abs(x - b[key][name]) / math.max(1e-12, math.abs(x)))
    end
  end
  for i, loss in ipairs(a.losses) do worst = math.max(worst, math.abs(loss - b.losses[i])) end
  for s, layers in ipairs(a.moe) do
    for l, layer in ipairs(layers) do
      local other = b.moe[s][l]
      assert(layer.dropped == other.dropped, 'drops')
      for e, n in ipairs(layer.load) do assert(n == other.load[e], 'loads') end
      worst = math.max(worst, math.abs(layer.balance_loss - other.balance_loss))
    end
  end
  return worst
end
local P = moe.pass
local SYSTEMS = {
  plain = moe.system 'plain' {}, lancet = moe.system 'lancet' {}, tutel = moe.system 'tutel' {},
  fastermoe = moe.system 'fastermoe' {}, lina = moe.system 'lina_pipelining' {},
  megatron = moe.system 'megatron' {}, prophet = moe.system 'prophet' {},
  llep = moe.system 'llep' {}, flexmoe = moe.system 'flexmoe' {},
  recompute = moe.system 'recompute' { P.recompute {}, P.zero {} },
}
]]

local MODELS = {
  capacity = [[moe.model.gpt2_moe { vocab = 96, layers = 4, hidden = 16, heads = 2, seq = 8,
    batch_per_device = 2, experts = 4, gate = 'switch', capacity_factor = 1,
    balance_loss = { coefficient = 0.01 }, z_loss = 0.001 }]],
  bias = [[moe.model.deepseek_v3 { vocab = 96, layers = 3, dense_layers = 1, hidden = 16, heads = 2,
    q_rank = 8, kv_rank = 8, nope = 8, rotary = 4, value_dim = 8, experts = 8, k = 2,
    expert_ffn = 8, shared_ffn = 8, ffn = 24, seq = 8, batch_per_device = 2, capacity = 'none',
    router = { groups = 2, top_groups = 1 }, bias_balance = { rate = 0.001 } }]],
}

for name, model in pairs(MODELS) do
  test("every system adds up micro-batches as one rank does: " .. name, function()
    expect.plans(HEAD .. "local m = " .. model .. [[

local one = run(m, 1, 14, SYSTEMS.plain)
for name, system in pairs(SYSTEMS) do
  local d = apart(one, run(m, 2, 7, system))
  assert(d < 1e-9, name .. ': ' .. d)
end
]])
  end)
end

test("ranks that hold all experts add up micro-batches as one rank does", function()
  expect.plans(HEAD .. [[
local m = moe.model.mixtral_8x7b { vocab = 96, layers = 2, hidden = 16, heads = 4, kv_heads = 2,
  ffn = 24, expert_ffn = 24, seq = 8, batch_per_device = 1, experts = 4, k = 2, ep = 1,
  capacity = 'none' }
assert(apart(run(m, 1, 8, SYSTEMS.plain), run(m, 2, 4, SYSTEMS.megatron)) < 1e-9)
]])
end)

test("placements and rounds in groups that hold all experts train as plain steps do", function()
  expect.plans(HEAD .. [[
local m = moe.model.gpt2_moe { vocab = 96, layers = 4, hidden = 16, heads = 2, seq = 8, ep = 2,
  batch_per_device = 2, experts = 4, gate = 'switch', capacity_factor = 1 }
local plain = run(m, 4, 2, moe.system 'raf' {})
for _, name in ipairs { 'prophet', 'llep', 'flexmoe', 'fastermoe', 'lina_pipelining' } do
  for zero = 0, 1 do
    local d = apart(plain, run(m, 4, 2, moe.system(name) { zero = zero }))
    assert(d < 1e-12, name .. ' with zero = ' .. zero .. ': ' .. d)
  end
end
]])
end)

test("gradients are scaled down to a norm of all ranks' gradients together", function()
  expect.plans(HEAD .. [[
local function model(ep)
  return moe.model.gpt2_moe { vocab = 96, layers = 4, hidden = 16, heads = 2, seq = 8, ep = ep,
    batch_per_device = 2, experts = 4, gate = 'switch', capacity_factor = 1 }
end
local function norm(result)
  local sum = 0
  for _, l2 in pairs(result.grad_l2) do sum = sum + l2 ^ 2 end
  return math.sqrt(sum)
end
local free = run(model(1), 1, 4, SYSTEMS.plain)
local limit = norm(free) / 3
local one = run(model(1), 1, 4, SYSTEMS.plain, limit)
assert(math.abs(norm(one) / limit - 1) < 1e-5, norm(one) .. ' ' .. limit)
for _, system in ipairs { SYSTEMS.plain, SYSTEMS.lancet, SYSTEMS.recompute, SYSTEMS.megatron,
  SYSTEMS.prophet } do
  for ep = system == SYSTEMS.prophet and 2 or 1, 2 do
    local d = apart(one, run(model(ep), 2, 2, system, limit))
    assert(d < 1e-9, system.name .. ' ' .. ep .. ': ' .. d)
  end
end
assert(apart(one, run(model(2), 2, 2, SYSTEMS.llep, limit)) < 1e-9)
assert(apart(free, run(model(1), 1, 4, SYSTEMS.plain, limit * 6)) < 1e-9)
]])
end)

test("a step's memory is that of its micro-batches in turn, whatever their number", function()
  expect.plans(HEAD .. [[
local function memory(micro)
  local plan = moe.plan { model = moe.model.gpt2_moe { vocab = 512, layers = 4, hidden = 64,
      heads = 4, seq = 32, batch_per_device = 2, experts_per_device = 1, gate = 'switch' },
    cluster = moe.cluster.p4de { nodes = 1 }, system = SYSTEMS.lancet,
    grid = moe.grid { micro_batches = micro } }
  local m = plan:memory()
  return m.arena_bytes, plan:simulate().iteration_ms
end
local two, ms2 = memory(2)
for _, micro in ipairs { 3, 6, 9 } do
  local bytes, ms = memory(micro)
  assert(math.abs(bytes / two - 1) < 0.05, bytes .. ' bytes for ' .. two)
  assert(ms < ms2 * micro / 2, ms .. ' ms for ' .. ms2)
end
]])
end)

test("each op runs once per micro-batch, in turn, but for sums over ranks and updates", function()
  expect.plans(HEAD .. [[
local function plan(micro, system)
  return moe.plan { model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 16, heads = 2,
      seq = 8, batch_per_device = 2, experts_per_device = 1, gate = 'switch',
      routing = moe.workload 'zipf' { s = 0.5 } },
    cluster = moe.cluster.p4de { nodes = 1 }, system = system,
    grid = moe.grid { micro_batches = micro } }
end
for name, system in pairs(SYSTEMS) do
  local one, three = plan(1, system), plan(3, system)
  local times, last = {}, 0
  for _, op in ipairs(three:order 'compute') do
    local base, micro = op:match '^(.-)@(%d+)$'
    times[base or op] = (times[base or op] or 0) + 1
    if micro then assert(tonumber(micro) >= last, op) end
    last = tonumber(micro) or last
  end
  for _, op in ipairs(one:order 'compute') do
    assert(times[op] == 3 or times[op] == 1, name .. ' ' .. op)
  end
  assert(times['wte.sgd'] == 1 and times['b1.moe.gate'] == 3)
  assert(#three:explain().text > 0 and #three:spans() > #one:spans())
end
]])
end)

test("a grid says how a batch becomes micro-batches, or why it cannot", function()
  expect.plans(HEAD .. [[
local function sizes(model, grid)
  model.vocab, model.layers, model.hidden, model.heads, model.seq = 64, 2, 16, 2, 8
  model.experts, model.gate = 4, 'switch'
  local plan = moe.plan { model = moe.model.gpt2_moe(model), system = SYSTEMS.plain,
    cluster = moe.cluster.p4de { nodes = 1, devices_per_node = 2 }, grid = moe.grid(grid) }
  return plan.spec.model.batch_per_device, plan.spec.model.micro_batches
end
local function is(model, grid, each, micro)
  local b, m = sizes(model, grid)
  assert(b == each and m == micro, b .. ' ' .. m)
end
is({ batch = 16 }, { micro_batches = 4 }, 2, 4)
is({ batch_per_device = 2 }, { micro_batches = 4 }, 2, 4)
is({ batch_per_device = 2 }, { global_batch = 12 }, 2, 3)
for message, wrong in pairs {
  ['grid.global_batch: 10 sequences are no whole number of micro-batches of 2 sequences on each of '
    .. '2 ranks; give a multiple of 4'] = { { batch_per_device = 2 }, { global_batch = 10 } },
  ['give the model\'s batch_per_device, or micro_batches'] = { { batch = 8 },
    { global_batch = 8 } },
  ['grid.micro_batches: model.batch = 8 sequences cannot be spread evenly over 2 ranks in 3 '
    .. 'micro-batches; give a multiple of 6'] = { { batch = 8 }, { micro_batches = 3 } },
  ['grid.dp: 4 does not fit 2 ranks, on which it is 2'] = { { batch = 8 }, { dp = 4 } },
  ['grid.ep: is 2, but model.ep is 1; omit one'] = { { batch = 8, ep = 1 }, { ep = 2 } },
  ['grid.pp: 3 does not divide the number of ranks, 2; give a divisor'] = { { batch = 8 },
    { pp = 3 } },
} do
  local ok, why = pcall(sizes, wrong[1], wrong[2])
  why = tostring(type(why) == 'table' and why.message or why)
  assert(not ok and why:find(message, 1, true), why)
end
]])
end)

test("what is recomputed changes memory and no bit of the training", function()
  expect.plans([[
local moe = require 'moe'
local function run(what)
  return moe.train { ranks = 2, steps = 2, precision = 'f64', init = 'reference',
    tokens = 'reference', optimizer = { name = 'sgd' }, grid = moe.grid { micro_batches = 2 },
    system = moe.system 'raf_rows' { recompute = what },
    model = moe.model.mixtral_8x7b { vocab = 96, layers = 3, hidden = 16, heads = 4, kv_heads = 2,
      seq = 16, batch_per_device = 2, experts = 4, k = 2, ffn = 24, expert_ffn = 24,
      capacity = 'none' } }
end
local none = run 'none'
for _, what in ipairs { 'blocks', 'norms', 'activations', 'attention', 'experts',
    'norms+activations' } do
  local some = run(what)
  assert(some.digest == none.digest and some.peak_bytes < none.peak_bytes, what)
end
]])
  expect.plans([[
local moe = require 'moe'
moe.plan { model = moe.model.gpt2_moe { layers = 2, experts = 2, hidden = 16, heads = 2, seq = 8,
    batch_per_device = 1 },
  cluster = moe.cluster.a100 { nodes = 1, devices_per_node = 2 },
  system = moe.system 'raf' { recompute = 'norms+all' } }]],
    "recompute: 'norms+all' is not allowed; give one of: none, blocks, norms")
end)
