-- Do Lancet, Pro-Prophet and Lina's priorities work together when load is not balanced? Two CPU
-- ranks over an emulated link, tokens routed by a skewed workload, the same for all systems: first
-- only real rows; then Lancet's pipelines and weight-gradient schedule, Pro-Prophet's copies of
-- experts with many tokens, and transfers in chunks by priority are added one after another.
-- Predicted and executed. All systems have the buffers that placement needs, so that they differ
-- only in what the passes do.
local moe = require "moe"
local shared = require "shared"
local pass = moe.pass

local DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = 2 ^ 20 }
local rows = { pass.irregular_a2a {}, pass.used_rows {} }
local fixed = { pass.placed {} }
local lancet = { pass.partition { max_parts = 4 }, pass.dw_schedule {} }
local prophet = { pass.prophet { shadows = 2 } }
local lina = { pass.priority { hold = false }, pass.chunked { bytes = 2 ^ 18 } }

local function system(name, ...)
  local t = { all_reduce = DDP }
  for _, passes in ipairs { ... } do
    for _, p in ipairs(passes) do t[#t + 1] = p end
  end
  return moe.system(name)(t)
end

local R = moe.run(moe.experiment {
  name = "mix_balance",
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 128, heads = 4, seq = 128,
    batch_per_device = 16, experts = 4, gate = "switch", capacity = "none",
    routing = moe.workload "hot_rank" { share = 0.8, seed = 3, drift = 0.1 } },
  systems = { system("fixed", fixed, rows), system("lancet", fixed, rows, lancet),
    system("prophet", prophet, rows), system("lancet_prophet", prophet, rows, lancet),
    system("all_three", prophet, rows, lancet, lina) },
  optimizer = { lr = 0.02 },
  run = { { "cpu", ranks = 2, steps = 10, link = { bytes_per_s = 1e8, latency_us = 20 } } },
})

local out, first = { { "system", "executed ms", "predicted ms", "of fixed", "exposed ms",
  "largest difference of a loss", "digest" } }, nil
for run in R:each() do
  first = first or run
  out[#out + 1] = { run.system, run.iteration_ms, run.prediction.iteration_ms,
    first.iteration_ms / run.iteration_ms, run.exposed_comm_ms,
    shared.loss_difference(run, first), run.digest }
end
print("\nEmulated: what each adds when load is not balanced\n"
  .. moe.table(out, { "", "%.1f", "%.1f", "%.3fx", "%.1f", "%.1e" }))
