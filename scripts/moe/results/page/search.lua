-- The blocks (page/blocks.lua) of searches for the best mix.
local bars = require "moe.results.charts.bars"
local blocks = require "moe.results.page.blocks"
local format = require "moe.results.report.format"
local front = require "moe.results.charts.front"
local html = require "moe.results.page.html"

local M = {}

local LOST = { { class = "compute", doc = "time of a step that the technique saves" } }

local function objective_text(objective)
  return type(objective) == "table" and table.concat(objective, ", ") or tostring(objective)
end

-- Returns a line on how much of the space was seen.
local function seen_line(s)
  if not s.simulated then return nil end
  local of = s.space and (" of %d mixes"):format(s.space) or ""
  return ("%d simulations%s; %s"):format(s.simulated, of,
    s.exhaustive and "the whole space was seen" or "a part of the space was seen")
end

local function front_rows(runs)
  local rows = { { "number", "system", "iteration ms", "peak GiB" } }
  for i, run in ipairs(runs) do
    rows[i + 1] = { i, format.system_text(run), format.ms(run.iteration_ms),
      ("%.2f"):format(run.peak_bytes / 2 ^ 30) }
  end
  return rows
end

-- Returns a chart and a table of what each technique of the best mix contributes.
local function contributions(s)
  local groups, rows = {}, { { "technique", "without it, ms", "best, ms", "it saves" } }
  for i, c in ipairs(s.contributions) do
    local saved = c.without_ms - c.best_ms
    local share = ("%+.1f%%"):format(100 * saved / c.best_ms)
    groups[i] = { bars = { { label = c.technique, value = share,
      parts = { math.max(saved, 0) } } } }
    rows[i + 1] = { c.technique, format.ms(c.without_ms), format.ms(c.best_ms), share }
  end
  return bars.bars { name = "contributions", title = "What each technique of the best mix saves",
      groups = groups, parts = LOST, unit = "ms",
      x_label = "time of a step without it minus the best, ms; at the right as a share" },
    blocks.table("contributions", "Each technique of the best mix left out", rows)
end

-- Returns the runs sorted by time.
local function by_time(runs)
  local out = { unpack(runs) }
  table.sort(out, function(a, b) return a.iteration_ms < b.iteration_ms end)
  return out
end

--- Returns the blocks of a search.
function M.blocks(s)
  local runs = by_time(s.front)
  local out = { blocks.html(html.h3 { "Search: ", s.name }),
    blocks.text { "Objective: " .. objective_text(s.objective), seen_line(s) } }
  local grid = blocks.grid { front.front { name = "front", seen = s.seen, front = runs,
    title = ("%s: time and memory of the mixes, simulated"):format(s.name), best = s.best } }
  out[3], out[4] = grid, blocks.table("front", "The front", front_rows(runs))
  if s.contributions and #s.contributions > 0 then grid[2], out[5] = contributions(s) end
  return out
end

return M
