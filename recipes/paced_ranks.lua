-- What does an imbalanced routing cost eight ranks, executed on a machine with two cores? With a
-- pace the ranks show the times that they would have with a core each (README.md says how); in each
-- MoE layer two fifths of all tokens go to one rank's expert. Predicted and executed, then the same
-- program on two ranks, which need no pace. Last the CPU time of each of the eight ranks: the
-- others wait for the rank that computes most.
local moe = require "moe"

local PACE = 5  -- at least 1.1 * 8 ranks / 2 cores

local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 128, heads = 4, seq = 128,
  batch_per_device = 4, experts = 8, gate = "switch", capacity = "none",
  routing = moe.workload "hot_rank" { share = 0.4, seed = 3, drift = 0.1 } }
local systems = { moe.system "raf_rows" {}, moe.system "lancet" {} }
local link = { bytes_per_s = 1e8, latency_us = 20 }

local function run(ranks, pace)
  return moe.run(moe.experiment {
    name = ("ranks_%d"):format(ranks), model = model, systems = systems, optimizer = { lr = 0.02 },
    run = { { "cpu", ranks = ranks, pace = pace, steps = 10, link = link } },
  })
end

local eight = run(8, PACE)
run(2)

local rows = { { "system", "CPU ms of rank 0", "1", "2", "3", "4", "5", "6", "7", "imbalance",
  "predicted", "experts' imbalance", "predicted" } }
for one in eight:each() do
  local p, row = one.prediction, { one.system }
  for _, rank in ipairs(one.ranks) do row[#row + 1] = ("%.1f"):format(rank.cpu_ms) end
  for _, x in ipairs { one.imbalance, p.imbalance, one.expert_imbalance, p.expert_imbalance } do
    row[#row + 1] = ("%.2f"):format(x)
  end
  rows[#rows + 1] = row
end
print("\nEight ranks, medians over the steps after the first\n" .. moe.table(rows))
