-- Do the methods of balancers_steps.lua gain in a real run what is predicted, with the same losses?
-- Four ranks with a pace (README.md says how), so two cores are enough; the busiest rank gets twice
-- the mean of the choices.
local moe = require "moe"

local PACE = 3  -- at least 1.1 * 4 ranks / 2 cores

local small = { factor = 1, min_tokens = 1, ratio = 1 }  -- as LLEP's authors' own small example

return moe.experiment { name = "balancers_executed",
  model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 192, heads = 4, seq = 128,
    batch_per_device = 4, experts = 16, gate = "top_k", k = 2, capacity = "none",
    routing = moe.workload "zipf" { max_over_mean = 2, seed = 3 } },
  systems = { moe.system "raf_rows" {}, moe.system "ultraep" {}, moe.system "echo" {},
    moe.system "moonep" {}, moe.system "llep" { moe.pass.llep(small), moe.pass.serial {} },
    moe.system "lplb" {} },
  optimizer = { lr = 0.02 },
  run = { { "cpu", ranks = 4, pace = PACE, steps = 25, rehearse = 16,
    link = { bytes_per_s = 2e8, latency_us = 20 } } },
}
