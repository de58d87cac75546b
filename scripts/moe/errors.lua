-- Errors of the user's making: one table {kind="user", message=...}, at the recipe's own line.
local core = require "moe.core"

local M = {}

local mt = { __tostring = function(e) return e.message end }

-- The brace-balanced text of the call that starts on `line`, as a list of lines.
local function call_lines(source, line)
  local text = core.read_file(source)
  local lines, n, depth, opened = {}, 0, 0, false
  for l in (text .. "\n"):gmatch("(.-)\r?\n") do
    n = n + 1
    if n >= line then
      local code = l:gsub("%-%-.*$", ""):gsub('"[^"]*"', '""'):gsub("'[^']*'", "''")
      lines[#lines + 1] = { number = n, code = code }
      for brace in code:gmatch("[{}()]") do
        if brace == "{" or brace == "(" then
          depth, opened = depth + 1, true
        else
          depth = depth - 1
        end
      end
      if opened and depth <= 0 then break end
    end
  end
  return lines
end

-- The line on which `key` is given inside the call, or the call's own line.
local function key_line(source, line, key)
  if type(key) ~= "string" then return line end
  local ok, lines = pcall(call_lines, source, line)
  if not ok then return line end
  local pattern = "%f[%w_]" .. key:gsub("%p", "%%%0") .. "%f[^%w_]%s*=[^=]"
  for _, l in ipairs(lines) do
    if (l.code .. " "):find(pattern) then return l.number end
  end
  return line
end

--- Raises a user error. `key` (optional) is the field at fault; its line is looked up in the
--- recipe.
--- `at` (optional) is a place taken earlier by M.here().
function M.user(message, key, at)
  local place = at or M.here()
  if place then
    message = ("%s:%d: %s"):format(place.name, key_line(place.source, place.line, key), message)
  end
  error(setmetatable({ kind = "user", message = message }, mt), 0)
end

--- The recipe's line that called into the library: { source, name, line }, or nil.
function M.here()
  local source, line = core.caller()
  if not source then return nil end
  return { source = source, name = core.display_name(source), line = line }
end

--- Calls a C++ function and gives its UserError the recipe's line.
function M.call(at, key, f, ...)
  local results = { pcall(f, ...) }
  if results[1] then return unpack(results, 2, table.maxn(results)) end
  local e = results[2]
  if type(e) == "table" then error(e, 0) end
  M.user(tostring(e), key, at)
end

return M
