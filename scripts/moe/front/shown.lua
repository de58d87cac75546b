-- What a session shows of a value: as JSON (M.plain), as a table of columns (M.frame), and as text
-- at a prompt (M.text).
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local schema = require "moe.base.schema"

local M = {}

local MOST_NESTED = 32  -- tables in tables; more are left out
local MOST_ROWS, MOST_COLUMNS = 40, 12  -- that a prompt shows of a table

-- The class of an object of the library, or nil.
local function class_of(value)
  local mt = type(value) == "table" and getmetatable(value)
  return type(mt) == "table" and (mt.__name or tostring(rawget(mt, "__tostring") and value)) or nil
end

-- Objects of which more is shown than their class: what is shown in their place.
local OPENED = {
  plan = function(plan) return schema.merged(plan:info(), plan:simulate()) end,
  results = function(results) return { runs = results.runs } end,
  search = function(search) return schema.merged(search, {}) end,
  values = function(values) return { unpack(values) } end,
}

local function opened(value)
  local class = class_of(value)
  if OPENED[class] then return OPENED[class](value) end
  return schema.classes[class] and tostring(value) or value
end

--- Returns the value without what JSON cannot have: functions and objects of the engine are left
--- out, models and other objects of the library are their names; of a plan what plan:info() and
--- plan:simulate() say, of results the runs. A table with both a list and names has texts as keys.
function M.plain(value, depth)
  depth, value = depth or 0, opened(value)
  local kind = type(value)
  if kind == "string" then return core.invalid_byte(value) and core.printable(value) or value end
  if kind == "number" or kind == "boolean" or value == core.null then return value end
  if kind ~= "table" or depth > MOST_NESTED then return nil end
  local out, count = {}, 0
  for _ in next, value do count = count + 1 end
  local is_list = count == #value
  for key, inner in next, value do
    out[is_list and key or tostring(key)] = M.plain(inner, depth + 1) or is_list and core.null
  end
  return (is_list and (count > 0 or getmetatable(value))) and core.array(out) or out
end

-- The columns that stand first in a frame, behind the coordinates.
local FIRST = { "experiment", "model", "cluster", "devices", "system", "choice", "executor",
  "provenance", "oom" }
for _, row in ipairs(core.table "metrics") do FIRST[#FIRST + 1] = row.name end

-- Returns the cells of a row: its fields that are no tables, and its coordinates.
local function cells_of(row, coordinates)
  local cells = {}
  for name, value in pairs(row) do
    if type(value) ~= "table" and type(value) ~= "function" then cells[name] = value end
  end
  for name, value in pairs(row.point or (row.points or {})[1] or {}) do
    cells[name], coordinates[name] = value, true
  end
  return cells
end

--- Returns a list of runs, or of other tables, as { columns = names, rows = lists of cells, null
--- where a row has no such cell }: coordinates, then what names a run, then times and sizes, whose
--- names have their units.
function M.frame(list)
  local all, coordinates, names, columns = {}, {}, {}, {}
  for i, row in ipairs(list) do
    all[i] = cells_of(row, coordinates)
    for name in pairs(all[i]) do names[name] = true end
  end
  for _, group in ipairs { schema.keys_of(coordinates), FIRST, schema.keys_of(names) } do
    for _, name in ipairs(group) do
      if names[name] then columns[#columns + 1], names[name] = name, nil end
    end
  end
  local rows = {}
  for i, cells in ipairs(all) do
    rows[i] = core.array {}
    for k, name in ipairs(columns) do
      rows[i][k] = cells[name]
      if cells[name] == nil then rows[i][k] = core.null end
    end
  end
  return { columns = core.array(columns), rows = core.array(rows) }
end

--- Returns the frame of results or of a list of tables; nil for another value.
function M.frame_of(value)
  if class_of(value) == "results" then return M.frame(value.runs) end
  local is_list = type(value) == "table" and not schema.classes[class_of(value)] and #value > 0
  for _, row in ipairs(is_list and value or {}) do
    is_list = is_list and type(row) == "table" and #row == 0 and next(row) ~= nil
  end
  return is_list and M.frame(value) or nil
end

local function cell_text(value)
  if type(value) == "number" then return ("%.6g"):format(value) end
  if type(value) == "table" then return #value > 0 and ("list of %d"):format(#value) or "table" end
  return value == core.null and "-" or tostring(value)
end

-- Returns a frame as text: of several rows the columns in which they differ, as many as fit.
local function frame_text(frame)
  local lines = { {} }
  for i = 1, math.min(#frame.rows, MOST_ROWS) do lines[i + 1] = {} end
  for k, name in ipairs(frame.columns) do
    local differ = #frame.rows == 1
    for _, row in ipairs(frame.rows) do differ = differ or row[k] ~= frame.rows[1][k] end
    if differ and #lines[1] < MOST_COLUMNS then
      table.insert(lines[1], name)
      for i = 2, #lines do table.insert(lines[i], cell_text(frame.rows[i - 1][k])) end
    end
  end
  if #frame.rows > MOST_ROWS then lines[#lines + 1] = { ("of %d rows"):format(#frame.rows) } end
  return aligned.text(lines)
end

--- Returns the text that a prompt shows of a value: a table where it has rows or fields and no text
--- of its own.
function M.text(value)
  local mt = type(value) == "table" and getmetatable(value)
  local own = type(mt) == "table" and mt.__tostring and not mt.__name and tostring(value)
  if own and own:find "\n" then return own end
  local frame = M.frame_of(value)
  if frame then return frame_text(frame) end
  local plain, rows = M.plain(value), { { "field", "value" } }
  if type(plain) ~= "table" then return tostring(plain == nil and value or plain) end
  for key, inner in pairs(plain) do rows[#rows + 1] = { tostring(key), cell_text(inner) } end
  return aligned.text(rows)
end

return M
