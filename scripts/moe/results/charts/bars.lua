-- Charts of stacked horizontal bars: the parts of a step in ms, or as shares of it.
local axes = require "moe.results.charts.axes"
local format = require "moe.results.report.format"
local html = require "moe.results.page.html"
local lines = require "moe.results.charts.lines"
local svg = require "moe.results.charts.svg"

local M = {}

local WIDTH, LABEL, VALUE = 560, 176, 58  -- widths: chart, text left of bars, text right of bars
local BAR, GAP, TOP = 18, 6, 4            -- heights
local MAX_SAMPLES = 200                   -- largest number of samples of a bar that are drawn

--- The parts of a step in the order in which a bar shows them.
M.PARTS = {
  { class = "compute", doc = "compute without communication" },
  { class = "hidden", doc = "compute that hides communication" },
  { class = "exposed", doc = "exposed communication" },
  { class = "wait", doc = "exposed waiting: transfers are posted, nothing runs" },
  { class = "idle", doc = "idle: nothing is posted, other ranks end later" },
}

--- Returns the widths, in ms, of the parts of a step, which add up to its time. Hidden
--- communication is a part of the compute time. Of medians over steps, which need not add up, the
--- later parts give way.
function M.parts_of(times)
  local hidden, left = math.min(times.hidden_comm_ms, times.compute_ms), times.iteration_ms
  local parts = { times.compute_ms - hidden, hidden,
    times.exposed_comm_ms - format.exposed_wait_ms(times), format.exposed_wait_ms(times) }
  for i, part in ipairs(parts) do
    parts[i] = math.min(part, left)
    left = left - parts[i]
  end
  parts[#parts + 1] = left
  return parts
end

local function draw_bar(out, bar, y, x_of, t)
  local left = 4
  if bar.provenance then
    out[#out + 1] = svg.rect(left, y + 4, 10, 10, bar.provenance, bar.provenance)
    left = left + 16
  end
  out[#out + 1] = svg.text(left, y + 13, svg.shortened(bar.label, LABEL - left - 4))
  local at = 0
  for i, width in ipairs(bar.parts) do
    local x, part = x_of(at), t.parts[i]
    at = at + width
    if width > 0 then
      out[#out + 1] = svg.rect(x, y, x_of(at) - x, BAR, part.class,
        ("%s: %s %s %s"):format(bar.label, part.doc, format.ms(width), t.unit))
    end
  end
  for _, i in ipairs(lines.some(#(bar.samples or {}), MAX_SAMPLES)) do
    out[#out + 1] = html.circle { cx = svg.num(x_of(bar.samples[i])), cy = y + BAR / 2, r = 2.5,
      class = "sample" }
  end
  out[#out + 1] = svg.text(WIDTH - 4, y + 13, bar.value, "strong", "end")
end

local function most_of(t)
  local most = 0
  for _, group in ipairs(t.groups) do
    most = math.max(most, group.bound or 0)
    for _, bar in ipairs(group.bars) do
      local sum = 0
      for _, part in ipairs(bar.parts) do sum = sum + part end
      most = select(2, axes.range_of(bar.samples or {}, 0, math.max(most, sum)))
    end
  end
  return most > 0 and most or 1
end

local function legend_of(t)
  local entries, bound, samples = {}, false, false
  for i, part in ipairs(t.parts) do entries[i] = part end
  for _, group in ipairs(t.groups) do
    bound = bound or group.bound ~= nil
    for _, bar in ipairs(group.bars) do samples = samples or #(bar.samples or {}) > 0 end
  end
  if bound then
    entries[#entries + 1] = { mark = svg.line(11, 0, 11, 12, "bound"),
      doc = "lower bound: no schedule of the plan's ops can be faster" }
  end
  if samples then
    entries[#entries + 1] = { mark = html.circle { cx = 11, cy = 6, r = 3, class = "sample" },
      doc = "one executed step" }
  end
  return entries
end

--- Returns a chart of bars. t = { name =, title =, x_label = (with its unit), unit =, parts = a
--- list of { class =, doc = }, most = the end of the axis, or nil, groups = a list of { bound = a
--- value or nil, bars = a list of { label =, value = text to the right, parts = a number for each
--- of t.parts, provenance = or nil, samples = values or nil } } }.
function M.bars(t)
  t.width, t.legend = WIDTH, legend_of(t)
  local out, top = svg.begin(t)
  local most, y, front = t.most or most_of(t), top + TOP, {}
  local function x_of(v) return LABEL + v / most * (WIDTH - LABEL - VALUE) end
  for _, group in ipairs(t.groups) do
    local first = y
    for _, bar in ipairs(group.bars) do
      draw_bar(front, bar, y, x_of, t)
      y = y + BAR + (#group.bars > 1 and 1 or 0)
    end
    if group.bound then
      front[#front + 1] = svg.line(x_of(group.bound), first - 2, x_of(group.bound), y + 2, "bound")
    end
    y = y + GAP
  end
  axes.from_zero(out, most, 6, x_of, top, y, (LABEL + WIDTH - VALUE) / 2, t.x_label)
  out[#out + 1] = front
  return svg.chart(t, y + 40, out)
end

--- Returns the bar of a step: its parts in ms, or "OOM" for a plan that does not fit.
function M.step(label, times, more)
  return { label = label, provenance = more.provenance, samples = more.samples,
    parts = more.oom and {} or M.parts_of(times),
    value = more.oom and "OOM" or format.ms(times.iteration_ms) }
end

--- Returns a chart of steps; groups as in `bars`.
function M.steps(name, title, groups)
  return M.bars { name = name, title = title, groups = groups, parts = M.PARTS, unit = "ms",
    x_label = "time of a step, ms" }
end

--- Returns a chart of the shares that the parts have in steps; list: of { label =, runs = }. The
--- shares of a bar are those of the sums over its runs.
function M.shares(name, title, list)
  local groups = {}
  for i, item in ipairs(list) do
    local sums, total = { 0, 0, 0, 0, 0 }, 0
    for _, run in ipairs(item.runs) do
      for k, part in ipairs(M.parts_of(run)) do sums[k], total = sums[k] + part, total + part end
    end
    for k = 1, #sums do sums[k] = 100 * sums[k] / math.max(total, 1e-9) end
    groups[i] = { bars = { { label = item.label, parts = sums,
      value = ("%.0f%%"):format(sums[3] + sums[4]) } } }
  end
  return M.bars { name = name, title = title, groups = groups, parts = M.PARTS, unit = "%",
    most = 100, x_label = "share of the step, %; at the right what is exposed" }
end

return M
