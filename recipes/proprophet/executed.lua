-- What do copies of experts with many tokens gain when they are executed? Two CPU ranks over an
-- emulated link; four of five tokens are routed to one rank's experts. The systems are plain expert
-- parallelism with only real rows; the same as a placement without copies (like the others it does
-- not clear unused rows, so speed-ups are relative to it); FasterMoE's shadowing; Pro-Prophet's
-- planner with copies that block compute, also with its scheduler; and the whole of Pro-Prophet.
-- Each system runs three times, in turns; medians are over all steps except the first of each run.
-- Also shown is how far the planner's model of all-to-alls (A2A), experts' compute (EC), copies
-- (Trans) and their gradients (Agg) is from their executed times (the paper's figure 13).
local moe = require "moe"

local ROUNDS = 3
local SYSTEMS = { "raf_rows", "placed", "fastermoe_shadowing", "prophet_blocking",
  "prophet_scheduler", "prophet" }
local function passes(name)
  local p = moe.pass
  if name == "raf_rows" then return { p.irregular_a2a {}, p.used_rows {}, p.blocking_a2a {} } end
  if name == "placed" then return { p.placed {}, p.blocking_a2a {} } end
  if name == "fastermoe_shadowing" then
    return { p.fastermoe_shadowing { shadows = 2 }, p.blocking_a2a {} }
  end
  local planner = p.prophet { shadows = 2, hidden = name == "prophet" and 1 or 0,
    split = name == "prophet" }
  if name == "prophet_blocking" then return { planner, p.blocking_a2a {} } end
  return { planner, p.prophet_schedule {}, p.blocking_a2a { experts = false } }
end

local OPS = { { "a2a", "A2A" }, { "experts", "EC" }, { "trans", "Trans" }, { "agg", "Agg" } }

-- model[system][op] has the estimated and executed times of each phase, and the sum of the errors.
local samples, predicted, digests, model = {}, {}, {}, {}

local function add_model_times(system, planner_error)
  local mine = model[system] or {}
  model[system] = mine
  for op, e in pairs(planner_error) do
    mine[op] = mine[op] or { sum = 0, num = 0 }
    for _, phase in ipairs { "forward", "backward" } do
      mine[op][phase] = mine[op][phase] or { estimated = moe.values {}, real = moe.values {},
        off = moe.values {} }
    end
    local s = e.samples
    for i, step in ipairs(s.step) do
      local times = mine[op][s.phase[i]]
      if step > 1 and s.real_ms[i] > 0 then
        table.insert(times.estimated, s.estimated_ms[i])
        table.insert(times.real, s.real_ms[i])
        table.insert(times.off, 100 * (s.estimated_ms[i] / s.real_ms[i] - 1))
      end
    end
    mine[op].sum = mine[op].sum + (e.error or 0) * e.num
    mine[op].num = mine[op].num + e.num
  end
end

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
      routing = moe.workload "hot_rank" { share = 0.8, seed = 3, drift = 0.1 } },
    systems = systems, optimizer = { lr = 0.02 },
    run = { { "cpu", ranks = 2, steps = 9, link = { bytes_per_s = 1e8, latency_us = 20 } } },
  })
  for run in R:each() do
    samples[run.system] = samples[run.system] or moe.values {}
    for i = 2, #run.samples_ms do table.insert(samples[run.system], run.samples_ms[i]) end
    predicted[run.system] = run.prediction.iteration_ms
    digests[run.system] = run.digest
    if run.planner_error then add_model_times(run.system, run.planner_error) end
  end
end

local rows = { { "system", "executed ms", "10% .. 90%", "predicted ms", "error", "speed-up",
  "predicted", "digest" } }
local base = samples.placed
for _, name in ipairs(SYSTEMS) do
  local list = samples[name]
  local ms = list:quantile(0.5)
  rows[#rows + 1] = { name, ms, ("%.1f .. %.1f"):format(list:quantile(0.1), list:quantile(0.9)),
    predicted[name], 100 * (ms / predicted[name] - 1), base:quantile(0.5) / ms,
    predicted.placed / predicted[name], digests[name] }
end
print(("\nEmulated, %d samples per system\n"):format(#base)
  .. moe.table(rows, { "", "%.1f", "", "%.1f", "%+.1f%%", "%.3fx", "%.3fx" }))

local errors = { { "system", "op", "phase", "estimated ms", "executed ms", "off by",
  "10% .. 90%", "mean error", "n" } }
for _, system in ipairs(SYSTEMS) do
  for _, op in ipairs(model[system] and OPS or {}) do
    local e = model[system][op[1]]
    for _, phase in ipairs { "forward", "backward" } do
      local times = e[phase]
      if #times.off > 0 then
        errors[#errors + 1] = { system, op[2], phase, times.estimated:quantile(0.5),
          times.real:quantile(0.5), times.off:quantile(0.5),
          ("%+.0f .. %+.0f"):format(times.off:quantile(0.1), times.off:quantile(0.9)),
          100 * e.sum / e.num, #times.off }
      end
    end
  end
end
print("\nThe planner's model beside executed steps: medians; mean error of an op in both phases\n"
  .. moe.table(errors, { "", "", "", "%.2f", "%.2f", "%+.1f%%", "", "%.1f%%" }))

local claims = {}
for i, op in ipairs(OPS) do
  claims[i] = moe.claim { id = "proprophet-051", label = op[2],
    value = function(of)
      local e = of[op[1]]
      if e.num > 0 then return e.sum / e.num < 0.05 end
    end }
end
moe.judge { name = "proprophet_fig13", title = "Figure 13, executed", claims = claims,
  readings = { model.prophet } }
