-- What tp of a grid does to a plan; that it computes what one rank does is tests/mesh_matrix.lua's.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local function model(fields)
  local t = { vocab = 64, layers = 2, hidden = 16, heads = 4, seq = 8, batch_per_device = 3,
    experts = 4, capacity = 'none', dtype = 'f32' }
  for key, value in pairs(fields or {}) do t[key] = value end
  if t.capacity_factor then t.capacity = nil end
  return moe.model.gpt2_moe(t)
end
local function cluster(n)
  return moe.cluster.custom { nodes = 1, devices_per_node = n, nics_per_node = 1,
    nic = { bytes_per_s = 1e9, latency_us = 1 }, intra = { bytes_per_s = 1e9, latency_us = 1 },
    device = { gemm_flops_per_s = 1e13, vector_flops_per_s = 1e12, memory_bytes_per_s = 1e12 } }
end
local function bytes(spans)
  local sum, n = 0, {}
  for _, e in ipairs(spans) do
    if e.op:find '_all' or e.op:find '%.rows' or e.op:find '%.sum' or e.op:find '_parts'
        or e.op:find '_shift' then
      sum, n[e.op] = sum + e.bytes, (n[e.op] or 0) + 1
    end
  end
  return sum, n
end
]]

test("collectives of activations carry the bytes of the closed forms, simulated and executed",
  function()
  expect.plans(HEAD .. [[
for _, axes in ipairs { { 2, 1 }, { 4, 1 }, { 1, 2 }, { 2, 2 }, { 1, 4, 'p2p' },
    { 2, 2, 'p2p' } } do
  local tp, cp, comm = unpack(axes)
  local grid = moe.grid { tp = tp, cp = cp, cp_comm = comm, ep = tp * cp }
  local p = moe.plan { model = model(), grid = grid, system = moe.system 'raf' {},
    optimizer = { name = 'sgd' }, cluster = cluster(tp * cp) }
  -- Of rows: attention of both blocks, the dense feed-forward of one and the head gather them and
  -- sum them up (the embedding sums, the head gathers), forward, and backward the other way round.
  -- With cp, keys and values of both blocks are gathered, and their gradients summed.
  local rows, sums = 3 * 8 * 16 * 4, 3 * 8 * 2 * tp * 4
  local want = ((2 * (2 + 1) + 2) * 2 * rows + sums) / cp * (tp - 1) / tp
    + 2 * 2 * 2 * rows / tp * (cp - 1) / cp
  -- In a ring they go on cp - 1 times forward and backward, their gradients cp times.
  if comm then want = want + 2 * 2 * rows / tp / cp * cp end
  local simulated, n = bytes(p:spans())
  local r = p:run('cpu', { steps = 1, tokens = 'reference' })
  local executed = bytes(r:spans {})
  assert(simulated == want and executed == want, ('%g %g %g'):format(simulated, executed, want))
  local op = tp > 1 and 'b0.attn.rows' or comm and 'b0.attn.kv_shift0' or 'b0.attn.k_parts'
  assert(n[op] == 1 and (comm or n[op .. '.dx'] == 1))
end
]])
end)

test("ranks over etp get the rows of each other and return sums, simulated and executed", function()
  expect.plans(HEAD .. [[
for _, axes in ipairs { { 2, 1 }, { 2, 2 }, { 4, 2 } } do
  local etp, ep = unpack(axes)
  local p = moe.plan { model = model(), grid = moe.grid { etp = etp, ep = ep },
    system = moe.system 'raf' {}, cluster = cluster(etp * ep) }
  -- All slots of the rank's experts, which are 4 / ep of 24 slots for each of ep ranks, go to the
  -- others and come back, forward and backward.
  local want = 4 * (4 / ep * ep * 24) * 16 * 4 * (etp - 1)
  local simulated = bytes(p:spans())
  local executed = bytes(p:run('cpu', { steps = 1, tokens = 'reference' }):spans {})
  assert(simulated == want and executed == want, ('%g %g %g'):format(simulated, executed, want))
end
local ok, why = pcall(moe.plan, { model = model(), grid = moe.grid { etp = 2 },
  cluster = cluster(2), system = moe.system 'pipemoe' {} })
assert(not ok and tostring(why):find("stage 'pipemoe': with etp = 2", 1, true), tostring(why))
]])
end)

test("a recipe's own block splits its products, and is told of rows that it lacks", function()
  local text = HEAD .. [[
local function net(attend)
  return moe.model.define { name = attend and 'wrong' or 'net', params = {}, build = function(b)
    local x = b:embedding { hidden = 16 }
    b:block(1)
    local all = b:all_rows(x, 'rows')
    local q = b:op { kind = 'linear', name = 'qkv', inputs = { attend and x or all,
      b:parameter { name = 'qkv.w', shape = { 48, 16 }, split_axis = 1, blocks = 3 } },
      seg = 'attn' }
    local c = b:op { kind = 'attend', name = 'core', inputs = { q },
      attrs = { heads = b:own(4, 'heads') } }
    local y = b:op { kind = 'linear', name = 'out', inputs = { c,
      b:parameter { name = 'out.w', shape = { 16, 16 }, split_axis = 2 } } }
    x = b:op { kind = 'add', name = 'sum', inputs = { b:sum_to_own_rows(y, 'out.sum'), x } }
    x = b:experts(x, { ffn = 16, residual = x })
    b:block()
    b:head(x, {})
  end }
end
local makers = { [true] = net(true), [false] = net(false) }
local function run(tp, attend)
  return moe.train { ranks = tp, steps = 2, precision = 'f64', init = 'reference',
    tokens = 'reference', optimizer = { name = 'sgd' }, grid = moe.grid { tp = tp, ep = 1 },
    model = makers[attend or false] { vocab = 64, seq = 8, batch_per_device = 2, experts = 2,
      capacity = 'none' } }
end
]]
  expect.plans(text .. [[
local one, two = run(1), run(2)
for name, norm in pairs(one.param_l2) do
  assert(math.abs(norm - two.param_l2[name]) < 1e-12, name)
  assert(math.abs(one.grad_l2[name] - two.grad_l2[name]) < 1e-12, name)
end
assert(math.abs(one.losses[2] - two.losses[2]) < 1e-12)
]])
  expect.plans(text .. "run(2, true)", "op 'b0.core' (attend) reads 4 of the 8 tokens")
end)

test("ranks that share sequences route their tokens together, as one rank does", function()
  local text = HEAD .. [[
local function case(gate, k, grid, routing)
  return { model = model { gate = gate, k = k, seq = 16, capacity_factor = 0.5, routing = routing },
    system = moe.system 'raf' {}, grid = moe.grid(grid) }
end
local function run(gate, k, ranks, grid)
  local t = case(gate, k, grid)
  t.ranks, t.steps, t.precision, t.init, t.tokens = ranks, 3, 'f64', 'reference', 'reference'
  t.optimizer = { name = 'sgd', lr = 0.3 }
  return moe.train(t)
end
local function apart(a, b)
  local most = math.abs(a.losses[3] - b.losses[3])
  for name, x in pairs(a.param_l2) do most = math.max(most, math.abs(x - b.param_l2[name])) end
  return most
end
]]
  expect.plans(text .. [[
for gate, k in pairs { switch = 1, top_k = 2, bpr = 1, expert_choice = 1, hash = 1,
    random = 2 } do
  local one = run(gate, k, 1, { micro_batches = 1, ep = 1 })
  for _, axes in ipairs { { 2, 1 }, { 1, 2 }, { 2, 2 } } do
    local many = run(gate, k, axes[1] * axes[2], { tp = axes[1], cp = axes[2],
      route_over = gate ~= 'expert_choice' and 'sequence' or nil })
    assert(apart(one, many) < 1e-12, gate .. axes[1] .. axes[2])
  end
end
assert(apart(run('switch', 1, 1, { ep = 1 }), run('switch', 1, 2, { tp = 2 })) > 1e-6)
local function dropped(over)
  local t = case('top_k', 2, { tp = 2, route_over = over }, moe.workload 'zipf' { s = 1.2 })
  t.cluster = cluster(4)
  return moe.plan(t):info().assumed_routing.dropped
end
assert(dropped 'rank' > 0 and dropped 'sequence' <= dropped 'rank')
]])
  expect.plans(text .. "run('expert_choice', 1, 2, { tp = 2, route_over = 'rank' })",
    "model.route_over = 'rank': the gate 'expert_choice' needs the whole batch")
  expect.plans(text .. "moe.grid { route_over = 'rank' }",
    "grid.route_over: has no effect with tp = 1 and cp = 1")
end)

test("what tp does not divide is refused by name", function()
  local function fails(grid, text, fields)
    expect.plans(HEAD .. ([[
moe.train { model = model { %s }, ranks = 4, steps = 1, tokens = 'reference',
  optimizer = { name = 'sgd' }, grid = moe.grid { %s } }]]):format(fields or "", grid), text)
  end
  fails("tp = 3", "grid.tp: 3 does not divide the number of ranks, 4; give a divisor")
  fails("tp = 4", "model.tp = 4: does not divide the 2 heads; give a divisor", "heads = 2")
  fails("tp = 4", "model.tp = 4, allowed: a divisor of the 4 ranks, and of model.seq = 6",
    "seq = 6")
  fails("tp = 4", "axis 1 (from 1) of the parameter 'wte' [66,16] cannot be divided", "vocab = 66")
  fails("tp = 2, dp = 4", "grid.dp: 4 does not fit 4 ranks, on which it is 2")
end)

test("a head that several ranks hold counts once in the norm of the gradients", function()
  expect.plans([[
local moe = require 'moe'
local function run(ranks, grid, zero)
  return moe.train { model = moe.model.mixtral_8x7b { vocab = 96, layers = 2, hidden = 16,
      heads = 4, kv_heads = 1, seq = 16, batch = 8, experts = 4, k = 2, ffn = 24, expert_ffn = 8,
      ep = 1 }, ranks = ranks, steps = 2, precision = 'f64', init = 'reference',
    tokens = 'reference', grid = moe.grid(grid), system = moe.system 'plain' { zero = zero },
    optimizer = { name = 'sgd', lr = 0.5, momentum = 0, clip_norm = 0.01 } }
end
local one = run(1, { micro_batches = 1 })
for _, many in ipairs { run(4, { tp = 2 }), run(2, { tp = 2 }, 1), run(4, { tp = 4 }, 1) } do
  for name, x in pairs(one.param_l2) do
    assert(math.abs(x - many.param_l2[name]) <= 1e-9 * x, name)
  end
end
]])
end)

test("rates are of the whole model and of data sheets' peaks, on any grid", function()
  expect.plans [[local moe = require "moe"
local function rates(gpu, dtypes, grid, detail)
  local m = moe.model.mixtral_8x7b { layers = 4, seq = 512, batch_per_device = 1, dtypes = dtypes }
  local s = moe.plan { model = m, cluster = moe.cluster[gpu] { nodes = 1 }, detail = detail,
    system = moe.system "megatron" {}, grid = grid and moe.grid(grid) }:simulate()
  assert(math.abs(s.model_tflops / (3 * m:flops() * s.tokens_per_s / 1e12) - 1) < 1e-9)
  return s.model_tflops / s.mfu
end
-- NVIDIA's data sheets, dense.
for gpu, peak in pairs { h100 = 989, h200 = 989, a100 = 312, b200 = 2250 } do
  assert(math.abs(rates(gpu) / peak - 1) < 1e-9, gpu)
end
assert(math.abs(rates("h100", "megatron_fp8") / 1979 - 1) < 1e-9)
assert(math.abs(rates("h100", { activations = "tf32" }) / 494.7 - 1) < 1e-9)
for _, grid in ipairs { { tp = 2 }, { cp = 2, ep = 4 }, { pp = 2, ep = 4, micro_batches = 8 } } do
  rates("h200", nil, grid)
end
rates("h200", nil, { pp = 2, ep = 4, micro_batches = 8 }, "turns")]]
end)
