-- Heat maps over two numeric axes: a cell per pair of values, with the number in it.
local axes = require "moe.results.charts.axes"
local svg = require "moe.results.charts.svg"

local M = {}

local SHADES = 7        -- classes q0 to q6 of chart.css
local CELL = 26         -- height of a cell
local MAX_CELL = 64     -- width of a cell
local RIGHT = 8

-- Returns the class of a cell's colour. Values below t.neutral have a colour of their own.
local function shade(v, lo, hi, neutral)
  if neutral and v < neutral - 0.005 then return "below" end
  local part = hi > lo and (v - lo) / (hi - lo) or 0
  return "q" .. math.min(SHADES - 1, math.max(0, math.floor(part * SHADES)))
end

-- Returns the legend: the colours with the values at which they begin.
local function legend_of(lo, hi, t, has_below)
  local entries = {}
  if has_below then entries[1] = { class = "cell below", doc = "below " .. t.text(t.neutral) } end
  for _, i in ipairs(hi > lo and { 0, 3, 6 } or { 0 }) do
    local from = lo + i * (hi - lo) / SHADES
    entries[#entries + 1] = { class = "cell q" .. i, doc = "from " .. t.text(from) }
  end
  return entries
end

local function values_of(t)
  local lo, hi, below = math.huge, -math.huge, false
  for _, row in pairs(t.cells) do
    for _, v in pairs(row) do
      local under = t.neutral and v < t.neutral - 0.005
      below = below or under
      if not under then lo, hi = math.min(lo, v), math.max(hi, v) end
    end
  end
  if lo > hi then lo, hi = t.neutral, t.neutral end
  return lo, hi, below
end

local function draw_cell(out, t, x, y, width, v, lo, hi)
  local class = shade(v.value, lo, hi, t.neutral)
  out[#out + 1] = svg.rect(x, y, width, CELL, "cell " .. class, v.say)
  local text = t.text(v.value)
  if svg.text_width(text) <= width - 2 then
    out[#out + 1] = svg.text(x + width / 2, y + CELL / 2 + 4, text, "in-" .. class, "middle")
  end
end

-- Draws the names of rows and columns; a name that would touch the one before it is omitted.
local function draw_names(out, t, place)
  for j, v in ipairs(t.ys) do
    local middle = place.y_of(j) + CELL / 2 + 4
    out[#out + 1] = svg.text(place.left - 6, middle, axes.tick_text(v), "tick", "end")
  end
  local last = -math.huge
  for i, v in ipairs(t.xs) do
    local x, text = place.x_of(i) + place.width / 2, axes.tick_text(v)
    local half = svg.text_width(text) / 2
    if x - half > last + 4 then
      out[#out + 1] = svg.text(x, place.bottom + 15, text, "tick", "middle")
      last = x + half
    end
  end
end

--- Returns a heat map. t = { name =, title =, x_label =, y_label =, xs =, ys = sorted values,
--- cells[x][y] = number, text(v) = the number in a cell, neutral = the value below which a cell has
--- another colour, or nil }. The largest y is at the top.
function M.map(t)
  local lo, hi, has_below = values_of(t)
  t.legend = legend_of(lo, hi, t, has_below)
  local out, top = svg.begin(t)
  out[#out + 1] = svg.text(4, top + 9, t.y_label, "unit")
  top = top + 16
  local wide = 0
  for _, v in ipairs(t.ys) do wide = math.max(wide, svg.text_width(axes.tick_text(v))) end
  local left = 12 + wide
  local width = math.min(MAX_CELL, (svg.WIDTH - left - RIGHT) / #t.xs)
  local place = { left = left, width = width, bottom = top + #t.ys * CELL,
    x_of = function(i) return left + (i - 1) * width end,
    y_of = function(j) return top + (#t.ys - j) * CELL end }
  for i, x in ipairs(t.xs) do
    for j, y in ipairs(t.ys) do
      local v = t.cells[x] and t.cells[x][y]
      if v then
        draw_cell(out, t, place.x_of(i), place.y_of(j), width, { value = v,
          say = ("%s %s, %s %s: %s"):format(t.x_label, axes.tick_text(x), t.y_label,
            axes.tick_text(y), t.text(v)) }, lo, hi)
      end
    end
  end
  draw_names(out, t, place)
  out[#out + 1] = svg.text(left + #t.xs * width / 2, place.bottom + 32, t.x_label, "unit", "middle")
  return svg.chart(t, place.bottom + 40, out)
end

return M
