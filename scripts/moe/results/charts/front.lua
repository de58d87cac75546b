-- The trade-off that a search found: all mixes that it simulated, and its front.
local axes = require "moe.results.charts.axes"
local html = require "moe.results.page.html"
local lines = require "moe.results.charts.lines"
local svg = require "moe.results.charts.svg"

local M = {}

local GIB = 2 ^ 30
local MAX_SEEN = 2000      -- largest number of mixes that are drawn
local FRONT, BEST = 1, 2   -- numbers of their series

local function dot(out, mix, x_of, y_of)
  out[#out + 1] = html.circle { cx = svg.num(x_of(mix.iteration_ms)),
    cy = svg.num(y_of(mix.peak_bytes / GIB)), r = 2, class = "seen",
    html.title { ("%s: %.4g ms, %.3g GiB"):format(mix.label or "a mix", mix.iteration_ms,
      mix.peak_bytes / GIB) } }
end

-- Writes the number of a mix of the front, right of its place or left of it at the edge, unless it
-- would lie on one of those placed so far.
local function number_at(out, placed, x, y, number)
  local left = x > svg.WIDTH - 26
  x, y = x + (left and -6 or 6), y - 5
  for _, p in ipairs(placed) do
    if math.abs(p.x - x) < 18 and math.abs(p.y - y) < 12 then return end
  end
  placed[#placed + 1] = { x = x, y = y }
  out[#out + 1] = svg.text(x, y, number, "tick", left and "end")
end

-- Draws the front as steps: between two of its mixes none is better in one and no worse in the
-- other than they are.
local function draw_front(out, front, x_of, y_of)
  local points, last, placed = {}, nil, {}
  for i, run in ipairs(front) do
    local x, y = svg.num(x_of(run.iteration_ms)), svg.num(y_of(run.peak_bytes / GIB))
    if last then points[#points + 1] = x .. "," .. last end
    points[#points + 1], last = x .. "," .. y, y
    out[#out + 1] = svg.mark(FRONT, x_of(run.iteration_ms), y_of(run.peak_bytes / GIB))
    number_at(out, placed, x_of(run.iteration_ms), y_of(run.peak_bytes / GIB), i)
  end
  out[#out + 1] = html.polyline { points = table.concat(points, " "),
    class = svg.series_class("line", FRONT) }
end

--- Returns the chart of a search. t = { name =, title =, seen = a list of { iteration_ms =,
--- peak_bytes =, label = }, front = runs, sorted by iteration_ms, which are numbered in this order,
--- best = a run or nil }.
function M.front(t)
  local xs, ys = {}, {}
  for _, list in ipairs { t.seen, t.front } do
    for _, mix in ipairs(list) do
      xs[#xs + 1], ys[#ys + 1] = mix.iteration_ms, mix.peak_bytes / GIB
    end
  end
  local function scale(list) return axes.linear(axes.range_of(list, math.huge, -math.huge)) end
  t.x, t.y, t.x_label, t.y_label = scale(xs), scale(ys), "time of a step, ms", "peak memory, GiB"
  t.legend = { { doc = ("%d mixes and known systems that fit"):format(#t.seen),
    mark = html.circle { cx = 11, cy = 6, r = 2, class = "seen" } },
    svg.series_entry(FRONT, "front, numbered as in the table") }
  if t.best then
    t.legend[3] = { doc = "best", mark = svg.mark(BEST, 11, 6) }
  end
  return axes.plot(t, function(out, x_of, y_of)
    for _, i in ipairs(lines.some(#t.seen, MAX_SEEN)) do dot(out, t.seen[i], x_of, y_of) end
    draw_front(out, t.front, x_of, y_of)
    if t.best then
      out[#out + 1] = svg.mark(BEST, x_of(t.best.iteration_ms), y_of(t.best.peak_bytes / GIB),
        "best")
    end
  end)
end

return M
