-- Checks tables of the recipe against field lists: unknown keys, wrong types, numbers out of range,
-- at any depth. The same lists serve `moebench list` and the type stubs.
--
-- A field: { type = "integer"|"number"|"string"|"boolean"|"table"|"function"|"any"|schema,
--            default =, required = true, lo =, hi =, enum = { ... }, doc = "what, unit, source" }
-- A number may also be moe.assumed{...}, whose value then stands.
local core = require "moe.core"
local errors = require "moe.errors"

local M = {}

--- A constant without a source: { value, lo, hi, why }.
M.assumed_mt = { __tostring = function(a) return tostring(a.value) end }

local function keys_of(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = tostring(k) end
  table.sort(keys)
  return keys
end
M.keys_of = keys_of

local function show(v)
  if type(v) == "string" then return ("'%s'"):format(v) end
  if type(v) == "table" then return "a table" end
  if type(v) == "function" then return "a function" end
  return tostring(v)
end
M.show = show

--- "unknown key 'capcity' ... Did you mean 'capacity'?"
function M.unknown(path, what, name, names, at)
  local text = ("%s: unknown %s '%s'"):format(path, what, tostring(name))
  local near = core.nearest(tostring(name), names)
  if near and near ~= "" then
    text = text .. (". Did you mean '%s'?"):format(near)
  else
    text = text .. ", have: " .. table.concat(names, ", ")
  end
  errors.user(text, type(name) == "string" and name or nil, at)
end

local function range_text(field)
  if field.lo and field.hi then return (" from %s to %s"):format(field.lo, field.hi) end
  if field.lo then return (" of at least %s"):format(field.lo) end
  return ""
end

local function number(field, value, path, key, at, assumed)
  if type(value) == "table" and getmetatable(value) == M.assumed_mt then
    assumed[path] = value
    value = value.value
  end
  local kind = field.type == "integer" and "an integer" or "a number"
  local wrong = type(value) ~= "number" or value ~= value
    or (field.type == "integer" and value ~= math.floor(value))
    or (field.lo and value < field.lo) or (field.hi and value > field.hi)
    or value == math.huge or value == -math.huge
  if wrong then
    errors.user(("%s: %s is not allowed; give %s%s"):format(path, show(value), kind,
      range_text(field)), key, at)
  end
  return value
end

local check_field

--- Returns a new table with defaults filled in. `assumed` collects moe.assumed constants by path.
function M.check(fields, value, path, at, assumed)
  assumed = assumed or {}
  at = at or errors.here()
  if type(value) ~= "table" then
    errors.user(("%s: %s is not allowed; give a table"):format(path, show(value)), nil, at)
  end
  local out = {}
  for key in pairs(value) do
    if fields[key] == nil then M.unknown(path, "key", key, keys_of(fields), at) end
  end
  for key, field in pairs(fields) do
    out[key] = check_field(field, value[key], path .. "." .. key, key, at, assumed)
  end
  return out
end

function check_field(field, value, path, key, at, assumed)
  if value == nil then
    if field.required then errors.user(path .. ": is missing; " .. (field.doc or ""), nil, at) end
    return field.default
  end
  local kind = field.type
  if type(kind) == "table" then return M.check(kind, value, path, at, assumed) end
  if kind == "integer" or kind == "number" then
    return number(field, value, path, key, at, assumed)
  end
  if kind ~= "any" and type(value) ~= kind then
    errors.user(("%s: %s is not allowed; give a %s%s"):format(path, show(value), kind,
      field.enum and (": " .. table.concat(field.enum, ", ")) or ""), key, at)
  end
  if field.enum then
    for _, allowed in ipairs(field.enum) do
      if value == allowed then return value end
    end
    local near = core.nearest(tostring(value), field.enum)
    errors.user(("%s: %s is not allowed; give one of: %s%s"):format(path, show(value),
      table.concat(field.enum, ", "),
      near and near ~= "" and (". Did you mean '%s'?"):format(near) or ""), key, at)
  end
  return value
end
M.check_field = check_field

function M.assumed(t)
  local at = errors.here()
  local a = M.check({
    value = { type = "number", required = true, doc = "the value used" },
    lo = { type = "number", required = true, doc = "lower end of the band" },
    hi = { type = "number", required = true, doc = "upper end of the band" },
    why = { type = "string", required = true, doc = "why this value" },
  }, t, "moe.assumed", at)
  if not (a.lo <= a.value and a.value <= a.hi) then
    errors.user(("moe.assumed: value %s does not lie between lo = %s and hi = %s"):format(a.value,
      a.lo, a.hi), "value", at)
  end
  return setmetatable(a, M.assumed_mt)
end

--- value, or the value of an assumed constant.
function M.value_of(v)
  if type(v) == "table" and getmetatable(v) == M.assumed_mt then return v.value end
  return v
end

return M
