-- Axes of charts: round ticks, scales, and the frame of a chart with two axes.
local svg = require "moe.results.charts.svg"
local html = require "moe.results.page.html"

local M = {}

local HEIGHT = 190      -- of the area between the axes
local RIGHT = 14        -- px right of that area
local DOUBLE = 1.9      -- least ratio of each value to the one before for a logarithmic axis

--- Returns a round step that divides `span` into at most `count` parts.
function M.tick_step(span, count)
  local power = 10 ^ math.floor(math.log10(span / count))
  for _, factor in ipairs { 1, 2, 5 } do
    if span / (factor * power) <= count then return factor * power end
  end
  return 10 * power
end

function M.tick_text(x)
  if math.abs(x) >= 1e6 then return (("%.3g"):format(x):gsub("e%+0*", "e")) end
  return ("%.6g"):format(x)
end

--- Returns the smallest and largest number among those in the list, lo and hi.
function M.range_of(list, lo, hi)
  for _, v in ipairs(list) do lo, hi = math.min(lo, v), math.max(hi, v) end
  return lo, hi
end

--- Returns a scale { at(v) = the place of v from 0 to 1, ticks = values }, linear and with round
--- ends. whole: true if all ticks must be whole numbers.
function M.linear(lo, hi, count, whole)
  if hi <= lo then lo, hi = lo - (lo == 0 and 0 or 0.5), lo + 0.5 end
  local step = M.tick_step(hi - lo, count or 5)
  if whole then step = math.max(step, 1) end
  lo, hi = math.floor(lo / step + 1e-9) * step, math.ceil(hi / step - 1e-9) * step
  local ticks = {}
  for k = 0, math.floor((hi - lo) / step + 0.5) do ticks[k + 1] = lo + k * step end
  return { at = function(v) return (v - lo) / (hi - lo) end, ticks = ticks }
end

--- Returns the scale of an axis of the sorted values that a sweep takes, with a tick at each of
--- them: logarithmic where each is about twice the one before or more.
function M.of_values(values)
  local lo, hi, log = values[1], values[#values], values[1] > 0
  for i = 2, #values do log = log and values[i] >= DOUBLE * values[i - 1] end
  local function f(v) return log and math.log(v) or v end
  local margin = 0.03  -- so that marks do not lie on the frame
  local function at(v)
    if hi == lo then return 0.5 end
    return margin + (1 - 2 * margin) * (f(v) - f(lo)) / (f(hi) - f(lo))
  end
  return { at = at, ticks = values }
end

--- Adds a horizontal axis from 0 to `most` with about `count` ticks, whose lines begin at `top`,
--- and its label at `middle`.
function M.from_zero(out, most, count, x_of, top, bottom, middle, label)
  local step = M.tick_step(most, count)
  for k = 0, math.floor(most / step + 1e-9) do
    local x = x_of(k * step)
    out[#out + 1] = svg.line(x, top, x, bottom + 4, "rule")
    out[#out + 1] = svg.text(x, bottom + 16, M.tick_text(k * step), "tick", "middle")
  end
  out[#out + 1] = svg.text(middle, bottom + 32, label, "unit", "middle")
end

-- Adds the ticks of the horizontal axis; a text that would touch the one before it is omitted.
local function draw_x(out, t, x_of, top, bottom)
  local last = -math.huge
  for _, v in ipairs(t.x.ticks) do
    local x, text = x_of(v), M.tick_text(v)
    local half = svg.text_width(text) / 2
    out[#out + 1] = svg.line(x, top, x, bottom + 4, "rule")
    if x - half > last + 5 then
      out[#out + 1] = svg.text(x, bottom + 16, text, "tick", "middle")
      last = x + half
    end
  end
end

--- Returns a chart with two axes: t = { name =, title =, width =, legend =, x = scale, y = scale,
--- x_label =, y_label = (with units), height = HEIGHT unless given }; draw(out, x_of, y_of) adds
--- what is between the axes to `out`; x_of and y_of return the place of a value in px.
function M.plot(t, draw)
  local out, y = svg.begin(t)
  local width, height, wide = t.width or svg.WIDTH, t.height or HEIGHT, 0
  for _, v in ipairs(t.y.ticks) do wide = math.max(wide, svg.text_width(M.tick_text(v))) end
  local left, top = 26 + wide, y + 6
  local right, bottom = width - RIGHT, top + height
  local function x_of(v) return left + t.x.at(v) * (right - left) end
  local function y_of(v) return bottom - t.y.at(v) * (bottom - top) end
  for _, v in ipairs(t.y.ticks) do
    out[#out + 1] = svg.line(left, y_of(v), right, y_of(v), "rule")
    out[#out + 1] = svg.text(left - 6, y_of(v) + 4, M.tick_text(v), "tick", "end")
  end
  draw_x(out, t, x_of, top, bottom)
  out[#out + 1] = svg.line(left, bottom, right, bottom, "axis")
  out[#out + 1] = svg.text((left + right) / 2, bottom + 33, t.x_label, "unit", "middle")
  local middle = (top + bottom) / 2
  out[#out + 1] = html.text { x = 12, y = svg.num(middle), class = "unit",
    ["text-anchor"] = "middle", transform = ("rotate(-90 12 %s)"):format(svg.num(middle)),
    t.y_label }
  draw(out, x_of, y_of)
  return svg.chart(t, bottom + 40, out)
end

return M
