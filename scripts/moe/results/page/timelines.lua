-- The blocks (page/blocks.lua) of timelines: those of a point have one axis and stand together.
local blocks = require "moe.results.page.blocks"
local core = require "moe.core"
local differences = require "moe.results.report.differences"
local format = require "moe.results.report.format"
local html = require "moe.results.page.html"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local simulated = require "moe.results.page.simulated"
local timeline = require "moe.results.charts.timeline"
local trace = require "moe.results.trace"

local M = {}

local MAX_TIMELINES = 6  -- largest number of timelines for a folder
-- Largest file that is read: all timelines together take up to six times as much in Lua, and a file
-- of this size has five times as many events as a picture can show.
local MAX_BYTES = 8 * 2 ^ 20

-- Returns a list of { run, group, place, rank } for the runs that have a trace, sorted by rank (0
-- to 3) and place (their order in R): first the first and the fastest system of each point, then
-- the others; in both, executed runs before simulated ones.
local function traced(R)
  local list = {}
  for g, group in ipairs(R:groups(results.case_of)) do
    local best
    for _, run in ipairs(group) do
      if not best or run.iteration_ms < best.iteration_ms then best = run end
    end
    for i, run in ipairs(group) do
      local rank = (i == 1 or run == best) and 0 or 2
      list[#list + 1] = { run = run, group = g, place = #list,
        rank = rank + (run.provenance == "simulated" and 1 or 0) }
    end
  end
  return schema.sorted(list, function(one) return one.rank, one.place end)
end

local function captions(R)
  local executed = R:where { provenance = { "emulated", "measured" } }:groups(results.case_of)
  local names, out = format.coordinates(R:where { provenance = "simulated" }, true), {}
  for g, lines in ipairs(differences.of(executed)) do
    for _, run in ipairs(executed[g]) do
      local what = ("predicted (simulated) and executed (%s)"):format(run.provenance)
      out[run] = table.concat({ what, unpack(lines) }, "; ")
    end
  end
  for run in R:where { provenance = "simulated" }:each() do
    out[run] = simulated.point_text(run, names) .. ", simulated"
  end
  return out
end

-- Returns the trace of a run; nil and why it cannot be shown; or nil alone if its file is gone,
-- which it says: the numbers of the run are in results.json.
local function read_trace(dir, run)
  local found, text = pcall(core.read_file, dir .. "/" .. run.trace)
  if not found then return core.warn(("%s; the run's timeline is left out"):format(text)) end
  if #text > MAX_BYTES then return nil, (" (%.0f MiB)"):format(#text / 2 ^ 20) end
  local read = trace.read(dir, run)
  local why = trace.too_large(read, timeline.MAX_ROWS)
  if why then return nil, (" (%s)"):format(why) end
  return read
end

-- Returns the timelines that are shown, a list of { run, group, place, trace }, the names of the
-- others, and the names of those that cannot be read.
local function chosen(dir, R)
  local shown, left_out, lost = {}, {}, {}
  for _, item in ipairs(traced(R)) do
    local why = ""
    if #shown < MAX_TIMELINES then item.trace, why = read_trace(dir, item.run) end
    if why then
      left_out[#left_out + 1] = item.run.trace .. why
    elseif not item.trace then
      lost[#lost + 1] = item.run.trace
    else
      shown[#shown + 1] = item
    end
  end
  table.sort(shown, function(a, b) return a.place < b.place end)
  return shown, left_out, lost
end

--- Returns the blocks of the timelines of the runs R, whose traces are in the folder `dir`.
function M.blocks(dir, R)
  local with_trace = R:where { trace = function(name) return name ~= nil end }
  local shown, left_out, lost = chosen(dir, with_trace)
  if #shown + #left_out + #lost == 0 then return {} end
  local caption, longest, by_group = captions(with_trace), {}, {}
  local out = { blocks.html { html.h3 { "Timelines" },
    html.p { "One row per lane of a rank; runs of the same point have axes of equal length and "
      .. "move together. Zoom by Ctrl + wheel, the buttons, or the keys + - 0." },
    blocks.legend(timeline.LEGEND) } }
  for _, item in ipairs(shown) do
    longest[item.group] = math.max(longest[item.group] or 0, item.trace.end_us)
  end
  for _, item in ipairs(shown) do
    local block = by_group[item.group]
    if not block then
      block = { kind = "timelines", name = "timelines", title = "Timelines: " .. caption[item.run],
        list = {} }
      by_group[item.group], out[#out + 1] = block, block
    end
    table.insert(block.list, timeline.draw(("%s; %s"):format(format.system_text(item.run),
      caption[item.run]), item.trace, longest[item.group]))
  end
  if #left_out > 0 then
    out[#out + 1] = blocks.text { "Not shown here; open in Perfetto or chrome://tracing: "
      .. table.concat(left_out, ", ") }
  end
  if #lost > 0 then
    out[#out + 1] = blocks.text { "Left out, since their files cannot be read: "
      .. table.concat(lost, ", ") }
  end
  return out
end

return M
