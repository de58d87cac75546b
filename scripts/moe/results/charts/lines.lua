-- Charts of lines: over a numeric axis, over steps, and cumulative distributions.
local axes = require "moe.results.charts.axes"
local html = require "moe.results.page.html"
local svg = require "moe.results.charts.svg"

local M = {}

local MAX_MARKS = 60    -- largest number of marks on a line
local MAX_POINTS = 400  -- largest number of points of a line
local SHIFT = 4         -- px between the whiskers of two series

-- Returns at most `most` indices from 1 to `count`, evenly spread, including the first and last.
local function some(count, most)
  local indices, n = {}, math.min(count, most)
  for k = 1, n do
    indices[k] = n == 1 and 1 or math.floor(1 + (k - 1) * (count - 1) / (n - 1) + 0.5)
  end
  return indices
end

M.some = some

local function point(x, y) return svg.num(x) .. "," .. svg.num(y) end

-- Draws the line and the marks of a series { label =, number =, xs =, ys =, lo =, hi = }. shift: px
-- by which its whiskers are to the right of those of other series.
local function draw_series(out, s, x_of, y_of, t, shift)
  local points = {}
  for k, i in ipairs(some(#s.xs, MAX_POINTS)) do points[k] = point(x_of(s.xs[i]), y_of(s.ys[i])) end
  out[#out + 1] = html.polyline { points = table.concat(points, " "),
    class = svg.series_class("line", s.number) }
  for _, i in ipairs(some(#s.xs, MAX_MARKS)) do
    local x, y = x_of(s.xs[i]), y_of(s.ys[i])
    if s.lo and s.hi[i] > s.lo[i] then
      local class = svg.series_class("line whisker", s.number)
      out[#out + 1] = svg.line(x + shift, y_of(s.lo[i]), x + shift, y_of(s.hi[i]), class)
    end
    out[#out + 1] = svg.mark(s.number, x, y, ("%s, %s %s: %.4g"):format(s.label, t.x_label,
      axes.tick_text(s.xs[i]), s.ys[i]))
  end
end

local function range_of(t)
  local lo, hi = t.from or math.huge, -math.huge
  for _, s in ipairs(t.series) do
    for _, list in ipairs { s.ys, s.lo or s.ys, s.hi or s.ys } do
      lo, hi = axes.range_of(list, lo, hi)
    end
  end
  return lo, hi
end

local function legend_of(series)
  local entries = {}
  for i, s in ipairs(series) do entries[i] = svg.series_entry(s.number, s.label) end
  return entries
end

--- Returns a chart of lines over an axis. t = { name =, title =, x_label =, y_label =, from = a
--- value that the vertical axis contains, or nil, x = scale or nil for that of all values, series =
--- a list of { label =, number = that of its colour, xs =, ys =, lo =, hi = ends of whiskers or nil
--- } }. Values are sorted by x.
function M.lines(t)
  local seen, values = {}, {}
  for _, s in ipairs(t.series) do
    for _, x in ipairs(s.xs) do
      if not seen[x] then seen[x], values[#values + 1] = true, x end
    end
  end
  table.sort(values)
  t.x = t.x or axes.of_values(values)
  t.y, t.legend = axes.linear(range_of(t)), legend_of(t.series)
  return axes.plot(t, function(out, x_of, y_of)
    for i, s in ipairs(t.series) do
      draw_series(out, s, x_of, y_of, t, SHIFT * (i - (#t.series + 1) / 2))
    end
  end)
end

--- Returns a chart of curves over steps, from step 1; series: a list of { label =, ys = } or of
--- such with xs.
function M.steps(t)
  local count = 1
  for i, s in ipairs(t.series) do
    s.number, s.xs = i, {}
    for step = 1, #s.ys do s.xs[step] = step end
    count = math.max(count, #s.ys)
  end
  local ticks, step = {}, math.max(1, axes.tick_step(count, 10))
  for v = 1, count, step do ticks[#ticks + 1] = v end
  t.x = { ticks = ticks, at = function(v)
    return count == 1 and 0.5 or 0.02 + 0.96 * (v - 1) / (count - 1)
  end }
  t.x_label = "step"
  return M.lines(t)
end

--- Returns a chart of cumulative distributions: of each series { label =, number =, values = } the
--- share of its values that are at most x.
function M.distribution(t)
  local lo, hi = math.huge, -math.huge
  for _, s in ipairs(t.series) do lo, hi = axes.range_of(s.values, lo, hi) end
  t.x, t.y, t.legend = axes.linear(lo, hi, 7), axes.linear(0, 100), legend_of(t.series)
  t.y_label = t.y_label or "share of points, %"
  return axes.plot(t, function(out, x_of, y_of)
    for _, s in ipairs(t.series) do
      local sorted, points = { unpack(s.values) }, { }
      table.sort(sorted)
      points[1] = point(x_of(sorted[1]), y_of(0))
      for _, i in ipairs(some(#sorted, MAX_POINTS)) do
        local x = x_of(sorted[i])
        points[#points + 1] = point(x, y_of(100 * (i - 1) / #sorted))
        points[#points + 1] = point(x, y_of(100 * i / #sorted))
      end
      local middle = sorted[math.floor((#sorted + 1) / 2)]
      out[#out + 1] = html.polyline { points = table.concat(points, " "),
        class = svg.series_class("line", s.number) }
      out[#out + 1] = svg.mark(s.number, x_of(middle), y_of(50), ("%s, median %.4g"):format(
        s.label, middle))
    end
  end)
end

return M
