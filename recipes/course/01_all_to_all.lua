-- Exercise 1. How long does an all-to-all take, and what bounds it?
-- build/release/moebench run recipes/course/01_all_to_all.lua --set guess=3  (under a second)
local moe = require "moe"
local ask = require "ask"
local nodes = ask.settings { nodes = { 4, 2, 8, 16, 32, 64 } }.nodes
local cluster, bytes = moe.cluster.p4de { nodes = nodes }, 12288 * 768 * 2  -- of a GPU, in bf16
local leave, reach = (nodes - 1) / nodes, cluster.nic.bytes_per_s / 12.5e9
local guess = ask.guess(([[
%d nodes of 8 A100. A node has 4 NICs of 100 Gb/s (12.5 GB/s), of which collectives reach %.0f%%,
and NVLink inside. Each GPU holds 12,288 rows of 768 numbers in bf16 (18.9 MB) and sends an equal
part to each of the %d GPUs, itself included. How long does that take?]]):format(nodes, 100 * reach,
  cluster.devices), "ms")
if not guess then return end

local function time(on, of)
  return moe.op_time { op = "all_to_all", cluster = on, ranks = on.devices, bytes = of }
end
local function start(on) return time(on, on.devices).ms end
local function wire_ms(share, of_rate) return 8 * bytes * share / (4 * 12.5e9 * of_rate) * 1e3 end
local all = time(cluster, bytes)
ask.answer(all.ms, ([[
%.0f%% of the rows leave their node, %.0f MB per node. Its NICs carry them in %.2f ms at %.0f%% of
their rate. The start takes %.2f ms, as long as an all-to-all of a byte per pair of GPUs. NVLink is
not the limit: in one node an all-to-all of these rows takes %.2f ms. At the NICs' full rate it
would be %.2f ms, and no all-to-all of these rows is shorter. However many nodes there are, at most
all rows leave, which takes %.2f ms at %.0f%%, but the start grows: to %.2f ms on twice the nodes.
%.0f%% is assumed. Over such constants' bands the answer is %.2f to %.2f ms. Yours is %s.]]):format(
  100 * leave, 8 * bytes * leave / 1e6, wire_ms(leave, reach), 100 * reach, start(cluster),
  time(moe.cluster.p4de { nodes = 1 }, bytes).ms, wire_ms(leave, 1), wire_ms(1, reach),
  100 * reach, start(moe.cluster.p4de { nodes = 2 * nodes }), 100 * reach, all.lo, all.hi,
  guess >= all.lo and guess <= all.hi and "inside" or "outside"), {},
  { "nodes=2: which part of it falls?", "nodes=16: how does it grow, and which part of it?" })
