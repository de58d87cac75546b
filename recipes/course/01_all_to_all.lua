-- Exercise 1. How long does an all-to-all take, and what bounds it?
-- Run it with your guess:
-- build/release/moebench run recipes/course/01_all_to_all.lua --set guess=3  (under a second)
-- Try next: the same with 2 nodes, then 16; why so little more?
local moe = require "moe"
local ask = require "ask"

local NODES, GPUS, NICS, RATE = 4, 8, 4, 12.5e9         -- p4de: 4 NICs of 100 Gb/s per node
local bytes = 24 * 512 * 768 * 2                        -- 24 sequences of 512 tokens, bf16
local unit = "ms"
local guess = ask.number([[
Four nodes of 8 A100, 4 NICs of 100 Gb/s per node, NVLink inside. Each GPU holds 12,288 rows of
768 numbers in bf16 (18.9 MB) and sends an equal part to each of the 32 GPUs. How long does that
take?]], unit)
if not guess then return end

local time = moe.op_time { op = "all_to_all", cluster = moe.cluster.p4de { nodes = NODES },
  ranks = NODES * GPUS, bytes = bytes }
local leaves = GPUS * bytes * (NODES - 1) / NODES       -- of a node, to the others
local bound = leaves / (NICS * RATE) * 1e3
ask.answer(guess, time.ms, unit, ([[
three quarters of all rows leave their node: %.0f MB per node, which its NICs carry in %.2f ms
at their full rate. No all-to-all of these rows is faster. This one takes %.2f times as long, at
%.0f%% of that rate. NVLink carries the other rows meanwhile. With twice the nodes %.0f%% of the
rows leave and the bound grows by %.0f%%, with many nodes by a third at most.]]):format(
  leaves / 1e6, bound, time.ms / bound, 100 * bound / time.ms,
  100 * (2 * NODES - 1) / (2 * NODES), 100 * ((2 * NODES - 1) / (2 * NODES - 2) - 1)))
