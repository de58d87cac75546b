-- Lesson 3. Is the simulation right? The same model, smaller, is trained for real: two ranks of
-- this machine, each a thread with its half of the experts, exchange tokens over an emulated link.
-- Run it: build/release/moebench run recipes/lessons/03_for_real.lua  (5 to 15 seconds)
-- Try next: a link of 1e9 bytes per second; tutel as a system; `moebench report out/03_for_real`.
local moe = require "moe"

return moe.experiment {
  name = "for_real",
  model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 128, heads = 4, seq = 64,
    batch_per_device = 8, experts_per_device = 2 },
  systems = { moe.system "raf" {}, moe.system "lancet_dw" {},
    moe.system "halves" { moe.pass.capacity_pipeline { degree = 2 } } },
  run = { { "cpu", ranks = 2, steps = 8, link = { bytes_per_s = 5e7, latency_us = 20 } } },
}
