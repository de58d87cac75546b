-- Draws the timelines of a trace file (engine/timeline): one row per lane of a rank, with simulated
-- rows above executed rows on the same axis. Positions are in percent of the width, so that the
-- page can zoom by making the SVG wider.
local charts = require "moe.results.page.charts"
local html = require "moe.results.page.html"
local results = require "moe.results.results"
local shape = require "moe.results.page.shape"

local M = {}

local MAX_ROWS, MAX_SPANS = 16, 8000   -- limits for a picture that can still be read
local ROW, AXIS = 24, 22               -- heights
local WIDTH, CHAR, THIN = 900, 6.2, 3  -- px: view, letter, widest span drawn without a border
local NEAR, CLOSE = 8, 32              -- zoom at which small and tiny labels appear (page.js)

local SEGMENTS = { "embed", "attn", "gate", "dispatch", "expert", "combine", "mlp", "head",
  "update" }
local is_segment = {}
for _, name in ipairs(SEGMENTS) do is_segment[name] = true end

-- Shapes of the trace's events that are read. Events with ph = "C", counters of links, are ignored.
local TRACE = { traceEvents = { { ph = "string", pid = "number" } } }
local SPAN = { tid = "number", name = "string", ts = "number", dur = "number", ["cat?"] = "string",
  ["args?"] = { ["op?"] = "string", ["phase?"] = "string", ["wait_us?"] = "number",
    ["bytes?"] = "number", ["part?"] = "number" } }
local NAME = { tid = "number", name = "string", args = { ["name?"] = "string" } }

function M.legend()
  local entries = {}
  for i, name in ipairs(SEGMENTS) do entries[i] = { class = "s-" .. name, doc = name } end
  return charts.legend(entries)
end

-- Returns the rows { process, lane, spans } in order of process and lane, the end of the last span
-- in us, and the number of spans.
local function rows_of(events, file)
  local rows, by_id, processes, finish, num_spans = {}, {}, {}, 0, 0
  local function row_of(e)
    local id = e.pid .. " " .. e.tid
    if not by_id[id] then
      by_id[id] = { pid = e.pid, tid = e.tid, lane = "lane " .. e.tid, spans = {} }
      rows[#rows + 1] = by_id[id]
    end
    return by_id[id]
  end
  for i, e in ipairs(events) do
    local path = ("traceEvents[%d]"):format(i)
    if e.ph == "X" then
      shape.check(e, SPAN, file, path)
      table.insert(row_of(e).spans, e)
      finish, num_spans = math.max(finish, e.ts + e.dur), num_spans + 1
    elseif e.ph == "M" then
      shape.check(e, NAME, file, path)
      if e.name == "process_name" then processes[e.pid] = e.args.name end
      if e.name == "thread_name" then row_of(e).lane = e.args.name end
    end
  end
  table.sort(rows, function(a, b)
    if a.pid ~= b.pid then return a.pid < b.pid end
    return a.tid < b.tid
  end)
  for _, row in ipairs(rows) do row.process = processes[row.pid] or "process " .. row.pid end
  return rows, finish, num_spans
end

--- Reads a run's trace; returns { file =, rows =, end_us =, num_spans = }. Raises a user error that
--- names the file if it cannot be read or is not a trace.
function M.read(dir, run)
  local file = dir .. "/" .. run.trace
  local trace = results.json(file)
  shape.check(trace, TRACE, file)
  local rows, end_us, num_spans = rows_of(trace.traceEvents, file)
  return { file = file, rows = rows, end_us = end_us, num_spans = num_spans }
end

--- Returns the number of events as text if they are too many for a readable picture, else nil.
function M.too_large(trace)
  return trace.num_spans > MAX_SPANS and ("%d events"):format(trace.num_spans) or nil
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
    local width = e.dur / total * WIDTH
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

local function draw_axis(out, height, total)
  local step = 1e3 * charts.tick_step(total / 1e3, 10)
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

--- Returns the trace as a picture. Its axis ends at end_us, so that pictures can share an axis.
function M.draw(title, trace, end_us)
  local total, labels, out, y = math.max(end_us, 1), {}, {}, 0
  local shown = math.min(#trace.rows, MAX_ROWS)
  draw_axis(out, shown * ROW, total)
  for i = 1, shown do
    local row = trace.rows[i]
    labels[i] = html.div { html.b { row.lane }, " ", row.process }
    draw_spans(out, row, y, total)
    y = y + ROW
  end
  local left_out = #trace.rows - shown
  return html.figure { class = "timeline", html.figcaption { title,
      left_out > 0 and ("; %d more lanes are in the trace"):format(left_out) or "" },
    html.div { class = "rows", html.div { class = "labels", labels, html.div { "ms" } },
      html.div { class = "view", tabindex = 0, role = "region", ["aria-label"] = title,
        html.svg { height = y + AXIS, out } } },
    html.output { "Point at a span for its op, time and bytes." } }
end

return M
