-- Draws the turns of pipeline ranks: one row per rank, a rectangle per turn with the number of its
-- micro-batch, in the colour of its kind, which is lighter from one stage of a rank to the next.
local axes = require "moe.results.charts.axes"
local svg = require "moe.results.charts.svg"

local M = {}

--- Turns in all that a picture can still show.
M.MOST = 2000

local WIDTH, LABEL, ROW, CHAR = 840, 62, 20, 6.2

local KINDS = { { "F", "forward" }, { "B", "backward" }, { "I", "gradient of the input" },
  { "W", "gradient of the weights" } }

local function legend_of(ranks)
  local seen, entries = {}, {}
  for _, rank in ipairs(ranks) do
    for _, turn in ipairs(rank.turns) do seen[turn.text:match "%a"] = true end
  end
  for _, kind in ipairs(KINDS) do
    if seen[kind[1]] then entries[#entries + 1] = { class = "t-" .. kind[1], doc = kind[2] } end
  end
  return entries
end

-- Returns the number of each stage among those of a rank, from 0.
local function chunks_of(rank)
  local numbers, count = {}, 0
  for _, turn in ipairs(rank.turns) do
    local stage = turn.text:match "^%d+"
    if not numbers[stage] then numbers[stage], count = count, count + 1 end
  end
  return numbers
end

--- Returns the chart of a run's pipeline ranks: ranks[rank].turns = { { text, begin_ms, end_ms } };
--- the axis ends at end_ms.
function M.chart(name, title, ranks, end_ms)
  local t = { name = name, title = title, width = WIDTH, legend = legend_of(ranks) }
  local out, top = svg.begin(t)
  local wide = WIDTH - LABEL - 8
  local function x_of(ms) return LABEL + wide * ms / end_ms end
  for r, rank in ipairs(ranks) do
    local y, chunks = top + (r - 1) * ROW, chunks_of(rank)
    out[#out + 1] = svg.text(4, y + 14, ("rank %d"):format(r), "tick")
    for _, turn in ipairs(rank.turns) do
      local stage, kind, micro = turn.text:match "^(%d+)(%a)(%d+)$"
      local x, width = x_of(turn.begin_ms), wide * (turn.end_ms - turn.begin_ms) / end_ms
      out[#out + 1] = svg.rect(x, y + 1, width, ROW - 2,
        ("turn t-%s v%d"):format(kind, math.min(chunks[stage], 3)),
        ("%s: %.3f to %.3f ms"):format(turn.text, turn.begin_ms, turn.end_ms))
      if CHAR * #micro <= width then
        out[#out + 1] = svg.text(x + width / 2, y + 14, micro, "turn", "middle")
      end
    end
  end
  local bottom = top + #ranks * ROW
  axes.from_zero(out, end_ms, 8, x_of, bottom, bottom, LABEL + wide / 2, "time, ms")
  return svg.chart(t, bottom + 40, out)
end

return M
