-- Exercise 4. What does an uneven load of the experts cost?
-- Run it with your guess:
-- build/release/moebench run recipes/course/04_imbalance.lua --set guess=2  (under a second)
-- Try next: a capacity of 1.25, which drops what is too much.
local moe = require "moe"
local ask = require "ask"

local unit = "times the step of an even load"
local guess = ask.number([[
The model of exercise 2 without a capacity: no token is dropped, and only real rows travel. The
busiest of the 16 ranks gets twice as many rows as the mean. How much longer is the step?]], unit)
if not guess then return end

local function simulated(ratio)
  return moe.plan { system = moe.system "raf_rows" {}, cluster = moe.cluster.p4de { nodes = 2 },
    model = moe.model.gpt2_moe { layers = 12, hidden = 768, heads = 12, seq = 512,
      batch_per_device = 24, experts_per_device = 2, capacity = "none",
      routing = ratio and moe.workload "zipf" { max_over_mean = ratio } or nil } }:simulate()
end

local even, skewed = simulated(), simulated(2)
local function part(sim, name) return sim.alone_ms[name] or 0 end
ask.answer(guess, skewed.iteration_ms / even.iteration_ms, unit, ([[
all ranks wait for the busiest one, twice per layer and direction. Its experts compute
%.2f times as long as the mean, and its rows fill the NICs of its node: the step spends %.0f ms in
communication that nothing hides in place of %.0f. But attention and dense layers, %.0f of the
%.0f ms, have the same tokens on all ranks, so twice the rows are not twice the step.]]):format(
  skewed.expert_imbalance, skewed.exposed_comm_ms, even.exposed_comm_ms,
  even.compute_ms - part(even, "expert"), even.iteration_ms))
