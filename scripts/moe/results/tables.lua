-- Tables as CSV and as LaTeX. A table is { kind = "table", name = the part of a file's name,
-- title =, rows = as aligned.text takes them, keys = number of columns in which an empty cell means
-- that of the row above, or nil, notes = lines on its numbers, or nil }.
local core = require "moe.core"
local html = require "moe.results.page.html"

local M = {}

local function text_of(cell) return core.printable((tostring(cell):gsub("%s+", " "))) end

local NUMBER = "^([-+%d.e]+)[x%%]? ?[%a!]*$"  -- its unit, or a mark, may stand behind it
local RANGE = "^[-+%d.e]+%.%.[-+%d.e]+ ?!?$"

-- A spreadsheet takes a cell for a formula, and evaluates it, if it begins with one of = + - @ and
-- is no number; it takes one that begins with ' for a text.
local function csv_cell(cell)
  local text = text_of(cell)
  local safe = not text:find "^ ?[=+@-]" or text == "-" or tonumber(text:match(NUMBER))
    or text:find(RANGE)
  if not safe then text = "'" .. text end
  return text:find '[",]' and ('"%s"'):format(text:gsub('"', '""')) or text
end

--- Returns the table as CSV (RFC 4180, with line feeds): the header, then a line per row, in which
--- no cell refers to the row above.
function M.csv(t)
  local lines, above = {}, {}
  for _, row in ipairs(t.rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      if i <= (t.keys or 0) and cell == "" then cell = above[i] or cell end
      above[i], cells[i] = cell, csv_cell(cell)
    end
    if #row > 0 then lines[#lines + 1] = table.concat(cells, ",") end
  end
  return table.concat(lines, "\n") .. "\n"
end

--- Returns a frame (front/shown.lua) as CSV; numbers are those of the results, in full precision.
function M.csv_of_frame(frame)
  local rows = { frame.columns }
  for _, row in ipairs(frame.rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      cells[i] = type(cell) == "number" and core.json_encode(cell) or cell
      if cell == core.null then cells[i] = "" end
    end
    rows[#rows + 1] = cells
  end
  return M.csv { rows = rows }
end

local LATEX = { ["\\"] = "\\textbackslash{}", ["~"] = "\\textasciitilde{}", ["<"] = "$<$",
  ["^"] = "\\textasciicircum{}", [">"] = "$>$", ["|"] = "$|$" }

local function latex_cell(cell)
  return (text_of(cell):gsub("[\\~^<>|{}&%%$#_]", function(c) return LATEX[c] or "\\" .. c end))
end

--- Returns the table as a LaTeX tabular with the rules of the package booktabs: columns of numbers
--- are right-aligned, and a row without cells becomes a rule.
function M.latex(t)
  local columns, numbers = {}, html.number_columns(t.rows)
  for i in ipairs(t.rows[1]) do columns[i] = numbers[i] and "r" or "l" end
  local lines = { "% " .. text_of(t.title) }
  for _, note in ipairs(t.notes or {}) do lines[#lines + 1] = "% " .. text_of(note) end
  lines[#lines + 1] = "% needs \\usepackage{booktabs}"
  lines[#lines + 1] = ("\\begin{tabular}{%s}\n\\toprule"):format(table.concat(columns))
  for r, row in ipairs(t.rows) do
    local cells = {}
    for i, cell in ipairs(row) do cells[i] = latex_cell(cell) end
    lines[#lines + 1] = #row > 0 and table.concat(cells, " & ") .. " \\\\" or "\\midrule"
    if r == 1 then lines[#lines + 1] = "\\midrule" end
  end
  lines[#lines + 1] = "\\bottomrule\n\\end{tabular}\n"
  return table.concat(lines, "\n")
end

return M
