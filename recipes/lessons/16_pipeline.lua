-- Lesson 16. How do I write a pipeline schedule? Four pipeline ranks of one node each, slow links,
-- and the head's stage half as long as the others. In 1F1B a rank holds as many forwards ahead as
-- ranks follow it; `pipeline` of a simulation says that they then wait for the wire (wire_ms), as
-- the gradient of a micro-batch comes back later than its last turn ends. `eager` runs more ahead.
-- Run it: build/release/moebench run recipes/lessons/16_pipeline.lua  (a second)
-- Try next: ahead = 3; other layouts; moe.pipeline.zb_h1 {}; moebench list pipelines;
-- moe.pipeline.table { csv = ... } for a schedule as text; plan:explain().
local moe = require "moe"

local eager = moe.policy.pipeline {
  name = "eager", doc = "1F1B with more forwards ahead of the first backward",
  params = { ahead = 2 },                                    -- for each rank that follows
  turns = function(p, rank, o)
    local ahead = math.min(o.ahead * (p.ranks - rank), p.micro_batches)
    for m = 1, ahead do p:forward(m) end
    for m = 1, p.micro_batches do
      if m + ahead <= p.micro_batches then p:forward(m + ahead) end
      p:backward(m)
    end
  end,
}

local schedules = { { "1f1b", moe.pipeline["1f1b"] {} },
  { "interleaved", moe.pipeline.interleaved {} }, { "eager", eager {} } }
local layouts = { ["1f1b"] = "Ettt|ttt|ttt|tL", eager = "Ettt|ttt|ttt|tL",
  interleaved = "Et|t|t|tt|t|tt|t|tL" }

local rows = { { "schedule", "step ms", "wire ms", "stages ms", "GiB" } }
for i, s in ipairs(schedules) do
  local plan = moe.plan {
    model = moe.model.gpt2_moe { layers = 10, hidden = 1024, heads = 16, seq = 512, vocab = 32000,
      batch_per_device = 4, experts_per_device = 2 },
    cluster = moe.cluster.custom { nodes = 4, devices_per_node = 1,
      device = { name = "a GPU", gemm_flops_per_s = 60e12, vector_flops_per_s = 10e12,
        memory_bytes_per_s = 700e9, launch_us = 5 },
      intra = { bytes_per_s = 25e9, latency_us = 2 }, nics_per_node = 1,
      nic = { bytes_per_s = 1.25e9, latency_us = 20 } },     -- 10 Gbit/s
    grid = moe.grid { pp = 4, micro_batches = 16, layout = layouts[s[1]] },
    system = moe.system "plain" { s[2] },
  }
  local wire, stages = 0, 0
  for _, rank in ipairs(plan.sim.pipeline) do
    wire, stages = wire + rank.wire_ms / 4, stages + rank.stages_ms / 4
  end
  rows[i + 1] = { s[1], ("%.1f"):format(plan.sim.iteration_ms), ("%.1f"):format(wire),
    ("%.1f"):format(stages), ("%.1f"):format(plan.sim.peak_bytes / 2 ^ 30) }
  if s[1] == "eager" then print("eager, rank 2: " .. plan:turns(2):sub(1, 62) .. "..") end
end
print(moe.table(rows))
