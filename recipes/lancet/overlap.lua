-- What does Lancet gain when it really runs? Two CPU ranks over an emulated link on which the four
-- all-to-alls of a forward take about as long as its compute; every system executed, its prediction
-- frozen before. Below the table: executed over simulated, the gain over the best baseline, and how
-- far the step is from its bound.
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

local ms, run_of = {}, {}
for run in R:each() do ms[run.system], run_of[run.system] = run.iteration_ms, run end
local best = BASELINES[1]
for _, name in ipairs(BASELINES) do if ms[name] < ms[best] then best = name end end
local lancet = run_of.lancet
print(("\nEmulated. lancet %.1f ms: %.2fx its simulated %.1f ms; %s, the best baseline, takes %.2fx "
  .. "as long; the bound (busiest lane, critical path) is %.1f ms, %.2fx below")
  :format(ms.lancet, ms.lancet / lancet.prediction.iteration_ms, lancet.prediction.iteration_ms,
    best, ms[best] / ms.lancet, lancet.lower_bound_ms, ms.lancet / lancet.lower_bound_ms))
print(("Of that gain %.2fx comes from not sending and not computing padding (raf over raf_rows)")
  :format(ms.raf / ms.raf_rows))
