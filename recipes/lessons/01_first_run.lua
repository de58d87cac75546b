-- Lesson 1. How long does a training step take, and which way of overlapping makes it shorter? A
-- GPT-2 with an MoE layer in every second block, on two nodes of eight A100, under three systems.
-- Run it: build/release/moebench run recipes/lessons/01_first_run.lua  (under a second)
-- Try next: another name from `moebench list` in `systems`; another gate; capacity_factor = 2.
local moe = require "moe"

return moe.experiment {
  name = "first_run",
  model = moe.model.gpt2_moe { layers = 12, hidden = 768, heads = 12, seq = 512,
    batch_per_device = 24, experts_per_device = 2, gate = "switch", capacity_factor = 1.25 },
  cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {}, moe.system "tutel" {}, moe.system "lancet" {} },
  run = { "simulate" },
}
