-- What a report consists of, and how the page shows it. A report is a list of blocks, from which
-- the page and `moebench export` are made:
--   { kind = "chart", ... }       a chart (charts/svg.lua)
--   { kind = "table", ... }       a table (moe.results.tables); extra = { header, cells } adds a
--                                 column of drawings on the page
--   { kind = "timelines", name =, title =, list = }   timelines (charts/timeline.lua) of one axis
--   { kind = "frame", name =, frame = as front/shown.lua has it }   numbers that only a file has
--   { kind = "text", lines... }   paragraphs
--   { kind = "html", node }       an element that only the page has
--   { kind = "grid", charts... }  charts beside one another
--   { kind = "fold", title =, blocks..., long = }   blocks behind a title; long ones stay folded
--                                 when the page is printed
local html = require "moe.results.page.html"
local svg = require "moe.results.charts.svg"
local tables = require "moe.results.tables"
local timeline = require "moe.results.charts.timeline"

local M = {}

function M.text(lines)
  lines.kind = "text"
  return lines
end

function M.html(node) return { kind = "html", node } end

--- Returns the block of a table; `more`: further fields of it, or nil.
function M.table(name, title, rows, more)
  local t = more or {}
  t.kind, t.name, t.title, t.rows = "table", name, title, rows
  return t
end

function M.grid(charts)
  charts.kind = "grid"
  return charts
end

--- Returns a legend as a list; entries as in charts/svg.lua.
function M.legend(entries)
  local items = {}
  for i, entry in ipairs(entries) do
    items[i] = html.li { html.svg { viewBox = "0 0 22 12", width = 22, height = 12,
      ["aria-hidden"] = "true", entry.mark or svg.rect(0, 0, 22, 12, entry.class) }, " ",
      entry.doc }
  end
  return html.ul { class = "legend", items }
end

-- Calls visit(figure) for each chart, table and timelines in the blocks, in order.
local function each(blocks, visit)
  for _, block in ipairs(blocks) do
    if block.kind == "grid" or block.kind == "fold" then each(block, visit) end
    if block.name then visit(block) end
  end
end

--- Gives each chart and each table a name of its own, which begins with `prefix`, for its files;
--- used: the names that others have, with their kinds.
function M.name_all(blocks, prefix, used)
  each(blocks, function(figure)
    local name = ("%s-%s"):format(prefix, figure.name):lower():gsub("[^%w_]+", "-"):gsub(
      "%-$", "")
    local kind, free, n = figure.kind == "table" and "table " or "chart ", name, 1
    while used[kind .. free] do
      n = n + 1
      free = ("%s-%d"):format(name, n)
    end
    used[kind .. free], figure.name = true, free
  end)
end

--- Gives each chart and each table lines on its numbers, which its file says.
function M.note_all(blocks, notes)
  each(blocks, function(figure) figure.notes = notes end)
end

--- Returns the files of the blocks' charts and tables: a list of { name, text }. style: the rules
--- of the charts' classes; width: of charts, in points; nil: as on the page.
function M.files(blocks, style, width)
  local files = {}
  each(blocks, function(figure)
    local function add(ending, text) files[#files + 1] = { figure.name .. ending, text } end
    if figure.kind == "frame" then
      add(".csv", tables.csv_of_frame(figure.frame))
    elseif figure.kind == "table" then
      add(".csv", tables.csv(figure))
      add(".tex", tables.latex(figure))
    else
      add(".svg", svg.file(figure.kind == "timelines"
        and timeline.chart(figure.name, figure.title, figure.list) or figure, style,
        figure.notes, width))
    end
  end)
  return files
end

local SHOW = {}

local function shown(blocks)
  local out = {}
  for i, block in ipairs(blocks) do out[i] = SHOW[block.kind](block) end
  return out
end

function SHOW.text(block)
  local out = {}
  for i, line in ipairs(block) do out[i] = html.p { line } end
  return out
end

function SHOW.frame() return "" end

function SHOW.html(block) return block[1] end

function SHOW.chart(chart)
  return html.figure { class = "picture", ["data-name"] = chart.name, svg.inline(chart) }
end

function SHOW.grid(block) return html.div { class = "charts", shown(block), "" } end

function SHOW.fold(block)
  return html.details { class = block.long and "long", html.summary { block.title },
    shown(block) }
end

function SHOW.table(t)
  local rows = t.rows
  if t.extra then
    rows = {}
    for i, row in ipairs(t.rows) do
      rows[i] = { unpack(row) }
      table.insert(rows[i], i == 1 and t.extra.header or t.extra.cells[i - 1])
    end
  end
  return html.div { class = "table", ["data-name"] = t.name, html.grid(rows, t.title),
    html.template { class = "csv", tables.csv(t) },
    html.template { class = "tex", tables.latex(t) } }
end

local function timeline_figure(t)
  local labels = {}
  for i, label in ipairs(t.labels) do
    labels[i] = html.div { html.b { label[1] }, " ", label[2] }
  end
  return html.figure { class = "timeline", html.figcaption {
      html.span { t.title, t.note ~= "" and "; " .. t.note or "" } },
    html.div { class = "rows", html.div { class = "labels", labels, html.div { "ms" } },
      html.div { class = "view", tabindex = 0, role = "region", ["aria-label"] = t.title,
        html.svg { class = "lanes", height = t.height, t.body } } },
    html.output { "Point at a span for its op, time, bytes and what it waited for." } }
end

function SHOW.timelines(block)
  local figures = {}
  for i, t in ipairs(block.list) do figures[i] = timeline_figure(t) end
  return html.div { class = "timelines", ["data-name"] = block.name, figures }
end

M.show = shown

return M
