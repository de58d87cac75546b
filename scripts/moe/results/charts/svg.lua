-- Charts as SVG. The title, the axes with their units and the legend are parts of the picture, so
-- that a chart means the same on the page and in a file. Elements have classes, to which chart.css
-- gives colours: of the theme on the page, of print in a file. Lengths are in px of the page; in a
-- file a px is 0.6 pt, so that text of 12 px has 7.2 pt and a chart of WIDTH fits a column of 3.5
-- inches.
local aligned = require "moe.base.aligned"
local html = require "moe.results.page.html"

local M = {}

M.WIDTH = 420          -- of a chart that fits one column of a paper
M.CHAR = 6.1           -- mean width of a letter of 12 px
--- By how much letters, and bold ones, may be wider where DejaVu Sans takes Helvetica's place.
M.WIDER, M.BOLD = 1.17, 1.3
local POINT = 0.6      -- pt of a file per px
local LINE = 16        -- height of a line of text
local MAX_SERIES = 8   -- colours that page.css and chart.css have

--- Returns a coordinate as text with at most two digits after the point.
function M.num(x) return (("%.2f"):format(x):gsub("%.?0+$", "")) end

local num = M.num

function M.text(x, y, text, class, anchor)
  return html.text { x = num(x), y = num(y), class = class or false,
    ["text-anchor"] = anchor or false, text }
end

function M.line(x1, y1, x2, y2, class)
  return html.line { x1 = num(x1), y1 = num(y1), x2 = num(x2), y2 = num(y2), class = class }
end

--- Returns a rectangle; `say` is shown when the pointer is on it, or nil.
function M.rect(x, y, width, height, class, say)
  return html.rect { x = num(x), y = num(y), width = num(math.max(width, 0)), height = num(height),
    class = class, say and html.title { say } or "" }
end

--- Returns about the width of a text of 12 px.
function M.text_width(text)
  local _, marks = tostring(text):gsub("[\128-\191]", "")  -- bytes that continue a letter
  return M.CHAR * (#tostring(text) - marks)
end

--- Returns the text, cut to about `width` px.
function M.shortened(text, width)
  if M.text_width(text) <= width then return text end
  local cut = text:sub(1, math.max(1, math.floor(width / M.CHAR) - 1))
  return (cut:gsub("[\192-\255]?[\128-\191]*$", "")) .. "…"
end

-- Shapes of the marks of series, around the point at which the path begins.
local SHAPES = { "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0", "m-2.9 -2.9h5.8v5.8h-5.8z",
  "m0 -3.9l3.6 6.4h-7.2z", "m0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2z", "m0 3.9l3.6 -6.4h-7.2z",
  "m-1.2 -3.8h2.4v2.6h2.6v2.4h-2.6v2.6h-2.4v-2.6h-2.6v-2.4h2.6z" }

--- Returns the classes of the series with this number, from 1; the same number has the same colour
--- and dashes in all charts.
function M.series_class(kind, number) return ("%s c%d"):format(kind, (number - 1) % MAX_SERIES) end

--- Returns the mark of a series at a point; `say`: the text for the pointer, or nil.
function M.mark(number, x, y, say)
  return html.path { d = ("M%s %s%s"):format(num(x), num(y), SHAPES[(number - 1) % #SHAPES + 1]),
    class = M.series_class("mark", number), say and html.title { say } or "" }
end

function M.series_entry(number, doc)
  return { doc = doc, mark = { M.line(0, 6, 22, 6, M.series_class("line", number)),
    M.mark(number, 11, 6) } }
end

-- Returns the rows of legend entries { doc =, class = or mark = }, each with its place: entries
-- follow one another and go to the next row where the width ends.
local function legend_rows(entries, width)
  local x, row, placed = 0, 0, {}
  for i, entry in ipairs(entries) do
    local wide = 28 + M.text_width(entry.doc)
    if x > 0 and x + wide > width then x, row = 0, row + 1 end
    placed[i] = { entry = entry, x = x, row = row }
    x = x + wide + 14
  end
  return placed, #entries > 0 and row + 1 or 0
end

local function draw_legend(out, placed, left, top)
  for _, p in ipairs(placed) do
    local x, y = left + p.x, top + p.row * LINE
    out[#out + 1] = html.g { transform = ("translate(%s %s)"):format(num(x), num(y)),
      p.entry.mark or M.rect(0, 0, 22, 12, p.entry.class) }
    out[#out + 1] = M.text(x + 28, y + 10, M.shortened(p.entry.doc, M.WIDTH - 40), "tick")
  end
end

--- Begins a chart: t = { name = the part of a file's name, title =, width = WIDTH unless given,
--- legend = entries or nil }. Returns its elements, to which a caller appends, and the height that
--- title and legend take.
function M.begin(t)
  local width, out, y = t.width or M.WIDTH, {}, 6
  for _, line in ipairs(aligned.wrapped(t.title, (width - 8) / M.BOLD, M.text_width)) do
    y = y + LINE
    out[#out + 1] = M.text(4, y - 4, line, "title")
  end
  local placed, rows = legend_rows(t.legend or {}, width - 8)
  draw_legend(out, placed, 4, y + 4)
  return out, y + rows * LINE + (rows > 0 and 8 or 4)
end

--- Returns the chart that `begin` began with t, of this height.
function M.chart(t, height, out)
  return { kind = "chart", name = t.name, title = t.title, width = t.width or M.WIDTH,
    height = height, body = out }
end

local function attributes(chart)
  return { viewBox = ("0 0 %s %s"):format(num(chart.width), num(chart.height)), role = "img",
    ["aria-label"] = chart.title }
end

--- Returns a chart as an element of the page.
function M.inline(chart)
  local t = attributes(chart)
  t[1], t.class, t.width = chart.body, "chart", num(chart.width)
  return html.svg(t)
end

--- The hatching of communication that compute hides; must be once in a document.
M.HATCH = html.pattern { id = "hatch", width = 6, height = 6, patternUnits = "userSpaceOnUse",
  patternTransform = "rotate(45)", html.rect { width = 6, height = 6, class = "compute" },
  html.rect { width = 2.5, height = 6, class = "exposed" } }

--- Returns a chart as the text of a file; style: the rules of its classes; notes: lines on its
--- numbers, or nil; width: in points, or nil.
function M.file(chart, style, notes, width)
  local t, point = attributes(chart), width and width / chart.width or POINT
  t.xmlns, t.width = "http://www.w3.org/2000/svg", num(point * chart.width) .. "pt"
  t.height = num(point * chart.height) .. "pt"
  local desc = html.desc { table.concat(notes or {}, "\n") }
  t[1] = { html.title { chart.title }, desc, html.style { html.raw(style) }, html.defs { M.HATCH },
    html.rect { width = "100%", height = "100%", class = "ground" }, chart.body }
  return '<?xml version="1.0" encoding="UTF-8"?>\n' .. tostring(html.svg(t)) .. "\n"
end

return M
