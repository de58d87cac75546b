-- Charts as SVG: bars of steps, lines over steps, and a number in its band. Their coordinates are
-- fixed, and the page scales the SVG.
local html = require "moe.results.page.html"
local report = require "moe.results.report"

local M = {}

local WIDTH, LABEL, VALUE = 560, 168, 48   -- widths: chart, text left of bars, text right of bars
local BAR, GAP, AXIS, TOP = 18, 6, 22, 4   -- heights
local LINES_HEIGHT, LINES_LEFT = 220, 48
local LABEL_CHARS = 25
local MAX_MARKS = 200  -- largest number of steps of a run that are drawn

--- The hatching for hidden communication; must be in the page once.
M.PATTERNS = html.svg { width = 0, height = 0, class = "patterns", ["aria-hidden"] = "true",
  html.pattern { id = "hatch", width = 6, height = 6, patternUnits = "userSpaceOnUse",
    patternTransform = "rotate(45)", html.rect { width = 6, height = 6, class = "compute" },
    html.rect { width = 2.5, height = 6, class = "exposed" } } }

-- The parts of a step in the order in which a bar shows them; page.css gives their classes colours.
local PARTS = {
  { class = "compute", doc = "compute without communication" },
  { class = "hidden", doc = "compute that hides communication" },
  { class = "exposed", doc = "exposed communication" },
  { class = "wait", doc = "waiting" },
}

local function num(x) return (("%.2f"):format(x):gsub("%.?0+$", "")) end

local function tick_text(x) return ("%.6g"):format(x) end

--- Returns a round step that divides `span` into at most `count` parts.
function M.tick_step(span, count)
  local power = 10 ^ math.floor(math.log10(span / count))
  for _, factor in ipairs { 1, 2, 5 } do
    if span / (factor * power) <= count then return factor * power end
  end
  return 10 * power
end

-- Returns the smallest and largest number among those in the list, lo and hi.
local function range_of(list, lo, hi)
  for _, v in ipairs(list) do lo, hi = math.min(lo, v), math.max(hi, v) end
  return lo, hi
end

-- Returns at most MAX_MARKS indices from 1 to `count`, evenly spread, including the first and last.
local function some(count)
  local indices, n = {}, math.min(count, MAX_MARKS)
  for k = 1, n do
    indices[k] = n == 1 and 1 or math.floor(1 + (k - 1) * (count - 1) / (n - 1) + 0.5)
  end
  return indices
end

local function shortened(label)
  if #label <= LABEL_CHARS then return label end
  return (label:sub(1, LABEL_CHARS - 2):gsub("[\192-\255]?[\128-\191]*$", "")) .. "…"
end

local function text_at(x, y, text, anchor, class)
  return html.text { x = num(x), y = num(y), ["text-anchor"] = anchor, class = class, text }
end

local function line_at(x1, y1, x2, y2, class)
  return html.line { x1 = num(x1), y1 = num(y1), x2 = num(x2), y2 = num(y2), class = class }
end

local function figure(title, height, children)
  return html.figure { html.figcaption { title },
    html.svg { viewBox = ("0 0 %d %d"):format(WIDTH, height), role = "img", class = "chart",
      ["aria-label"] = title, children } }
end

--- Returns a legend: for each entry { class =, doc = } (or mark =, an element in place of the
--- class) a swatch and its meaning.
function M.legend(entries)
  local items = {}
  for i, entry in ipairs(entries) do
    items[i] = html.li { html.svg { viewBox = "0 0 22 12", width = 22, height = 12,
      ["aria-hidden"] = "true", entry.mark or html.rect { width = 22, height = 12,
        class = entry.class } }, " ", entry.doc }
  end
  return html.ul { class = "legend", items }
end

M.BAR_LEGEND = M.legend { PARTS[1], PARTS[2], PARTS[3], PARTS[4],
  { mark = line_at(11, 0, 11, 12, "bound"),
    doc = "lower bound: no schedule of the plan's ops can be faster" },
  { mark = html.circle { cx = 11, cy = 6, r = 3, class = "sample" }, doc = "one executed step" },
}

-- Returns the widths, in ms, of the parts of a bar. Hidden communication is a part of the compute
-- time.
local function widths_of(times)
  local hidden = math.min(times.hidden_comm_ms, times.compute_ms)
  return { times.compute_ms - hidden, hidden, times.exposed_comm_ms, times.wait_ms }
end

local function draw_bar(out, bar, y, x_of)
  out[#out + 1] = html.rect { x = 0, y = y + 4, width = 10, height = 10, class = bar.provenance,
    html.title { bar.provenance } }
  out[#out + 1] = text_at(16, y + 13, shortened(bar.label))
  local at = 0
  for i, width in ipairs(bar.oom and {} or widths_of(bar.times)) do
    local x, part = x_of(at), PARTS[i]
    at = at + width
    if width > 0 then
      out[#out + 1] = html.rect { x = num(x), y = y, width = num(x_of(at) - x), height = BAR,
        class = part.class,
        html.title { ("%s: %s %s ms"):format(bar.label, part.doc, report.ms(width)) } }
    end
  end
  for _, i in ipairs(some(#bar.samples)) do
    out[#out + 1] = html.circle { cx = num(x_of(bar.samples[i])), cy = y + BAR / 2, r = 2.5,
      class = "sample" }
  end
  out[#out + 1] = text_at(WIDTH, y + 13, bar.oom and "OOM" or report.ms(bar.times.iteration_ms),
    "end", "strong")
end

local function most_of(groups)
  local most = 0
  for _, group in ipairs(groups) do
    most = math.max(most, group.bound or 0)
    for _, bar in ipairs(group.bars) do
      local step = bar.oom and 0 or bar.times.iteration_ms
      most = select(2, range_of(bar.samples, 0, math.max(most, step)))
    end
  end
  return most > 0 and most or 1
end

--- Returns a chart of steps as bars, in ms. groups: a list of { bound = ms or nil, bars = a list of
--- { label =, provenance =, oom =, times = { iteration_ms, compute_ms, hidden_comm_ms,
--- exposed_comm_ms, wait_ms }, samples = { ms, ... } } }.
function M.bars(title, groups)
  local out, y, most = {}, TOP, most_of(groups)
  local function x_of(ms) return LABEL + ms / most * (WIDTH - LABEL - VALUE) end
  local axis = {}
  for _, group in ipairs(groups) do
    local top = y
    for _, bar in ipairs(group.bars) do
      draw_bar(out, bar, y, x_of)
      y = y + BAR + (#group.bars > 1 and 1 or 0)
    end
    if group.bound then
      out[#out + 1] = line_at(x_of(group.bound), top - 2, x_of(group.bound), y + 2, "bound")
    end
    y = y + GAP
  end
  local step = M.tick_step(most, 6)
  for ms = 0, most, step do
    axis[#axis + 1] = line_at(x_of(ms), 0, x_of(ms), y, "rule")
    axis[#axis + 1] = text_at(x_of(ms), y + 14, tick_text(ms), "middle", "tick")
  end
  axis[#axis + 1] = text_at(WIDTH, y + 14, "ms", "end", "tick")
  return figure(title, y + AXIS, { axis, out })
end

--- Returns a chart of curves over steps, from step 1. series: { { label =, ys = { ... } }, ... },
--- which are told apart by dashes and marks as well as colours. from_zero: true if the vertical
--- axis must contain 0.
function M.lines(title, series, from_zero)
  local lo, hi, count = from_zero and 0 or math.huge, -math.huge, 1
  for _, s in ipairs(series) do
    lo, hi = range_of(s.ys, lo, hi)
    count = math.max(count, #s.ys)
  end
  if hi <= lo then lo, hi = lo - (from_zero and 0 or 0.5), lo + 0.5 end
  local step, bottom = M.tick_step(hi - lo, 5), LINES_HEIGHT - AXIS
  lo, hi = math.floor(lo / step) * step, math.ceil(hi / step) * step
  local function x_of(i)
    return LINES_LEFT + (count == 1 and 0.5 or (i - 1) / (count - 1)) * (WIDTH - LINES_LEFT - 10)
  end
  local function y_of(v) return bottom - (v - lo) / (hi - lo) * (bottom - 8) end
  local out, entries = {}, {}
  for k = 0, math.floor((hi - lo) / step + 0.5) do
    local v = lo + k * step
    out[#out + 1] = line_at(LINES_LEFT, y_of(v), WIDTH, y_of(v), "rule")
    out[#out + 1] = text_at(LINES_LEFT - 6, y_of(v) + 4, tick_text(v), "end", "tick")
  end
  for i = 1, count, math.max(1, M.tick_step(count, 12)) do
    out[#out + 1] = text_at(x_of(i), LINES_HEIGHT - 6, i, "middle", "tick")
  end
  for k, s in ipairs(series) do
    local class, points, dots = "line line" .. (k - 1) % 4, {}, {}
    for n, i in ipairs(some(#s.ys)) do
      local x, y = num(x_of(i)), num(y_of(s.ys[i]))
      points[n] = x .. "," .. y
      dots[n] = html.circle { cx = x, cy = y, r = 2.5, class = class .. " dot",
        html.title { ("%s, step %d: %g"):format(s.label, i, s.ys[i]) } }
    end
    out[#out + 1] = html.polyline { points = table.concat(points, " "), class = class }
    out[#out + 1] = dots
    entries[k] = { doc = s.label, mark = line_at(0, 6, 22, 6, class) }
  end
  return html.div { figure(title, LINES_HEIGHT, out), M.legend(entries) }
end

--- Returns a drawing of our number in its band [t.lo, t.hi] and of the paper's number; `range`: the
--- ends { from, to } of the axis.
function M.band(t, range)
  local function x_of(v) return 8 + (v - range[1]) / (range[2] - range[1]) * 184 end
  local out, paper = { line_at(0, 12, 200, 12, "rule") }, x_of(t.paper)
  if t.lo and t.lo < t.hi then
    out[#out + 1] = line_at(x_of(t.lo), 12, x_of(t.hi), 12, "error")
    for _, v in ipairs { t.lo, t.hi } do
      out[#out + 1] = line_at(x_of(v), 6, x_of(v), 18, "error")
    end
  end
  out[#out + 1] = html.path { d = ("M%s 5l6 7l-6 7l-6 -7z"):format(num(paper)), class = "paper",
    html.title { ("paper %g"):format(t.paper) } }
  if t.ours then
    out[#out + 1] = html.circle { cx = num(x_of(t.ours)), cy = 12, r = 4, class = "ours",
      html.title { ("ours %.3g"):format(t.ours) } }
  end
  return html.svg { viewBox = "0 0 200 24", class = "band", role = "img",
    ["aria-label"] = ("paper %g, ours %s"):format(t.paper,
      t.ours and ("%.3g in %.3g to %.3g"):format(t.ours, t.lo, t.hi) or "none"), out }
end

M.BAND_LEGEND = M.legend {
  { mark = html.path { d = "M11 0l6 6l-6 6l-6 -6z", class = "paper" }, doc = "the paper's number" },
  { mark = html.circle { cx = 11, cy = 6, r = 4, class = "ours" }, doc = "ours" },
  { mark = { line_at(1, 6, 21, 6, "error"), line_at(1, 1, 1, 11, "error"),
    line_at(21, 1, 21, 11, "error") }, doc = "ours over the bands of the assumed constants" },
}

return M
