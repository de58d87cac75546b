-- What does Lancet gain when it is executed? Two CPU ranks over an emulated link on which the four
-- all-to-alls of a forward take about as long as its compute. Each system's prediction is frozen
-- before it is executed. Below the table: executed over simulated time, the gain over the fastest
-- baseline, and how far the step is from its lower bound.
local moe = require "moe"

local BASELINES = { "raf", "deepspeed", "tutel" }
local names = { "raf", "raf_rows", "deepspeed", "tutel", "lancet_dw", "lancet_partition", "lancet" }
local systems = {}
for i, name in ipairs(names) do systems[i] = moe.system(name) {} end

local R = moe.run(moe.experiment {
  name = "lancet_overlap",
  model = moe.model.gpt2_moe { name = "long", vocab = 256, layers = 4, hidden = 128, heads = 4,
    seq = 128, batch_per_device = 32, experts = 4, gate = "random", capacity_factor = 1.25 },
  systems = systems,
  optimizer = { lr = 0.02 },
  run = { { "cpu", ranks = 2, steps = 12, link = { bytes_per_s = 1e8, latency_us = 20 } } },
})

local run_of, best = {}, nil
for run in R:each() do run_of[run.system] = run end
for _, name in ipairs(BASELINES) do
  if not best or run_of[name].iteration_ms < best.iteration_ms then best = run_of[name] end
end
local lancet, ms = run_of.lancet, run_of.lancet.iteration_ms
local simulated, bound = lancet.prediction.iteration_ms, lancet.lower_bound_ms
print(("\nEmulated: lancet takes %.1f ms per step, %.2fx its simulated %.1f ms and %.2fx the bound "
  .. "of %.1f ms"):format(ms, ms / simulated, simulated, ms / bound, bound))
print(("%s, the best baseline, takes %.2fx as long (simulated: %.2fx)"):format(best.system,
  best.iteration_ms / ms, best.prediction.iteration_ms / simulated))
print(("Of that gain %.2fx is padding neither sent nor computed (raf over raf_rows)"):format(
  run_of.raf.iteration_ms / run_of.raf_rows.iteration_ms))
