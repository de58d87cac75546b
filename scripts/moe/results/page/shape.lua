-- Checks that data from a file has the fields that are read from it. A shape is the name of a type;
-- { shape, least = n }, a list of at least n entries of this shape; or a table of fields, in which
-- a field whose name ends in "?" may be missing. The data may have other fields.
local core = require "moe.core"
local errors = require "moe.base.errors"

local M = {}

-- Sums and squares of such numbers, and what an axis divides them by, are numbers too.
local LEAST, MOST = 1e-100, 1e100

--- Raises a user error that names the file and the field.
function M.fail(file, path, why)
  errors.user(("%s: %s%s; was the file written by moebench?"):format(file,
    path == "" and "" or path .. ": ", why))
end

--- Raises a user error that names the file and the path of the first field that does not fit the
--- shape.
function M.check(value, shape, file, path)
  path = path or ""
  local is_name = type(shape) == "string"
  local wanted = is_name and shape or "table"
  if type(value) ~= wanted then
    M.fail(file, path, value == nil and "is missing" or ("is %s, but must be a %s"):format(
      value == core.null and "null" or "a " .. type(value), wanted))
  end
  if value ~= 0 and wanted == "number"
    and not (math.abs(value) >= LEAST and math.abs(value) <= MOST) then
    M.fail(file, path,
      ("is %g, but must be 0 or of a size from %g to %g"):format(value, LEAST, MOST))
  end
  if is_name then return end
  if #value < (shape.least or 0) then
    M.fail(file, path, ("has %d entries; at least %d are needed"):format(#value, shape.least))
  end
  for i = 1, shape[1] and #value or 0 do
    M.check(value[i], shape[1], file, ("%s[%d]"):format(path, i))
  end
  for key, inner in pairs(shape[1] and {} or shape) do
    local name, optional = key:match("^([^?]*)(%??)$")
    if value[name] ~= nil or optional == "" then
      M.check(value[name], inner, file, path == "" and name or path .. "." .. name)
    end
  end
end

return M
