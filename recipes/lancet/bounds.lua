-- How far from the best are Lancet's schedules? Its greedy choice of weight gradients is compared
-- with the best choice (only found with at most 24 of them) and with a bound on every choice (as if
-- weight gradients could be cut and spread at will). Its step is compared with the larger of the
-- busiest lane and the critical path, which no order of the same ops can beat.
local moe = require "moe"

local function percent(a, b) return b > 0 and 100 * a / b or "-" end

local function row(run, ...)
  return { run.cluster, run.model, run.parameters.layers, run.devices, ... }
end

local function show(R)
  local dw = { { "cluster", "model", "layers", "GPUs", "all-to-alls", "their ms", "dW", "their ms",
    "greedy hides ms", "best ms", "bound ms", "greedy/bound" } }
  local step = { { "cluster", "model", "layers", "GPUs", "system", "step ms", "lane ms", "path ms",
    "bound ms", "bound/step" } }
  for run in R:each() do
    if run.system == "lancet" then
      local o = run.overlap
      dw[#dw + 1] = row(run, o.num_a2a, o.a2a_ms, o.num_dw, o.dw_ms, o.greedy_ms,
        o.exact_ms or "-", o.bound_ms, percent(o.greedy_ms, o.bound_ms))
    end
    step[#step + 1] = row(run, run.system, run.iteration_ms, run.busiest_lane_ms,
      run.critical_path_ms, run.lower_bound_ms, percent(run.lower_bound_ms, run.iteration_ms))
  end
  print "\nWeight gradients under the backward's all-to-alls"
  print(moe.table(dw, { "", "", "", "", "", "%.2f", "", "%.2f", "%.2f", "%.2f", "%.2f", "%.1f%%" }))
  print "\nSteps"
  print(moe.table(step, { "", "", "", "", "", "%.2f", "%.2f", "%.2f", "%.2f", "%.1f%%" }))
end

return moe.experiment {
  name = "lancet_bounds", title = "Lancet's schedules against bounds, Switch gate",
  over = { gpu = { "p4de", "p3dn" }, size = { "S", "L" }, layers = { 2, 3, 4, 0 },
    nodes = { 2, 8 } },
  params = { reading = "artifact" },
  case = function(p)
    return {
      -- layers = 0 means all layers of the model.
      model = moe.model.lancet { size = p.size, gpu = p.gpu, reading = p.reading,
        layers = p.layers > 0 and p.layers or nil },
      cluster = moe.cluster[p.gpu] { nodes = p.nodes },
      systems = { moe.system "lancet" {}, moe.system "tutel" { stack = "tutel_2022" } } }
  end,
  show = show,
}
