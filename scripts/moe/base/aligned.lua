-- Formats rows of cells as text in aligned columns.
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local function is_numeric(cell)
  return cell == "" or cell == "-" or cell == "OOM" or cell == "refused"
    or cell:match("^[-+]?[%d.]+[x%%]?$") ~= nil
end

-- Returns the text of a cell on one line: a name may contain line breaks, which become "\n".
local function text_of(cell)
  local text = tostring(cell):gsub("\n", "\\n")
  return text
end

--- Returns the rows as text. Columns of numbers are right-aligned. The first row is the header; a
--- row without cells becomes an empty line.
function M.text(rows)
  local widths, right = {}, {}
  for r, row in ipairs(rows) do
    for i, cell in ipairs(row) do
      widths[i] = math.max(widths[i] or 0, #text_of(cell))
      if r > 1 then right[i] = right[i] ~= false and is_numeric(text_of(cell)) end
    end
  end
  local lines = {}
  for r, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local text = text_of(cell)
      local pad = (" "):rep(widths[i] - #text)
      cells[i] = right[i] and pad .. text or text .. pad
    end
    while cells[#cells] and not cells[#cells]:find "%S" do cells[#cells] = nil end
    if #cells > 0 and not right[#cells] then cells[#cells] = text_of(row[#cells]) end
    lines[r] = table.concat(cells, "  ")
  end
  return table.concat(lines, "\n")
end

--- moe.table: the rows that a recipe gives as text.
function M.table(rows)
  local list = { type = "list", of = { type = "any" } }
  return M.text(schema.field({ type = "list", of = list, required = true }, rows, "moe.table",
    errors.here()))
end

return M
