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

--- Returns the lines into which a text breaks so that width_of each is at most `width`, unless a
--- word is wider.
function M.wrapped(text, width, width_of)
  local lines = {}
  for word in text:gmatch "%S+" do
    local longer = lines[1] and lines[#lines] .. " " .. word
    if longer and width_of(longer) <= width then
      lines[#lines] = longer
    else
      lines[#lines + 1] = word
    end
  end
  return lines
end

--- moe.table: the rows that a recipe gives as text, with the numbers below the header in the
--- formats of their columns; "" or nothing: as they are.
function M.table(rows, formats)
  local at, list = errors.here(), { type = "list", of = { type = "any" } }
  rows = schema.field({ type = "list", of = list, required = true }, rows, "moe.table", at)
  formats = schema.field({ type = "list", of = { type = "string" }, default = {} }, formats,
    "moe.table.formats", at)
  for r = 2, #rows do
    for i, cell in ipairs(rows[r]) do
      if type(cell) == "number" and (formats[i] or "") ~= "" then
        rows[r][i] = errors.call(at, string.format, formats[i], cell)
      end
    end
  end
  return M.text(rows)
end

return M
