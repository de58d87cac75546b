-- Models, clusters, systems and options: what is checked, and what the core gets.
local expect = require "expect"
local test = require "test"

local function model(fields)
  return 'local moe = require "moe"\nlocal m = moe.model.gpt2_moe { layers = 2, hidden = 32, '
    .. "heads = 4, seq = 16, vocab = 256, " .. fields .. " }\n"
end

local function train(fields, more)
  return model(fields) .. ("moe.train { model = m, ranks = 2, %s }"):format(more or "")
end

test("batch and batch_per_device: one of the two", function()
  expect.fails(model "batch = 2, batch_per_device = 2, experts = 2", 2,
    "give either batch or batch_per_device, not both")
  expect.fails(model "experts = 2", 2, "batch or batch_per_device, neither is given")
end)

test("experts and experts_per_device: one of the two", function()
  expect.fails(model "batch = 2, experts_per_device = 2, experts = 2", 2, "not both")
  expect.fails(model "batch = 2", 2, "experts or experts_per_device, neither is given")
end)

test("the Lancet paper's models are the artifact's, or those of the print", function()
  local w = expect.runs [[
local moe = require "moe"
local function lancet(t) return moe.model.lancet(t) end
S, L = lancet { size = "S", gpu = "p3dn" }, lancet { size = "L", gpu = "p4de" }
P, L8 = lancet { size = "L", gpu = "p4de", reading = "print", gate = "top2", capacity = "none" },
  lancet { size = "L", gpu = "p4de", reading = "print_l8" } ]]
  local g = w.globals
  expect.equal({ g.S.layers, g.S.batch_per_device, g.S.dtype, g.S.heads, g.S.capacity_factor },
    { 12, 16, "f32", 16, 1 })
  expect.equal({ g.L.hidden, g.L.batch_per_device, g.L.dtype, g.L.moe_first },
    { 1024, 24, "tf32", true })
  expect.equal({ g.P.batch_per_device, g.P.dtype, g.P.gate, g.P.capacity, g.P.moe_first },
    { 48, "f16", "top2", "none", false })
  expect.equal({ g.L8.batch_per_device, g.L8.assumed["model.lancet.capacity_factor"].hi }, { 8, 2 })
  expect.fails('local moe = require "moe"\nmoe.model.lancet { size = "M", gpu = "p4de" }', 2,
    "model.lancet.size: 'M' is not allowed; give one of: L, S")
  expect.fails('local moe = require "moe"\nmoe.model.lancet { size = "S", gpu = "p4de", '
    .. "layrs = 2 }", 2, "unknown key 'layrs'. Did you mean 'layers'?")
end)

test("capacity and capacity_factor: at most one", function()
  expect.fails(model "batch = 2, experts = 2, capacity = 'none', capacity_factor = 1", 2,
    "either capacity or capacity_factor")
  expect.fails(model "batch = 2, experts = 2, capacity = 'non'", 2, "Did you mean 'none'?")
  expect.fails(model "batch = 2, experts = 2, capacity = 1.5", 2,
    "capacity: 1.5 is not allowed; give 'none', or capacity_factor = 1.5 for a bound")
end)

test("all keys that a table may not have are named at once, with what they are here", function()
  local w = expect.fails(model "batchh = 2, experts = 2, capcity = 'none', zzz = 1, tp = 2", 2,
    "unknown keys 'batchh' (did you mean 'batch'?), 'capcity' (did you mean 'capacity'?), "
    .. "'tp' (products, and the rows between them, are split over ranks by `grid = moe.grid { tp = "
    .. "N }`), 'zzz'; have: attention, balance_loss, ")
  expect.equal(select(2, w.message:gsub("have: ", "")), 1)
  expect.fails(model "batch = 2, experts = 2, gradient_checkpointing = true", 2,
    "made again by `recompute = 'blocks'` of moe.system")
end)

test("numbers that are no numbers, fractions and texts are refused with what is allowed", function()
  for _, bad in ipairs { "0/0", "1/0", "2.5", "'4'", "{}", "0", "1e9" } do
    expect.fails(model("batch = 2, experts = 2, moe_every = " .. bad), 2,
      "model.gpt2_moe.moe_every: ", "is not allowed; give an integer from 1 to 10000")
  end
end)

test("the whole batch and all experts divide over the ranks", function()
  expect.fails(train "batch = 3, experts = 2", 2,
    "model.batch: 3 sequences cannot be spread evenly over")
  expect.fails(train "batch = 2, experts = 3", 2,
    "model.experts: 3 experts cannot be spread evenly over 2 ranks; give a multiple, or give ep, "
    .. "the number of ranks that hold all experts together, such as ep = 1")
  expect.runs(train "batch = 2, experts = 3, ep = 1")
  local w = expect.runs(train "batch = 6, experts_per_device = 3")
  expect.equal(w.plans[1].model.batch_per_device, 3)
  expect.equal(w.plans[1].model.experts, 6)
end)

test("the gate's own number of choices stands, and contradicting it is refused", function()
  expect.equal(expect.runs(train "batch = 2, experts = 4, gate = 'top2'").plans[1].model.k, 2)
  expect.equal(expect.runs(train "batch = 2, experts = 4, gate = 'top_k', k = 3").plans[1].model.k,
    3)
  expect.fails(train "batch = 2, experts = 4, gate = 'top2', k = 3", 2,
    "model.gpt2_moe.k: is 3, but the gate 'top2' makes 2 choices per token")
end)

test("losses of the router and bias balancing reach the core, with their defaults", function()
  local function plan(fields)
    return expect.runs(train("batch = 2, experts = 4" .. fields)).plans[1].model
  end
  local plain = plan ""
  expect.equal({ plain.balance_loss == nil, plain.z_loss, plain.bias_balance == nil },
    { true, 0, true })
  local m = plan ", balance_loss = { coefficient = 0.01 }, z_loss = 0.001, bias_balance = {}"
  expect.equal(m.balance_loss, { coefficient = 0.01, count = "choices", over = "rank" })
  expect.equal({ m.z_loss, m.bias_balance.rate }, { 0.001, 0.001 })
  expect.fails(train "batch = 2, experts = 4, balance_loss = {}", 2,
    "balance_loss.coefficient: is missing")
  expect.fails(train "batch = 2, experts = 4, balance_loss = 0.01", 2,
    "model.gpt2_moe.balance_loss: 0.01 is not allowed; give a table")
  expect.fails(train "batch = 2, experts = 4, balance_loss = { coefficient = 1, over = 'node' }", 2,
    "balance_loss.over: 'node' is not allowed; give one of: rank, all")
  expect.fails(train "batch = 2, experts = 4, bias_balance = { speed = 1 }", 2,
    "bias_balance: unknown key 'speed'")
end)

test("slots in use follow capacity factor, choices and experts", function()
  local function fill(fields) return expect.runs(train(fields)).plans[1].fill end
  expect.equal(fill "batch = 2, experts = 4, capacity_factor = 1.25", 0.8)
  expect.equal(fill "batch = 2, experts = 4, capacity_factor = 0.5", 1)
  expect.equal(fill "batch = 2, experts = 4, gate = 'top2', capacity = 'none'", 0.5)
  expect.equal(fill "batch = 2, experts = 4, gate = 'expert_choice'", 1)
end)

test("a model may say how full its slots are; what changes the slots takes that back", function()
  local function fill(fields) return expect.runs(train(fields)).plans[1].fill end
  expect.equal(fill "batch = 2, experts = 4, fill = 0.55", 0.55)
  for _, bad in ipairs { "0", "1.01", "-1" } do
    expect.fails(model("batch = 2, experts = 4, fill = " .. bad), 2,
      "model.gpt2_moe.fill: " .. bad .. " is not allowed; give a number from 1e-06 to 1")
  end
  local function executed(change)
    local w = expect.runs(model "batch = 2, experts = 4, fill = 0.55" .. [[
return moe.experiment { name = "x", model = m, systems = { moe.system "raf" {} },
  run = { { "cpu", ranks = 2, model = { ]] .. change .. " } } } }")
    return w.executed[1].spec.fill
  end
  expect.equal(executed "layers = 4", 0.55)
  expect.equal(executed "capacity_factor = 2", 0.5)
  expect.equal(executed "gate = 'expert_choice'", 1)
  expect.equal(executed "capacity = 'none', fill = 0.2", 0.2)
end)

test("numbers of a model may be assumed, and are recorded", function()
  local w = expect.runs(train([[batch = 2, experts = 4,
    capacity_factor = moe.assumed { value = 1.25, lo = 1, hi = 2, why = "not in the paper" },
    k = moe.assumed { value = 1, lo = 1, hi = 2, why = "not in the paper" }, gate = "top_k"]]))
  expect.equal({ w.plans[1].model.capacity_factor, w.plans[1].model.k }, { 1.25, 1 })
  expect.fails(train("batch = 2, experts = 2", [[
link = { bytes_per_s = moe.assumed { value = 1e8, lo = 1e8, hi = 1e9, why = "x" } }]]), 3,
    "moe.train.link.bytes_per_s: a moe.assumed object is not allowed; give a number")
  expect.fails(model [[batch = 2, experts = 4, capacity_factor =
moe.assumed { value = 1, lo = 0, hi = 2, why = "x" }]], 3,
    "model.gpt2_moe.capacity_factor.lo: 0 is not allowed; give a number from 1e-06")
end)

test("an unknown gate is named with the nearest one", function()
  expect.fails(model "batch = 2, experts = 4, gate = 'swich'", 2, "unknown gate 'swich'",
    "Did you mean 'switch'?")
end)

local function cluster(fields)
  return [[
local moe = require "moe"
local m = moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2,
  experts_per_device = 2 }
local c = moe.cluster.custom { nodes = 2, devices_per_node = 2, ]] .. fields .. [[ }
moe.plan { model = m, cluster = c, system = moe.system "raf" {} }
]]
end

local DEVICE = "device = { gemm_flops_per_s = 5, memory_bytes_per_s = 7 }, "
local LINKS = "intra = { bytes_per_s = 1 }, nic = { bytes_per_s = 1 }"

test("a rate is given as achieved, or as a peak and the achieved share of it", function()
  local w = expect.runs(cluster("device = { peak_gemm_flops_per_s = 100, gemm_efficiency = 0.5, "
    .. "memory_bytes_per_s = 7 }, " .. LINKS))
  local device = w.plans[1].cluster.device
  expect.equal(device.gemm_flops_per_s, 50)
  expect.equal(device.vector_flops_per_s, 50)
  expect.equal(device.peak_gemm_flops_per_s, nil)
  expect.fails(cluster("device = { memory_bytes_per_s = 7 }, " .. LINKS), 4,
    "gemm_flops_per_s is missing; give it, or peak_gemm_flops_per_s and gemm_efficiency")
  expect.fails(cluster("device = { gemm_flops_per_s = 1, gemm_efficiency = 0.5, "
    .. "memory_bytes_per_s = 7 }, " .. LINKS), 4, "not both")
  expect.fails(cluster("device = { peak_gemm_flops_per_s = 1, memory_bytes_per_s = 7 }, " .. LINKS),
    4, "is missing")
end)

test("a device has rates by element type, and another type is refused", function()
  local function on(device, dtype)
    local text = cluster("device = { name = 'it', " .. device .. ", memory_bytes_per_s = 7 }, "
      .. LINKS)
    return dtype and (text:gsub("experts_per_device", ("dtype = '%s', %%0"):format(dtype), 1))
      or text
  end
  local peaks = "gemm_efficiency = 0.5, peak_gemm_flops_per_s = { f32 = 10, tf32 = 80, f16 = 160 }"
  for dtype, rate in pairs { f32 = 5, tf32 = 40, f16 = 80 } do
    local plan = expect.runs(on(peaks, dtype)).plans[1]
    expect.equal({ plan.cluster.device.gemm_flops_per_s, plan.model.dtype }, { rate, dtype })
    expect.equal(plan.cluster.device.vector_flops_per_s, 5)
  end
  expect.equal(expect.runs(on(peaks)).plans[1].cluster.device.gemm_flops_per_s, 80)
  expect.fails(on(peaks, "bf16"), 3, "dtype: 'bf16' has no rate on it (custom), which has f16, "
    .. "f32, tf32; give a type that it has or, as gemm_flops_per_s = { bf16 = ... }")
  expect.fails(on "gemm_flops_per_s = { f32 = 1 }", 2, "dtype: 'bf16' has no rate on it")
  expect.fails(on("gemm_flops_per_s = 3", "tf32"), 3, "'tf32' has no rate on it (custom), whose "
    .. "one rate is taken for f16, bf16 or f32")
  expect.fails(on "gemm_flops_per_s = {}", 4, "gemm_flops_per_s: has no rate; give", "bf16")
  expect.fails(on "gemm_flops_per_s = { f64 = 1 }", 4, "unknown key 'f64'")
  expect.fails(on "gemm_flops_per_s = { f16 = 0 }", 4, "gemm_flops_per_s.f16: 0 is not allowed")
  expect.fails(on "gemm_flops_per_s = { f16 = 1 }", 4, "vector_flops_per_s: is missing")
end)

test("a model states the types of its numbers by a set's name or one by one", function()
  local function plan(fields)
    return (cluster(DEVICE .. LINKS):gsub("experts_per_device", fields .. ", %0", 1))
  end
  local function types(fields)
    local of = expect.runs(plan(fields)).plans[1].model
    return { of.dtype, of.dtypes.weights, of.dtypes.gradients, of.dtypes.master }
  end
  expect.equal(types "dtypes = 'megatron_bf16'", { "bf16", "bf16", "f32", true })
  expect.equal(types "dtypes = 'f16_16'", { "f16" })
  local fp8 = DEVICE:gsub("gemm_flops_per_s = [^,]*", "gemm_flops_per_s = { bf16 = 9, fp8 = 18 }"
    .. ", vector_flops_per_s = 1")
  local function in_fp8(device, set)
    return (cluster(device .. LINKS):gsub("experts_per_device", ("dtypes = '%s', %%0"):format(set),
      1))
  end
  for set, products in pairs { megatron_fp8 = "fp8", megatron_fp8_block = "fp8_block" } do
    local run = expect.runs(in_fp8(fp8, set)).plans[1]
    expect.equal({ run.model.dtype, run.model.dtypes.products, run.cost.fp8_flops_per_s },
      { "bf16", products, 18 })
    expect.fails(in_fp8(DEVICE, set), 3, ("dtypes.products: '%s' has no rate"):format(products))
  end
  expect.plans([[
local moe = require "moe"
moe.train { ranks = 1, steps = 1, model = moe.model.gpt2_moe { layers = 2, hidden = 16, heads = 2,
  seq = 8, batch = 1, experts = 2, dtypes = "megatron_fp8" } }]],
    "recipe.lua:3: model.dtypes: products in fp8 are simulated only; ranks of the executor cpu")
  expect.equal(types "dtypes = { weights = 'bf16', master = true }",
    { "bf16", "bf16", "plain", true })
  expect.equal(types "dtype = 'f32'", { "f32" })
  expect.fails(plan "dtypes = 'megatron'", 3, "dtypes: 'megatron' is not allowed; give one of")
  expect.fails(plan "dtypes = { moments = 'int8' }", 3, "dtypes.moments: 'int8' is not allowed")
  expect.fails(plan "dtype = 'f32', dtypes = 'pure_f32'", 3,
    "give either dtype or dtypes, not both")
end)

test("a model counts its parameters and its operations per token", function()
  expect.plans([[
local m = require "moe".model.mixtral_8x7b { seq = 4096, batch_per_device = 1 }
local all, active = m:parameters()
assert(math.abs(all / 46.7e9 - 1) < 1e-3 and math.abs(active / 12.88e9 - 1) < 1e-3)
local each = m:flops {} - m:flops { seq = 2048 }
-- Scores and context of 32 heads of 128 numbers in 32 layers, with half of the pairs.
assert(math.abs(each / (32 * 2 * 2 * 4096 * 2048 / 2) - 1) < 1e-2, each)]])
  expect.plans([[
local m = require "moe".model.mixtral_8x7b { seq = 4096, batch_per_device = 1 }
m:flops { sequence = 1 }]], "recipe.lua:2: flops: unknown key 'sequence'")
end)

test("a cluster has a built-in stack or one of its own, of ops and operands that exist", function()
  local function plan(stack) return cluster(DEVICE .. LINKS .. ", stack = " .. stack) end
  local function own(ops)
    return plan(("{ host_launch_us = 3, host_op_us = 4, ops = %s }"):format(ops))
  end
  local w = expect.runs(plan "'eager_2021'")
  local c = w.plans[1].cluster
  expect.equal(c.stack.name, "eager_2021")
  expect.equal(c.stack.ops.layernorm, { { of = "x", kernels = 1, moves = 1 } })
  expect.equal(expect.runs(cluster(DEVICE .. LINKS)).plans[1].cluster.stack, nil)
  c = expect.runs(own "{ gelu = { { of = 'y', kernels = 2, moves = 3 } } }").plans[1].cluster
  expect.equal({ c.stack.name, c.stack.host_launch_us, c.stack.ops.gelu[1].moves },
    { "of the recipe", 3, 3 })
  expect.fails(plan "'eager'", 4, "cluster.stack: 'eager' is not allowed; give one of: "
    .. "deepseek, deepspeed_2021, eager_2021, fused, megatron, megatron_unfused, ours, raf_2023, "
    .. "tutel_2022")
  expect.fails(plan "3", 4, "cluster.stack: 3 is not allowed; give one of: deepseek, deepspeed_")
  expect.fails(plan "{ host_launch_us = 3, ops = {} }", 4, "cluster.stack.host_op_us: is missing")
  expect.fails(own "{ gelo = {} }", 4, "cluster.stack.ops: unknown key 'gelo'",
    "Did you mean 'gelu'?")
  expect.fails(own "{ gelu = { { of = 'z', kernels = 1, moves = 1 } } }", 4,
    "cluster.stack.ops.gelu[1].of: 'z' is not allowed; give one of: x, bias")
  expect.fails(own "{ gelu = { { of = 'masks', kernels = 1, moves = 1 } } }", 4, "'masks'")
  expect.fails(own "{ gelu = { { of = 'y', kernels = 1 } } }", 4, "gelu[1].moves: is missing")
  expect.fails(own "{ gelu = { { of = 'y', kernels = -1, moves = 1 } } }", 4,
    "cluster.stack.ops.gelu[1].kernels: -1 is not allowed")
  expect.fails(own "{ all_to_all = {} }", 4, "cluster.stack.ops: unknown key 'all_to_all'")
end)

test("links that something crosses must be there", function()
  expect.fails(cluster(DEVICE .. "nic = { bytes_per_s = 1 }"), 4, "intra is missing")
  expect.fails(cluster(DEVICE .. "intra = { bytes_per_s = 1 }"), 4, "nic is missing")
  expect.fails(cluster(DEVICE .. "intra = {}, nic = { bytes_per_s = 1 }"), 4,
    "cluster.intra: bytes_per_s is missing")
end)

test("an assumed constant's value is used and the constant is recorded by its path", function()
  local w = expect.runs([[
local moe = require "moe"
local c = moe.cluster.p4de { nodes = 2,
  nic = { bytes_per_s = moe.assumed { value = 3e9, lo = 2e9, hi = 4e9,
    why = "a guess" } } }
C = c
]])
  local c = w.globals.C
  expect.equal(c.nic.bytes_per_s, 3e9)
  expect.equal(c.assumed["cluster.p4de.nic.bytes_per_s"],
    { name = "cluster.nic.bytes_per_s", value = 3e9, lo = 2e9, hi = 4e9, why = "a guess" })
  assert(c.assumed["cluster.p4de.device.gemm_efficiency"])
end)

test("an assumed value lies in its band", function()
  expect.fails('local moe = require "moe"\nmoe.assumed { lo = 1, hi = 2,\n value = 3, why = "x" }',
    3, "value: 3 is not between lo = 1 and hi = 2")
end)

test("built-in clusters resolve, and what differs is replaced", function()
  for _, name in ipairs { "p4de", "p3dn" } do
    local w = expect.runs(expect.HEAD .. ("moe.plan { model = m, cluster = moe.cluster.%s { nodes "
      .. "= 3, nics_per_node = 2 }, system = moe.system 'raf' {} }"):format(name))
    local c = w.plans[1].cluster
    expect.equal(c.name, name)
    expect.equal(c.nics_per_node, 2)
    expect.equal(w.plans[1].ranks, 24)
    assert(c.device.gemm_flops_per_s < 312e12 and c.device.gemm_flops_per_s > 1e12)
  end
end)

test("a cluster and an emulated link say how links are shared", function()
  local spec = "moe.plan { model = m, cluster = %s, system = moe.system 'raf' {} }"
  local function cluster_of(text) return expect.runs(text).plans[1].cluster end
  local c = cluster_of(expect.HEAD .. spec:format("moe.cluster.p4de { nodes = 2 }"))
  expect.equal({ c.share, c.sharing_efficiency }, { "per_collective", 1 })
  c = cluster_of(expect.HEAD .. spec:format [[moe.cluster.p4de { nodes = 2, share = "per_flow",
    sharing_efficiency = moe.assumed { value = 0.7, lo = 0.5, hi = 1, why = "x" } }]])
  expect.equal({ c.share, c.sharing_efficiency }, { "per_flow", 0.7 })
  local function fails(fields, ...)
    expect.fails('local moe = require "moe"\nmoe.cluster.p4de { nodes = 2,\n' .. fields .. " }", 3,
      ...)
  end
  fails("share = 'per_flows'", "cluster.p4de.share: 'per_flows' is not allowed; give one of: ")
  expect.equal(c.overlap_slowdown, { gemm = 1, memory = 1, transfer = 1 })
  fails("overlap_slowdown = { gemm = 0.9 }",
    "overlap_slowdown.gemm: 0.9 is not allowed; give a number from 1 to 100")
  fails("sharing_efficiency = 0", "sharing_efficiency: 0 is not allowed; give a number from 1e-06")
  fails("sharing_efficiency = 1.01", "sharing_efficiency: 1.01 is not allowed")
  local link = "link = { bytes_per_s = 1e8, share = 'strict_priority', sharing_efficiency = 0.6 }"
  c = cluster_of(train("batch = 2, experts = 2", link))
  expect.equal({ c.share, c.sharing_efficiency }, { "strict_priority", 0.6 })
end)

test("the ranks of an emulated link may share nodes, with wires of their own inside", function()
  local sizes = "batch = 8, experts = 8"
  local function cluster_of(link)
    return expect.runs(train(sizes, "ranks = 4, link = " .. link)).plans[1].cluster
  end
  local c = cluster_of "{ bytes_per_s = 1e8, latency_us = 3 }"
  expect.equal({ c.nodes, c.devices_per_node, c.nic.bytes_per_s }, { 4, 1, 1e8 })
  c = cluster_of "{ bytes_per_s = 1e8, devices_per_node = 2, intra = { bytes_per_s = 1e9 } }"
  expect.equal({ c.nodes, c.devices_per_node, c.nics_per_node }, { 2, 2, 1 })
  expect.equal({ c.nic.bytes_per_s, c.intra.bytes_per_s, c.intra.latency_us }, { 1e8, 1e9, 0 })
  c = cluster_of "{ bytes_per_s = 1e8, latency_us = 3, devices_per_node = 4 }"
  expect.equal({ c.nodes, c.intra.bytes_per_s, c.intra.latency_us }, { 1, 1e8, 3 })
  expect.fails(train(sizes, "ranks = 4, link = { bytes_per_s = 1e8, devices_per_node = 3 }"), nil,
    "link.devices_per_node: 3 does not divide the number of ranks, 4")
end)

test("expert-parallel groups: experts per device are those of a group over its devices", function()
  local function model_of(fields, ranks)
    return expect.runs(train(fields, "ranks = " .. ranks)).plans[1].model
  end
  local m = model_of("batch = 8, experts = 8", 4)
  expect.equal({ m.ep, m.experts }, { 4, 8 })
  m = model_of("batch = 8, experts_per_device = 2, ep = 2", 4)
  expect.equal({ m.ep, m.experts }, { 2, 4 })
  m = model_of("batch = 8, experts = 2, ep = 2", 8)
  expect.equal({ m.ep, m.experts, m.batch_per_device }, { 2, 2, 1 })
  expect.fails(train("batch = 8, experts = 8, ep = 3", "ranks = 4"), nil,
    "ep: 3 does not divide the number of ranks, 4")
  expect.fails(train("batch = 8, experts = 6, ep = 4", "ranks = 4"), nil,
    "experts: 6 experts cannot be spread evenly over 4 ranks")
end)

test("systems: unknown names and keys, entries that are no passes", function()
  local head = 'local moe = require "moe"\n'
  expect.fails(head .. 'local s = moe.system "lancett" {}', 2, "'lancett'",
    "Did you mean 'lancet'?")
  expect.fails(head .. 'local s = moe.system "raf" {\n all_reduced = {} }', 3,
    "unknown key 'all_reduced'", "Did you mean 'all_reduce'?")
  expect.fails(head .. 'local s = moe.system "raf" { all_reduce = { lane = "com" } }', 2,
    "all_reduce.lane: 'com' is not allowed; give one of: comm, comm_reduce")
  expect.fails(head .. 'local s = moe.system "x" { moe.pass.serial }', 2,
    "[1]: a function is not allowed; give a pass: call its constructor")
  expect.fails(head .. 'local s = moe.system "a/b" {}', 2, "a name of letters")
  expect.fails(expect.HEAD .. 'local s = moe.system "raf"\nmoe.train { model = m, system = s }', 3,
    "moe.train.system: a function is not allowed; give a system")
end)

test("options of passes are checked", function()
  local head = 'local moe = require "moe"\nlocal p = moe.pass.'
  expect.fails(head .. "capacity_pipeline {\n degre = 2 }", 3, "unknown key 'degre'")
  expect.fails(head .. "capacity_pipeline { degree = 65 }", 2, "a number from 1 to 64")
  expect.fails(head .. "capacity_pipeline { degree = true }", 2, "true is not allowed")
  expect.fails(head .. "dw_schedule { overshoot = 'nevr' }", 2, "Did you mean 'never'?")
end)

test("what was assigned to an object after it was made is refused", function()
  local function fails(code, ...)
    expect.fails(expect.HEAD .. code .. [[
 return moe.experiment { name = "e", model = m, cluster = c, systems = { s } }]], 4, ...)
  end
  local objects = 'c = moe.cluster.p4de { nodes = 1 }\n'
    .. 'p = moe.pass.partition {} s = moe.system "x" { p }\n'
  fails(objects .. "m.layers = 8", "experiment.model.layers: was assigned after the model")
  fails(objects .. "m.nosuch = 8", "experiment.model.nosuch: was assigned")
  fails(objects .. "m.vocab = nil", "experiment.model.vocab: was assigned")
  fails(objects .. "c.nodes = 2", "experiment.cluster.nodes: was assigned after the cluster")
  fails(objects .. "c.device.launch_us = 0/0", "experiment.cluster.device.launch_us: was assigned")
  fails(objects .. "s.name = 'y'", "experiment.systems[1].name: was assigned after the system")
  fails(objects .. "p.options.parts = 1e300",
    "experiment.systems[1].passes[1].options.parts: was assigned after the pass")
  expect.fails(expect.HEAD .. objects
    .. "e = moe.experiment { name = 'e', model = m, cluster = c, systems = { s } } e.name = 'f'\n"
    .. "return e", nil, "experiment.name: was assigned after the experiment was made")
  expect.fails(expect.HEAD .. "m.layers = 8\nmoe.train { model = m }", 3, "moe.train.model.layers:")
end)

test("moe.best wants one option with a list", function()
  local head = 'local moe = require "moe"\nlocal b = moe.best('
  expect.fails(head .. "moe.pass.capacity_pipeline, { degree = 2 })", 2, "give one option a list")
  expect.fails(head .. "moe.pass.capacity_pipeline, { degree = {} })", 2, "give one option a list")
  expect.fails(head .. "moe.pass.capacity_pipeline, { a = { 1 }, b = { 2 } })", 2, "are both lists")
  expect.fails(head .. "moe.pass.capacity_pipeline {}, { degree = { 1 } })", 2,
    "the constructor of a pass")
  expect.fails(head .. "moe.pass.capacity_pipeline, { degree = { 1, 99 } })", 2, "from 1 to 64")
end)

test("a built-in cluster's links take each field that is given by itself", function()
  local function nic(text)
    return expect.runs(expect.HEAD .. "moe.plan { model = m, "
      .. "cluster = moe.cluster.p4de { nodes = 2, "
      .. text .. ' }, system = moe.system "raf" {} }').plans[1].cluster.nic
  end
  local own = nic ""
  assert(own.latency_us > 0)
  local given = nic "nic = { bytes_per_s = 5e9 }"
  expect.equal({ given.bytes_per_s, given.latency_us }, { 5e9, own.latency_us })
  expect.equal(nic("nic = { latency_us = 1 }").bytes_per_s, own.bytes_per_s)
  expect.equal(nic("nic = { efficiency = 0.5 }").bytes_per_s, 12.5e9 / 2)
  expect.fails(expect.HEAD .. "moe.cluster.p4de { nodes = 2, nic = { bytes_per_s = 1, "
    .. "efficiency = 0.5 } }", 2, "not both")
end)

test("a name that begins as one does suggests it", function()
  expect.fails('local moe = require "moe"\nmoe.model.qwen3_30b {}', 2,
    "'qwen3_30b'. Did you mean 'qwen3_30b_a3b'?")
end)

test("a built-in pass is once in a system", function()
  expect.fails('local moe = require "moe"\nlocal p = moe.pass\n'
    .. 'moe.system "s" { p.partition {}, p.serial {}, p.partition { max_parts = 2 } }', 3,
    "system 's'[3]: 'partition' is in the list already, as number 1; give one of the two")
  expect.runs("local p = require 'moe'.pass\n"
    .. "require 'moe'.system 's' { p.chunked {}, p.chunked {} }")
end)
