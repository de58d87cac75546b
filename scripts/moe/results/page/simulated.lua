-- The blocks (page/blocks.lua) of an experiment's simulated runs.
local assumed_routing = require "moe.results.assumed_routing"
local blocks = require "moe.results.page.blocks"
local effects = require "moe.results.effects"
local format = require "moe.results.report.format"
local head = require "moe.results.head"
local html = require "moe.results.page.html"
local results = require "moe.results.results"
local simulated = require "moe.results.report.simulated"
local sweep = require "moe.results.charts.sweep"

local M = {}

local MAX_OPEN = 40    -- with more runs than this, tables are folded
local MAX_PRINT = 100  -- more rows or charts than this stay folded in print
local MAX_PANELS = 12  -- with more charts of one kind than this, they are folded

--- Returns the point of a simulated run as text: "p4de, 16 devices; gate = top2". names: its
--- coordinates.
function M.point_text(run, names)
  local parts = { ("%s, %d devices"):format(run.cluster, run.devices) }
  for _, name in ipairs(names) do
    local value = format.coordinate(run, name)
    if value ~= run.cluster then parts[#parts + 1] = ("%s = %s"):format(name, value) end
  end
  return table.concat(parts, "; ")
end

-- Returns the block of a table, folded behind its title if there are many runs.
local function folded(t, R)
  if #R.runs <= MAX_OPEN then return t end
  local title = ("%s, %d runs"):format(t.title, #R.runs)
  return { kind = "fold", title = title, long = #t.rows > MAX_PRINT, t }
end

local function assumed_table(R)
  local rows, said = { { "constant", "value", "least", "most", "why" } }, {}
  for run in R:each() do
    for path, c in pairs(run.assumed or {}) do
      if not said[path] then
        rows[#rows + 1] = { path, ("%g"):format(c.value), ("%g"):format(c.lo),
          ("%g"):format(c.hi), c.why }
      end
      said[path] = true
    end
  end
  local title = ("The cost model rests on %d assumed constants"):format(#rows - 1)
  return { kind = "fold", title = title, blocks.table("constants", "Assumed constants", rows) }
end

local function charts_of(what, charts)
  if #charts <= MAX_PANELS then return blocks.grid(charts) end
  return { kind = "fold", title = ("%s, %d charts"):format(what, #charts),
    long = #charts > MAX_PRINT, blocks.grid(charts) }
end

--- Returns the blocks of the runs R; refused: what was refused, as results.json has it.
function M.blocks(R, refused)
  local groups, names = R:groups(results.case_of), format.coordinates(R, #refused > 0)
  local charts = sweep.charts(groups, R, function(run)
    return M.point_text(run, names) .. ", simulated"
  end)
  local out = { blocks.html(html.h4 { "Simulated ",
    html.span { class = "badge simulated", "simulated" } }),
    blocks.text(head.lines(R.runs)), blocks.text(format.statistic_lines(R.runs)),
    folded(blocks.table("steps", "Steps, simulated", simulated.rows(groups, names, refused),
      { keys = #names + 1 }), R),
    blocks.text(assumed_routing.lines(R.runs)), blocks.text(simulated.out_of_memory_lines(R)),
    blocks.text(effects.lines(R.runs)) }
  if #groups > 1 and #groups[1] > 1 then
    local rows, base = simulated.speedup_rows(groups, names, R)
    out[#out + 1] = folded(blocks.table("speedups", ("Speed-up over %s, simulated"):format(base),
      rows), R)
  end
  out[#out + 1] = assumed_table(R)
  out[#out + 1] = blocks.grid(charts.overview)
  out[#out + 1] = charts_of("Time of a step, simulated", charts.panels)
  out[#out + 1] = charts_of("Parts of each step, simulated", charts.points)
  return out
end

return M
