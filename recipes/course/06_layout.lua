-- Exercise 6. Which layout trains a model fastest?
-- build/release/moebench run recipes/course/06_layout.lua --set guess=tp1-pp1-ep16  (ten seconds)
local moe = require "moe"
local ask = require "ask"
local set = ask.settings { nodes = { 2, 1, 4 }, seqs = { 64, 32, 128, 256 } }
local cluster = moe.cluster.h100 { nodes = set.nodes }
local model = moe.model.olmoe_1b_7b { batch_per_device = 1, seq = 4096, capacity = "none" }
local grids, names, rows = {}, {}, {}
for _, one in ipairs(moe.layouts { model = model, cluster = cluster, global_batch = set.seqs,
  axes = { tp = { 1, 2 }, pp = { 1, 2, 4 }, ep = { 4, 8, 16 } } }) do
  if not one.refused then
    names[#names + 1] = ("tp%d-pp%d-ep%d"):format(one.grid.tp, one.grid.pp, one.grid.ep)
    grids[#names] = one.grid
  end
end
local guess = ask.guess(([[
OLMoE (6.9 billion parameters, gradients in f32; 16 blocks of width 2048 with 64 experts of width
1024, 8 per token; vocabulary 50,304) and %d sequences of 4,096 tokens per step, in micro-batches of
one, on %d H100: nodes of 8 with NVLink, of which collectives reach %.0f GB/s, and a NIC of 50 GB/s
for each, of which they reach %.0f%%. Gradients are summed after the backward. tp ranks split
products and exchange rows in every block; pp pipeline ranks have equally many blocks and follow
1F1B; each of ep ranks holds 64 / ep experts. With tp2 an ep group of 4 GPUs is two tp groups.
Neighbours are in a tp group first, then in an ep group, then in a pipeline rank. Only layouts that
fit into 80 GB are offered. Which is the fastest?]]):format(set.seqs, cluster.devices,
  cluster.intra.bytes_per_s / 1e9, 100 * cluster.nic.bytes_per_s / 50e9), "", names)
if not guess then return end

for i, grid in ipairs(grids) do
  local plain = moe.system "plain" { moe.pass.irregular_a2a {}, moe.pass.used_rows {},
    grid.pp > 1 and moe.pipeline["1f1b"] {} or nil }
  local sim = moe.plan { cluster = cluster, grid = grid, model = model, system = plain }:simulate()
  local step, compute, bubble, busiest = sim.iteration_ms, sim.compute_ms, 0, sim.compute_ms
  for _, rank in ipairs(sim.pipeline or {}) do
    bubble = bubble + (rank.fill_ms + rank.stages_ms + rank.drain_ms) / grid.pp
    busiest = math.max(busiest, rank.busy_ms)
  end
  rows[i] = { names[i], step, compute, step - compute - bubble, bubble, busiest,
    sim.alone_ms.all_to_all / grid.pp, sim.alone_ms.all_reduce / grid.pp,
    cluster.devices / grid.pp / grid.ep }
end
table.sort(rows, function(a, b) return a[2] < b[2] end)
local best, place = rows[1], 1
while rows[place][1] ~= guess do place = place + 1 end
local mine, other = rows[place], rows[math.max(2, place)]
table.insert(rows, 1, { "layout", "step ms", "compute ms", "transfers ms", "bubble ms",
  "busiest rank ms", "all-to-alls ms", "sums ms", "copies" })
ask.answer(("%s, %.0f ms. Your guess takes %.0f ms and is place %d."):format(best[1], best[2],
  mine[2], place), ([[
against %s the fastest takes %+.0f ms for its compute, %+.0f ms waiting for transfers and %+.0f ms
for other pipeline ranks (the bubble). With more ep ranks each has fewer experts with more rows:
larger products, faster per row, and fewer weights to update. All-to-alls and sums of gradients are
times alone; a part hides, of all-to-alls under experts' weight gradients, of sums under the update.
With tp and pp other rows travel, too. All-to-alls of more than 8 ranks leave the node and its
NVLink. Gradients of an expert are summed over its copies. More pipeline ranks make these fewer but
wait for each other: the last has the output layer, too ("busiest rank"; compute is the mean), and
the others wait for it in every micro-batch.]]):format(
  other[1], best[3] - other[3], best[4] - other[4], best[5] - other[5]), rows,
  { "seqs=256 (a minute): which columns grow with it?", "nodes=1: which is fastest?" })
