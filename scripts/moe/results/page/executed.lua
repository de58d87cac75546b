-- The blocks (page/blocks.lua) of an experiment's executed runs.
local bars = require "moe.results.charts.bars"
local blocks = require "moe.results.page.blocks"
local executed = require "moe.results.report.executed"
local format = require "moe.results.report.format"
local html = require "moe.results.page.html"
local lines = require "moe.results.charts.lines"
local results = require "moe.results.results"

local M = {}

local FOR_SPREAD = 8  -- steps that make a distribution

local function step_bars(runs)
  local groups = {}
  for i, run in ipairs(runs) do
    groups[i] = { bound = run.lower_bound_ms, bars = {
      bars.step(format.system_text(run), run.prediction, { provenance = "simulated" }),
      bars.step(("  executed, %+.1f%%%s"):format(100 * run.prediction.error,
        run.disturbed and " ?" or ""), run,
        { provenance = run.provenance, samples = format.later(run) }) } }
  end
  return bars.steps("executed", ("Of each system: predicted (simulated) above, executed (%s) and "
    .. "its error below"):format(runs[1].provenance), groups)
end

-- Returns the curves of a field that has a value per step. Runs with equal digests and values share
-- a curve.
local function curves(runs, key)
  local series = {}
  for i, group in ipairs(results.new(runs):groups(function(run)
    return { run.digest or run.system, run[key] }
  end)) do
    local names = {}
    for k, run in ipairs(group) do names[k] = run.system end
    series[i] = { label = ("%s, digest %s"):format(table.concat(names, " = "),
      group[1].digest or "-"), ys = group[1][key] }
  end
  return series
end

local function distribution(runs)
  local series = {}
  for i, run in ipairs(runs) do
    series[i] = { label = format.system_text(run), number = i, values = format.later(run) }
    if #series[i].values < FOR_SPREAD then return nil end
  end
  return lines.distribution { name = "step-distribution", series = series,
    title = "Times of the steps, " .. runs[1].provenance, x_label = "time of a step, ms",
    y_label = "share of steps, %" }
end

--- Returns the blocks of runs that differ only in the system; differs: in what their case differs
--- from others (report/differences.lua).
function M.blocks(runs, differs)
  local provenance = runs[1].provenance
  return { blocks.html(html.h4 { "Executed ",
      html.span { class = "badge " .. provenance, provenance } }),
    blocks.text(executed.lines(runs, differs)), blocks.text(executed.head(runs)),
    blocks.table("executed-steps", "Steps, " .. provenance, executed.rows(runs)),
    blocks.text(executed.error_lines(runs)), blocks.grid { step_bars(runs) },
    blocks.text { "A bar ends at the step's time. Its parts are each of the same statistic over "
      .. "steps, so they need not add up: what they leave is drawn as idle, what exceeds it is cut."
    },
    blocks.table("losses", "Losses by step", executed.losses_rows(runs)),
    blocks.text(executed.closing_lines(runs)),
    blocks.grid {
      lines.steps { name = "loss", title = "Loss by step, " .. provenance, y_label = "loss, nats",
        series = curves(runs, "losses") },
      lines.steps { name = "drops", title = "Dropped choices by step, " .. provenance,
        y_label = "dropped choices", from = 0, series = curves(runs, "drops") },
      distribution(runs) } }
end

return M
