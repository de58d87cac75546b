-- What does each of four papers add when all are mixed, on skewed routing? Lancet's parts of the
-- batch and weight-gradient schedule, PipeMoE's degree, Lina's priority with micro-ops, and
-- Pro-Prophet's placement and scheduler: each alone, each left out, and all four. Only real rows
-- travel and are computed, in all systems. Simulated on A100 and H200 clusters of 16 to 256 GPUs,
-- then executed on two CPU ranks over an emulated link, with the prediction beside.
local moe = require "moe"
local shared = require "shared"
local pass = moe.pass

local papers = {
  { "lancet", function() return { pass.partition { max_parts = 4 }, pass.dw_schedule {} } end },
  { "pipemoe", function() return { pass.pipemoe { objective = "step" } } end },
  { "lina", function(t) return { pass.priority { hold = false }, pass.micro_ops { bytes = t.bytes },
    pass.chunked { bytes = t.bytes } } end },
  { "prophet", function() return { pass.prophet { shadows = 2 }, pass.prophet_schedule {} } end },
}


local skew = moe.workload "zipf" { s = 1.0, seed = 3, drift = 0.1 }
local simulated = moe.run(moe.experiment {
  name = "mix_all", over = { gpu = { "p4de", "h200" }, nodes = { 2, 8, 32 } },
  case = function(p) return {
    model = moe.model.gpt2_moe { layers = 12, hidden = 2048, heads = 16, seq = 1024,
      batch_per_device = 4, experts_per_device = 1, gate = "switch", capacity_factor = 4,
      routing = skew },
    cluster = moe.cluster[p.gpu] { nodes = p.nodes },
    -- Lina's 30 MB are more than a whole all-to-all here; of 4, 8 and 16 MiB this is the best for
    -- Lina alone on 16 and 64 GPUs, or within 1% of it.
    systems = shared.systems(papers, { bytes = 2 ^ 23, bucket = 25 * 2 ^ 20 }) } end,
  run = { { "simulate", steps = 5 } },
})
local executed = moe.run(moe.experiment {
  name = "mix_all_executed",
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 128, heads = 4, seq = 128,
    batch_per_device = 16, experts = 4, gate = "switch", capacity = "none",
    routing = moe.workload "hot_rank" { share = 0.8, seed = 3, drift = 0.1 } },
  systems = shared.systems(papers, { bytes = 2 ^ 18, bucket = 2 ^ 20 }), optimizer = { lr = 0.02 },
  run = { { "cpu", ranks = 2, steps = 10, link = { bytes_per_s = 1e8, latency_us = 20 } } },
})

--- "1.10x (1.02 to 1.15)": the median of all ratios of a sample of `base` to one of `run`, and the
--- range that holds four of five.
local function speedup(base, run)
  local ratios = moe.values {}
  for _, a in ipairs(base.samples_ms) do
    for _, b in ipairs(run.samples_ms) do ratios[#ratios + 1] = a / b end
  end
  return ("%.2fx (%.2f to %.2f)"):format(ratios:quantile(0.5), ratios:quantile(0.1),
    ratios:quantile(0.9))
end
local function rows_of(runs)
  local rows = { { "paper", "alone, over none", "added last, over the other three",
    "all, over none" } }
  for i, paper in ipairs(papers) do
    rows[#rows + 1] = { paper[1], speedup(runs.base, runs["only_" .. paper[1]]),
      speedup(runs["no_" .. paper[1]], runs.all), i == 1 and speedup(runs.base, runs.all) or "" }
  end
  return rows
end

local points, order = shared.by_point(simulated, function(run)
  return ("%s, %d GPUs"):format(run.point.gpu, run.devices)
end)
for _, key in ipairs(order) do
  print(("\nSimulated, %s\n%s"):format(key, moe.table(rows_of(points[key]))))
end
local runs, ms = {}, { { "system", "executed ms", "predicted ms",
  "largest difference of a loss" } }
for run in executed:each() do
  runs[run.system] = run
  ms[#ms + 1] = { run.system, run.iteration_ms, run.prediction.iteration_ms,
    shared.loss_difference(run, runs.base) }
end
if #executed.runs > 0 then  -- --executor simulate leaves the experiment out
  print("\nEmulated, two ranks\n" .. moe.table(rows_of(runs)) .. "\n"
    .. moe.table(ms, { "", "%.1f", "%.1f", "%.1e" }))
end
