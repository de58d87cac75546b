-- What do the techniques of four papers and forward over backward add to each other on a mesh of
-- pipeline ranks and experts, on skewed routing? Lancet's weight-gradient schedule and parts,
-- PipeMoE's degree, Lina's priority, Pro-Prophet's placement and scheduler, and Megatron-LM's
-- combined 1F1B, in which one micro-batch computes while the rows of another travel: each alone,
-- each left out, and all. Simulated on clusters of A100, H100 and B200; then eight drawn ones
-- (--set executed=12 --set seed=2) are predicted and executed on four paced CPU ranks over an
-- emulated link; --executor cpu does this alone.
local moe = require "moe"
local shared = require "shared"
local pass = moe.pass

local set = moe.options { executed = 8, seed = 1 }
local PACE = 3  -- at least 1.1 * 4 ranks / 2 cores

local techniques = {
  { "lancet", function() return { pass.partition { max_parts = 4 }, pass.dw_schedule {} } end },
  { "pipemoe", function() return { pass.pipemoe { objective = "step" } } end },
  { "lina", function(t) return { pass.priority { hold = false },
    pass.chunked { bytes = t.bytes } } end },
  { "prophet", function() return { pass.prophet { shadows = 2 }, pass.prophet_schedule {} } end },
  { "f_over_b", function() return { moe.pipeline.combined_1f1b {}, pass.hide_a2a {} } end },
}
local function systems(t)
  return shared.systems(techniques, t, function(has)
    return has.f_over_b and {} or { moe.pipeline.interleaved {} }
  end)
end

-- Returns n of the systems, drawn by a linear congruential generator (Park and Miller, 1988).
local function drawn(all, n)
  local state = set.seed * 48271 % 2147483647
  while #all > n do
    state = state * 48271 % 2147483647
    table.remove(all, state % #all + 1)
  end
  return all
end

local function case_of(p)
  return {
    model = moe.model.gpt2_moe { layers = 16, hidden = 2048, heads = 16, seq = 1024,
      batch_per_device = 2, experts_per_device = 2, gate = "top2", capacity = "none",
      routing = moe.workload "zipf" { s = 0.8, seed = 3, drift = 0.1 } },
    grid = moe.grid { pp = p.pp, micro_batches = 16 }, cluster = moe.cluster[p.gpu] { nodes = 8 },
    systems = systems { bytes = 2 ^ 23, bucket = 25 * 2 ^ 20 } }
end
local simulated = moe.run(moe.experiment {
  name = "mix_mesh", over = { gpu = { "p4de", "h100", "b200" }, pp = { 2, 4 } },
  case = case_of,
  run = { { "simulate", steps = 3 } },
})
local executed = moe.run(moe.experiment {
  name = "mix_mesh_executed",
  model = moe.model.gpt2_moe { vocab = 256, layers = 8, hidden = 128, heads = 4, seq = 128,
    batch_per_device = 2, experts = 4, gate = "switch", capacity = "none",
    routing = moe.workload "hot_rank" { share = 0.7, seed = 3, drift = 0.1 } },
  grid = moe.grid { pp = 2, micro_batches = 4 },
  systems = drawn(systems { bytes = 2 ^ 18, bucket = 2 ^ 20 }, set.executed),
  optimizer = { lr = 0.02 }, run = { { "cpu", ranks = 4, pace = PACE, steps = 10,
    link = { bytes_per_s = 1e8, latency_us = 20 } } },
})

--- "1.10x", how much shorter the step of `run` is than that of `base`; "OOM" where one does not
--- fit.
local function speedup(base, run)
  if not (base and run) then return "refused" end
  if base.oom or run.oom then return "OOM" end
  return ("%.2fx"):format(base.iteration_ms / run.iteration_ms)
end

local points, order = shared.by_point(simulated, function(run)
  return ("%s, pp = %d"):format(run.point.gpu, run.point.pp)
end)

for _, key in ipairs(order) do
  local runs, best = points[key], nil
  local rows = { { "technique", "alone", "added last, over the others" } }
  for _, technique in ipairs(techniques) do
    rows[#rows + 1] = { technique[1], speedup(runs.base, runs["only_" .. technique[1]]),
      speedup(runs["no_" .. technique[1]], runs.all) }
  end
  for name, run in pairs(runs) do
    if not run.oom and (not best or run.iteration_ms < runs[best].iteration_ms) then best = name end
  end
  print(("\n%s: base %.0f ms, all %s, the fastest is %s (%s)\n%s"):format(key,
    runs.base.iteration_ms, speedup(runs.base, runs.all), best, speedup(runs.base, runs[best]),
    moe.table(rows)))
end

local rows, first, errors = { { "system", "executed ms", "spread", "predicted ms", "error",
  "disturbed", "largest difference of a loss" } }, nil, moe.values {}
for run in executed:each() do
  first = first or run
  local samples = moe.values(run.samples_ms)
  errors[#errors + 1] = 100 * math.abs(run.prediction.error)
  rows[#rows + 1] = { run.system, run.iteration_ms,
    100 * (samples:quantile(0.9) / samples:quantile(0.1) - 1), run.prediction.iteration_ms,
    100 * run.prediction.error, run.disturbed and "yes" or "no",
    shared.loss_difference(run, first) }
end
if first then
  print(("\nExecuted, %d of the systems (seed %d); errors are those at the speed that the cores "
    .. "had during the run\n%s\nerror: median %.1f%%, largest %.1f%%"):format(#errors, set.seed,
    moe.table(rows, { "", "%.1f", "%.0f%%", "%.1f", "%+.1f%%", "", "%.1e" }), errors:median(),
    errors:max()))
end
