-- Tornado: how far a number moves when each assumed constant goes to the ends of its band.
local axes = require "moe.results.charts.axes"
local svg = require "moe.results.charts.svg"

local M = {}

local WIDTH, LABEL, RIGHT = 600, 290, 16  -- widths
local BAR, GAP = 14, 8                    -- heights
local MAX_BARS = 15                       -- constants that are drawn

local ENTRIES = { { class = "at-lo", doc = "constant at the lower end of its band" },
  { class = "at-hi", doc = "at the upper end" } }

local function draw_bar(out, s, y, ours, x_of)
  local function part(value, class, constant)
    if not value then return end
    local a, b = x_of(math.min(value, ours)), x_of(math.max(value, ours))
    out[#out + 1] = svg.rect(a, y, b - a, BAR, class, ("%s = %g: %.4g"):format(s.constant, constant,
      value))
  end
  part(s.at_lo, "at-lo", s.lo)
  part(s.at_hi, "at-hi", s.hi)
  local text = ("%s: %g to %g"):format(s.constant, s.lo, s.hi)
  out[#out + 1] = svg.text(4, y + 11, svg.shortened(text, LABEL - 8), "tick")
end

--- Returns the chart. t = { name =, title =, x_label = (with its unit), ours = the number at the
--- constants' values, sensitivity = a list of { constant =, lo, hi = its band, at_lo, at_hi = the
--- number at its ends or nil }, the largest difference first, neutral = a value that is marked, or
--- nil }.
function M.tornado(t)
  t.width, t.legend = WIDTH, ENTRIES
  local out, top = svg.begin(t)
  local lo, hi, shown = t.ours, t.ours, math.min(#t.sensitivity, MAX_BARS)
  for _, s in ipairs(t.sensitivity) do
    lo, hi = axes.range_of({ s.at_lo or t.ours, s.at_hi or t.ours }, lo, hi)
  end
  local scale = axes.linear(lo, hi, 6)
  local function x_of(v) return LABEL + scale.at(v) * (WIDTH - LABEL - RIGHT) end
  local bottom = top + shown * (BAR + GAP)
  for _, v in ipairs(scale.ticks) do
    out[#out + 1] = svg.line(x_of(v), top, x_of(v), bottom + 4, "rule")
    out[#out + 1] = svg.text(x_of(v), bottom + 16, axes.tick_text(v), "tick", "middle")
  end
  for i = 1, shown do
    draw_bar(out, t.sensitivity[i], top + (i - 1) * (BAR + GAP) + GAP / 2, t.ours, x_of)
  end
  out[#out + 1] = svg.line(x_of(t.ours), top, x_of(t.ours), bottom, "bound")
  out[#out + 1] = svg.text((LABEL + WIDTH) / 2, bottom + 32, ("%s; line: %.4g"):format(t.x_label,
    t.ours), "unit", "middle")
  local left_out = #t.sensitivity - shown
  if left_out > 0 then
    out[#out + 1] = svg.text(4, bottom + 32, ("%d more move it less"):format(left_out), "tick")
  end
  return svg.chart(t, bottom + 40, out)
end

return M
