-- Writes values as Lua text that a recipe can contain.
local schema = require "moe.base.schema"

local M = {}

local write

local function key_text(key)
  return key:match "^[%a_][%w_]*$" and key or ("[%q]"):format(key)
end

-- Returns the text of a table without metatable.
local function table_text(value, o, indent)
  local parts, nested = {}, false
  for _, v in pairs(value) do nested = nested or type(v) == "table" end
  local inner = nested and indent .. "  " or indent
  for i, v in ipairs(value) do parts[i] = write(v, o, inner) end
  for key, v in pairs(value) do
    if type(key) ~= "number" then
      parts[#parts + 1] = key_text(key) .. " = " .. write(v, o, inner)
    end
  end
  if #parts == 0 then return "{}" end
  if not nested then return "{ " .. table.concat(parts, ", ") .. " }" end
  return ("{\n%s%s,\n%s}"):format(inner, table.concat(parts, ",\n" .. inner), indent)
end

local function number_text(value, digits)
  local text = ("%%.%dg"):format(digits):format(value)
  return tonumber(text) == value and text or ("%%.%dg"):format(digits + 2):format(value)
end

function write(value, o, indent)
  local kind, class = type(value), getmetatable(value)
  if kind == "string" then return ("%q"):format(value) end
  if kind == "number" then
    return o.digits and ("%%.%dg"):format(o.digits):format(value) or number_text(value, 15)
  end
  if kind == "boolean" then return tostring(value) end
  if schema.is_a("assumed", value) then
    return "moe.assumed " .. table_text(schema.merged(value, {}), o, indent)
  end
  if schema.is_a("routing", value) and value.made then return value.made end
  if kind ~= "table" or class then
    local name = class and type(class) == "table" and class.__name
    error({ why = name and ("a moe.%s object"):format(name) or "a " .. kind }, 0)
  end
  return table_text(value, o, indent)
end

--- Returns the text of a value that consists of numbers, strings, booleans, tables, moe.assumed and
--- routing models; nil and what it has besides if it has something else. indent: of the lines after
--- the first; digits: how many digits numbers have; default: as many as their values need.
function M.text(value, indent, digits)
  local ok, text = pcall(write, value, { digits = digits }, indent or "")
  if ok then return text end
  if type(text) == "table" and text.why then return nil, text.why end
  error(text, 0)
end

return M
