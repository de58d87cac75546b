-- What do copies of heavy experts gain when they are really made? Two CPU ranks over an emulated
-- link, tokens routed by a skewed workload that drifts: plain expert parallelism (real rows only),
-- FasterMoE's shadowing, Pro-Prophet's planner with copies that block, with its scheduler, and all
-- of it. Each system runs three times, in turn; medians over all steps but each run's first.
local moe = require "moe"

local ROUNDS = 3
local SYSTEMS = { "raf_rows", "fastermoe_shadowing", "prophet_blocking", "prophet_scheduler",
  "prophet" }
local function passes(name)
  local p = moe.pass
  if name == "raf_rows" then return { p.irregular_a2a {}, p.used_rows {}, p.blocking_a2a {} } end
  if name == "fastermoe_shadowing" then
    return { p.fastermoe_shadowing { shadows = 2 }, p.blocking_a2a {} }
  end
  local planner = p.prophet { shadows = 2, hidden = name == "prophet" and 1 or 0,
    split = name == "prophet" }
  if name == "prophet_blocking" then return { planner, p.blocking_a2a {} } end
  return { planner, p.prophet_schedule {}, p.blocking_a2a { experts = false } }
end

local samples, predicted, digests = {}, {}, {}
for round = 1, ROUNDS do
  local systems = {}
  for i, name in ipairs(SYSTEMS) do
    local t = passes(name)
    t.all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 2 ^ 20 }
    systems[i] = moe.system(name)(t)
  end
  local R = moe.run(moe.experiment {
    name = ("proprophet_executed_%d"):format(round),
    model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 128, heads = 4, seq = 128,
      batch_per_device = 16, experts = 4, gate = "switch", capacity = "none",
      routing = moe.workload "hot_rank" { seed = 3, drift = 0.1 } },
    systems = systems, optimizer = { lr = 0.02 },
    run = { { "cpu", ranks = 2, steps = 9, link = { bytes_per_s = 1e8, latency_us = 20 } } },
  })
  for run in R:each() do
    samples[run.system] = samples[run.system] or {}
    for i = 2, #run.samples_ms do table.insert(samples[run.system], run.samples_ms[i]) end
    predicted[run.system] = run.prediction.iteration_ms
    digests[run.system] = run.digest
  end
end

local function quantile(list, q)
  local sorted = { unpack(list) }
  table.sort(sorted)
  return sorted[math.max(1, math.ceil(q * #sorted))]
end
local rows = { { "system", "executed ms", "10% .. 90%", "predicted ms", "error", "speed-up",
  "predicted", "digest" } }
local base = samples.raf_rows
for _, name in ipairs(SYSTEMS) do
  local list = samples[name]
  local ms = quantile(list, 0.5)
  rows[#rows + 1] = { name, ("%.1f"):format(ms),
    ("%.1f .. %.1f"):format(quantile(list, 0.1), quantile(list, 0.9)),
    ("%.1f"):format(predicted[name]), ("%+.1f%%"):format(100 * (ms / predicted[name] - 1)),
    ("%.3fx"):format(quantile(base, 0.5) / ms),
    ("%.3fx"):format(predicted.raf_rows / predicted[name]),
    digests[name] }
end
print(("\nEmulated, %d samples a system\n"):format(#base) .. moe.table(rows))
