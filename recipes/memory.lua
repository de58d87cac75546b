-- What holds a GPU's memory in a training step of an open model, and what do sharded optimizer
-- states (zero = 1) and recomputed activations (recompute = "blocks") save, and cost? Mixtral 8x7B
-- with 8 expert-parallel GPUs and DeepSeek-V3 with 64, one sequence of 4,096 tokens per GPU, AdamW,
-- bf16 with gradients, master copy and moments in f32, on 64 and 256 H200 GPUs with 141 GB each.
-- Simulated; only real rows are sent, computed and stored.
local moe = require "moe"

local MODELS = { { "mixtral_8x7b", ep = 8 }, { "deepseek_v3", ep = 64 } }
local OPTIONS = { { "neither" }, { "zero = 1", zero = 1 },
  { "recompute", recompute = "blocks" }, { "both", zero = 1, recompute = "blocks" } }

for _, m in ipairs(MODELS) do
  local rows = { { "GPUs", "options", "step ms", "parameters and states GiB", "peak GiB",
    "largest tensors at the peak" } }
  for _, nodes in ipairs { 8, 32 } do
    for i, o in ipairs(OPTIONS) do
      local plan = moe.plan { cluster = moe.cluster.h200 { nodes = nodes },
        system = moe.system "raf_rows" { zero = o.zero, recompute = o.recompute },
        model = moe.model[m[1]] { seq = 4096, batch_per_device = 1, ep = m.ep },
        optimizer = { name = "adamw", lr = 1e-4, weight_decay = 0.1 } }
      local memory = plan:memory()
      rows[#rows + 1] = { i == 1 and 8 * nodes or "", o[1], plan:simulate().iteration_ms,
        memory.persistent_bytes / 2 ^ 30, memory.peak_bytes / 2 ^ 30,
        table.concat(memory.holders, ", ", 1, 2) }
    end
  end
  print(m[1])
  print(moe.table(rows, { "", "", "%.0f", "%.1f", "%.1f" }))
end
