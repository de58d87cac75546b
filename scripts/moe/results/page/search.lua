-- The blocks (page/blocks.lua) of searches for the best mix.
local bars = require "moe.results.charts.bars"
local blocks = require "moe.results.page.blocks"
local front = require "moe.results.charts.front"
local html = require "moe.results.page.html"
local number_bytes = require "moe.results.number_bytes"
local tables = require "moe.search.tables"

local M = {}

local LOST = { { class = "compute", doc = "time of a step that the technique saves" } }

local function objective_text(objective)
  return type(objective) == "table" and table.concat(objective, ", ") or tostring(objective)
end

local function front_rows(runs)
  local rows = tables.front { front = runs }
  for i, row in ipairs(rows) do table.insert(row, 1, i == 1 and "number" or i - 1) end
  return rows
end

local function contributions(s)
  local groups = {}
  for _, c in ipairs(s.contributions) do
    if c.without_ms and not c.oom then
      local saved = c.without_ms - c.best_ms
      groups[#groups + 1] = { bars = { { label = c.technique,
        value = ("%+.1f%%"):format(100 * saved / c.best_ms), parts = { math.max(saved, 0) } } } }
    end
  end
  return #groups > 0 and bars.bars { name = "contributions",
    title = "What each technique of the best mix saves", groups = groups, parts = LOST, unit = "ms",
    x_label = "time of a step without it minus the best, ms; at the right as a share" } or nil
end

local function by_time(runs)
  local out = { unpack(runs) }
  table.sort(out, function(a, b) return a.iteration_ms < b.iteration_ms end)
  return out
end

function M.blocks(s)
  local runs = by_time(s.front)
  local numbers = number_bytes.lines { s.best }
  local out = { blocks.html(html.h3 { "Search: ", s.name }), blocks.text { unpack(numbers) },
    blocks.text { tables.head(s), "Objective: " .. objective_text(s.objective), tables.seen(s),
      tables.bound(s), unpack(tables.notes(s)) },
    blocks.table("top", "The plain mix, the best ones and the best known system", tables.top(s)),
    blocks.table("times", "Where the time goes", tables.times(s)),
    blocks.grid { front.front { name = "front", seen = s.seen, front = runs,
      title = ("%s: time and memory of the mixes, simulated"):format(s.name), best = s.best },
      contributions(s) },
    blocks.table("front", "The front", front_rows(runs)) }
  if #s.contributions > 0 then
    out[#out + 1] = blocks.table("contributions", "Each technique of the best mix left out",
      tables.contributions(s))
  end
  blocks.note_all(out, numbers)
  return out
end

return M
