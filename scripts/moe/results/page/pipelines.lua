-- The blocks (page/blocks.lua) of pipeline ranks: a picture of their turns for some runs, and for
-- all a table of what each rank does.
local blocks = require "moe.results.page.blocks"
local format = require "moe.results.report.format"
local html = require "moe.results.page.html"
local pipeline = require "moe.results.charts.pipeline"

local M = {}

local MOST = 8  -- pictures of a folder

local CAUSES = { { "busy_ms", "compute" }, { "fill_ms", "fill" }, { "drain_ms", "drain" },
  { "stages_ms", "other stages" }, { "wire_ms", "wire" }, { "exchange_ms", "exchanges" },
  { "members_ms", "late members" }, { "host_ms", "host" } }

local function title_of(run)
  return ("%s, %d pipeline ranks, %s"):format(format.system_text(run), #run.pipeline,
    run.provenance)
end

-- Returns the length in ms of the step that `pipeline` of a run describes.
local function step_of(rank)
  local sum = 0
  for _, cause in ipairs(CAUSES) do sum = sum + rank[cause[1]] end
  return sum
end

function M.blocks(R)
  local out, rows = {}, { { "run", "rank", "peak GiB" } }
  for _, cause in ipairs(CAUSES) do table.insert(rows[1], cause[2] .. " %") end
  local runs, longest = R:where { pipeline = function(p) return p ~= nil end }, 0
  for run in runs:each() do longest = math.max(longest, step_of(run.pipeline[1])) end
  for run in runs:each() do
    if #out < MOST and run.pipeline[1].turns then
      out[#out + 1] = pipeline.chart("pipeline", title_of(run), run.pipeline, longest)
    end
    for r, rank in ipairs(run.pipeline) do
      local row = { r == 1 and title_of(run) or "", r,
        run.peak_bytes_by_rank and ("%.3g"):format(run.peak_bytes_by_rank[r] / 2 ^ 30) or "-" }
      for _, cause in ipairs(CAUSES) do
        row[#row + 1] = ("%.1f"):format(100 * rank[cause[1]] / step_of(rank))
      end
      rows[#rows + 1] = row
    end
  end
  if #rows == 1 then return {} end
  table.insert(out, 1, blocks.html { html.h3 { "Pipeline ranks" } })
  out[#out + 1] = blocks.table("pipeline-ranks",
    "What each pipeline rank does, mean over its devices, in percent of a step (simulated: the "
      .. "first, executed: the last); idle time by what it waits for", rows)
  return out
end

return M
