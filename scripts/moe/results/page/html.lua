-- HTML and SVG written as Lua: html.td { class = "n", "text", html.b { "more" } } is an element.
-- Strings in it are escaped, elements are not; a list of children is inserted one by one; an
-- attribute whose value is false is omitted.
local M = {}

local node_mt = { __tostring = function(node) return node.text end }

local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;",
  ["'"] = "&#39;" }

--- Returns the text escaped for an element or an attribute; control characters become "?".
function M.escape(text)
  return (tostring(text):gsub("[%z\1-\8\11\12\14-\31\127]", "?"):gsub("[&<>\"']", ENTITIES))
end

--- Makes an element of text that is HTML already, or a style or a script; it is not escaped.
function M.raw(text) return setmetatable({ text = text }, node_mt) end

local function add(parts, child)
  if getmetatable(child) == node_mt then
    parts[#parts + 1] = child.text
  elseif type(child) == "table" then
    for _, c in ipairs(child) do add(parts, c) end
  else
    parts[#parts + 1] = M.escape(child)
  end
end

local function element(tag, content)
  local parts = { "<", tag }
  for key, value in pairs(content) do
    if type(key) == "string" and value then
      parts[#parts + 1] = (' %s="%s"'):format(key, M.escape(value))
    end
  end
  parts[#parts + 1] = #content > 0 and ">" or "/>"
  for _, child in ipairs(content) do add(parts, child) end
  if #content > 0 then parts[#parts + 1] = ("</%s>"):format(tag) end
  return M.raw(table.concat(parts))
end

local function is_number(cell)
  local text = getmetatable(cell) ~= node_mt and tostring(cell) or "element"
  return text == "" or text == "-" or text == "OOM" or text == "refused"
    or text:match("^[-+]?[%d.e+-]+[x%%]?$") ~= nil
    or text:match("^[-+%d.e]+%.%.[-+%d.e]+ ?!?$") ~= nil or text:match("^[-+%d.e]+ %S+$") ~= nil
end

--- Returns for each column the class "n" if all its cells below the header are numbers, else false.
function M.number_columns(rows)
  local columns = {}
  for r = 2, #rows do
    for i, cell in ipairs(rows[r]) do
      columns[i] = columns[i] ~= false and is_number(cell) and "n"
    end
  end
  return columns
end

--- Returns a table of rows, which have the form that aligned.text takes; cells may be elements.
--- Columns of numbers are right-aligned.
function M.grid(rows, caption)
  local columns, bodies = M.number_columns(rows), { {} }
  for r, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      cells[i] = r == 1 and M.th { scope = "col", class = columns[i], cell }
        or M.td { class = columns[i], cell }
    end
    if #row == 0 then bodies[#bodies + 1] = {} end
    if r > 1 and #row > 0 then table.insert(bodies[#bodies], M.tr { cells }) end
    if r == 1 then rows.head = M.thead { M.tr { cells } } end
  end
  for i, body in ipairs(bodies) do bodies[i] = M.tbody { body, "" } end
  return M.div { class = "scroll",
    M.table { caption and M.caption { caption } or "", rows.head, bodies } }
end

return setmetatable(M, { __index = function(_, tag)
  return function(content) return element(tag, content) end
end })
