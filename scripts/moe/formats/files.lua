-- What the readers of other tools' files share: lines, JSON objects and their fields, errors that
-- name file and line, and exact arithmetic.
local core = require "moe.core"
local errors = require "moe.base.errors"

local M = {}

local HIGHEST = 2 ^ 53  -- whole numbers up to here are exact

--- Returns the file as { name, text }; name: without its folder, as errors have it.
function M.read(path)
  return { name = path:match "[^/]*$", text = errors.call(nil, core.read_file, path) }
end

--- Raises the user error "where: text", where the text is formatted.
function M.fail(where, text, ...)
  errors.user(where .. ": " .. text:format(...))
end

--- Raises the user error "file:3: text".
function M.fail_at(name, line, text, ...)
  M.fail(("%s:%d"):format(name, line), text, ...)
end

--- Returns an iterator over the lines that are not empty, each with its number in the text.
function M.lines(text)
  local begin, number = 1, 0
  return function()
    while begin <= #text do
      local first, stop = begin, text:find("\n", begin, true) or #text + 1
      begin, number = stop + 1, number + 1
      if text:byte(stop - 1) == 13 then stop = stop - 1 end  -- "\r\n"
      if stop > first then return text:sub(first, stop - 1), number end
    end
  end
end

--- Returns t[key], a table that is made where there is none.
function M.at(t, key)
  t[key] = t[key] or {}
  return t[key]
end

--- Returns the cells of a line of CSV without the blanks around them; there are no quoted ones.
function M.cells(line)
  local list = {}
  for cell in (line .. ","):gmatch "%s*([^,]-)%s*," do list[#list + 1] = cell end
  return list
end

--- Returns the beginning of a value as JSON, for messages.
function M.shown(value)
  local text = core.json_encode(value)
  return #text <= 60 and text or text:sub(1, 60):gsub("[\194-\244][\128-\191]*$", "") .. "..."
end

function M.is_whole(value)
  return type(value) == "number" and value == math.floor(value) and math.abs(value) <= HIGHEST
end

--- Returns the parsed text. Raises a user error when it is no JSON object.
function M.object(text, where)
  local value = errors.call(nil, core.json_decode, text, where)
  if type(value) ~= "table" or value[1] ~= nil then
    M.fail(where, "the text is not a JSON object")
  end
  return value
end

--- Returns the field, a whole number from 0. Raises a user error when it is missing or another.
function M.integer(object, field, where)
  local value = object[field]
  if value == nil then M.fail(where, "field '%s' is missing", field) end
  if not M.is_whole(value) or value < 0 then
    M.fail(where, "field '%s' is %s; allowed: a whole number from 0", field, M.shown(value))
  end
  return value
end

--- Returns the quotient and the remainder of a * b / c, exactly. Requires: whole numbers from 0
--- below 2^46, c from 1.
function M.times_over(a, b, c)
  local quotient, rest = 0, 0
  for digit = 7, 0, -1 do  -- of a, in base 64: what is divided stays below 2^53
    local part = rest * 64 + math.floor(a / 64 ^ digit) % 64 * b
    quotient, rest = quotient * 64 + math.floor(part / c), part % c
  end
  return quotient, rest
end

return M
