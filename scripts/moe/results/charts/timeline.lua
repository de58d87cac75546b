-- Draws timelines (moe.results.trace): one row per lane of a rank, with simulated rows above
-- executed rows on the same axis, the memory in use below the lanes of a rank, and a line from each
-- collective to the first op that consumes what it brings. Positions are in percent of the width,
-- so that the page can zoom by making the SVG wider.
local axes = require "moe.results.charts.axes"
local html = require "moe.results.page.html"
local svg = require "moe.results.charts.svg"

local M = {}

M.MAX_ROWS = 16                        -- limit for a picture that can still be read
local ROW, AXIS = 24, 22               -- heights
local MAX_STEPS = 400                  -- largest number of rectangles of a memory row
local LABEL, WIDTH = 190, 650          -- px of a file: names of rows, lanes
local VIEW = 800                       -- px: about the width of the lanes on a page
local CHAR, THIN = 6.2, 3              -- px: letter, widest span drawn without a border
local NEAR, CLOSE = 8, 32              -- zoom at which small and tiny labels appear (page.js)

local SEGMENTS = { "embed", "attn", "gate", "dispatch", "expert", "combine", "mlp", "head",
  "update", "handoff" }
local is_segment = {}
for _, name in ipairs(SEGMENTS) do is_segment[name] = true end

local function legend()
  local entries = {}
  for i, name in ipairs(SEGMENTS) do entries[i] = { class = "s-" .. name, doc = name } end
  entries[#entries + 1] = { mark = svg.line(1, 1, 21, 11, "flow"), doc = "data of a collective" }
  return entries
end

local function percent(us, total) return ("%.3f%%"):format(100 * us / total) end

local function bytes_text(bytes)
  if bytes >= 2 ^ 20 then return ("%.2f MiB"):format(bytes / 2 ^ 20) end
  return bytes >= 2 ^ 10 and ("%.1f KiB"):format(bytes / 2 ^ 10) or ("%d bytes"):format(bytes)
end

local function span_text(e)
  local args = e.args or {}
  local parts = { ("%s: %.3f ms from %.3f"):format(e.name, e.dur / 1e3, e.ts / 1e3),
    table.concat({ args.op or "", args.phase or "", e.cat or "" }, " ") }
  if args.bytes then parts[#parts + 1] = bytes_text(args.bytes) end
  if (args.wait_us or 0) >= 1 then
    parts[#parts + 1] = ("waited %.3f ms"):format(args.wait_us / 1e3)
  end
  if args.waits_for then parts[#parts + 1] = "began after " .. args.waits_for end
  return table.concat(parts, "; ")
end

-- Returns the class of a label that is `px` wide in a span that is `width` wide; the class
-- determines at which zoom the label appears. Returns nil if it never fits.
local function label_class(px, width)
  return px <= width and "label" or px <= NEAR * width and "small"
    or px <= CLOSE * width and "tiny" or nil
end

local function draw_spans(out, row, y, total)
  for _, e in ipairs(row.spans) do
    local label = e.args and e.args.op or e.name
    local width = e.dur / total * VIEW
    local class = label_class(CHAR * #label + 4, width)
    if e.dur > 0 then
      out[#out + 1] = html.rect { x = percent(e.ts, total), y = y + 2, height = ROW - 4,
        width = percent(e.dur, total), class = (width < THIN and "thin " or "") .. "s-"
          .. (is_segment[e.cat] and e.cat or "other"),
        html.title { span_text(e) } }
    end
    if class then
      out[#out + 1] = html.text { x = percent(e.ts + e.dur / 2, total), y = y + 16, class = class,
        label }
    end
  end
end

local function most_of(row)
  local most = 0
  for _, m in ipairs(row.memory) do most = math.max(most, m.gib) end
  return most
end

-- Draws the memory in use as bars; of many changes that would be too narrow, the largest value.
local function draw_memory(out, row, y, total)
  local most, list = math.max(most_of(row), 1e-9), row.memory
  local i = 1
  while i <= #list do
    local from, gib = list[i].ts, 0
    repeat
      gib = math.max(gib, list[i].gib)
      i = i + 1
    until not list[i] or list[i].ts - from >= total / MAX_STEPS
    local to = list[i] and list[i].ts or total
    local height = (ROW - 4) * gib / most
    out[#out + 1] = html.rect { x = percent(from, total), width = percent(to - from, total),
      y = svg.num(y + ROW - 2 - height), height = svg.num(height), class = "thin memory",
      html.title { ("memory: %.3f GiB from %.3f ms"):format(gib, from / 1e3) } }
  end
end

local function draw_axis(out, height, total)
  local step = 1e3 * axes.tick_step(total / 1e3, 10)
  for k = 0, math.floor(10 * total / step) do
    local small = k % 10 ~= 0 and "small" or false
    local x = percent(k * step / 10, total)
    out[#out + 1] = html.line { x1 = x, x2 = x, y1 = 0, y2 = height, class = small or "rule" }
    if k * step / 10 < 0.97 * total then
      out[#out + 1] = html.text { x = x, y = height + 15, class = "tick " .. (small or ""),
        ("%g"):format(k * step / 1e4) }
    end
  end
end

-- Returns the flow from each collective to the first op that consumes what it brings. Later ones
-- (an activation that the backward reads, the updates after an all-reduce) would hide the lanes.
local function first_flows(flows)
  local first, order = {}, {}
  for _, flow in ipairs(flows) do
    local key = ("%s %.3f"):format(tostring(flow.from.row), flow.from.ts)
    if not first[key] then order[#order + 1] = key end
    if not first[key] or flow.to.ts < first[key].to.ts then first[key] = flow end
  end
  local out = {}
  for i, key in ipairs(order) do out[i] = first[key] end
  return out
end

-- Draws the flows between rows that are shown; top_of: row -> y.
local function draw_flows(out, flows, top_of, total)
  for _, flow in ipairs(flows) do
    local from, to = flow.from, flow.to
    local y1, y2 = top_of[from.row], top_of[to.row]
    if y1 and y2 and y1 ~= y2 then
      local down = y2 > y1
      out[#out + 1] = html.line { x1 = percent(from.ts, total), x2 = percent(to.ts, total),
        y1 = y1 + (down and ROW - 2 or 2), y2 = y2 + (down and 2 or ROW - 2), class = "flow" }
    end
  end
end

local function kind_of(row) return (row.process:gsub("%d+$", "")) end  -- "simulated rank "

-- Returns the rows with spans or memory. Of the ranks of a kind, those with a lane that no rank
-- before has come first: the first of each pipeline rank.
local function rows_of(trace)
  local kinds, seen, first, out = {}, {}, {}, {}
  for _, row in ipairs(trace.rows) do
    local kind = kind_of(row)
    if not seen[kind] then kinds[#kinds + 1], seen[kind] = kind, {} end
    if row.spans and #row.spans > 0 and not seen[kind][row.lane] then
      seen[kind][row.lane], first[row.process] = true, true
    end
  end
  for _, kind in ipairs(kinds) do
    for _, wanted in ipairs { true, false } do
      for _, row in ipairs(trace.rows) do
        if kind_of(row) == kind and (first[row.process] or false) == wanted
          and (row.memory or #row.spans > 0) then out[#out + 1] = row end
      end
    end
  end
  return out
end

--- Returns a trace as { kind = "timeline", title =, labels = a list of { lane, process }, height =,
--- body = elements, note = what is not shown or "" }. Its axis ends at end_us, so that pictures can
--- share an axis.
function M.draw(title, trace, end_us)
  local total, labels, out, top_of = math.max(end_us, 1), {}, {}, {}
  local rows = rows_of(trace)
  local shown = math.min(#rows, M.MAX_ROWS)
  draw_axis(out, shown * ROW, total)
  for i = 1, shown do
    local row, y = rows[i], (i - 1) * ROW
    top_of[row] = y
    labels[i] = { row.lane, row.process }
    if row.memory then
      labels[i][2] = ("up to %.3g GiB, %s"):format(most_of(row), row.process)
      draw_memory(out, row, y, total)
    else
      draw_spans(out, row, y, total)
    end
  end
  draw_flows(out, first_flows(trace.flows), top_of, total)
  local notes = {}
  if #rows > shown then
    notes[1] = ("%d more lanes are in the trace"):format(#rows - shown)
  end
  notes[#notes + 1] = trace.left_out and "not in the trace: " .. trace.left_out
  return { kind = "timeline", title = title, labels = labels, height = shown * ROW + AXIS,
    body = out, note = table.concat(notes, "; ") }
end

--- Returns timelines, one below the other, as a chart (charts/svg.lua).
function M.chart(name, title, list)
  local t = { name = name, title = title, width = LABEL + WIDTH, legend = legend() }
  local out, y = svg.begin(t)
  for _, timeline in ipairs(list) do
    if #list > 1 then
      y = y + 18
      out[#out + 1] = svg.text(4, y - 5, svg.shortened(timeline.title, (t.width - 8) / svg.BOLD),
        "strong")
    end
    for i, label in ipairs(timeline.labels) do
      local text = ("%s, %s"):format(label[1], label[2])
      out[#out + 1] = svg.text(4, y + (i - 1) * ROW + 16,
        svg.shortened(text, (LABEL - 8) / svg.WIDER), "tick")
    end
    out[#out + 1] = html.svg { x = LABEL, y = svg.num(y), width = WIDTH, height = timeline.height,
      class = "lanes", timeline.body }
    y = y + timeline.height
  end
  out[#out + 1] = svg.text(LABEL + WIDTH / 2, y + 12, "time, ms", "unit", "middle")
  return svg.chart(t, y + 20, out)
end

M.LEGEND = legend()

return M
