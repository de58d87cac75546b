-- The points of an experiment: all combinations of the values of `over`, after --set.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

-- Returns the value by which results and --set refer to a value of `over`: the value itself, or the
-- field `name` of a table; nil if there is none.
local function label_of(value)
  if type(value) == "table" then value = value.name end
  local kind = type(value)
  if kind == "string" or kind == "number" or kind == "boolean" then return value end
end

--- Raises a user error unless every field of `over` is a non-empty list of different values that
--- can be named, and is not also in params.
function M.check(over, params, at)
  for name, list in pairs(over) do
    local path = "experiment.over." .. tostring(name)
    schema.field({ type = "list", of = { type = "any" } }, list, path, at)
    if #list == 0 then errors.user(path .. ": the list is empty; give at least one value", at) end
    local seen = {}
    for i, value in ipairs(list) do
      local label, entry = label_of(value), ("%s[%d]"):format(path, i)
      if label == nil then
        schema.refuse(entry, value,
          "a number, a string, a boolean, or a table or object with a field name", at)
      end
      if seen[label] then
        errors.user(("%s: '%s' is in the list twice; values must differ"):format(entry,
          tostring(label)), at)
      end
      seen[label] = true
    end
    if params[name] ~= nil then
      errors.user(path .. ": is also in experiment.params; give only one of the two", at)
    end
  end
end

local function same(value, text)
  local label = label_of(value)
  return tostring(label) == text or type(label) == "number" and label == tonumber(text)
end

local function narrowed(name, list, text, at)
  local kept, have = {}, {}
  for i, value in ipairs(list) do
    if same(value, text) then kept[#kept + 1] = value end
    have[i] = tostring(label_of(value))
  end
  if #kept == 0 then
    errors.user(("--set %s=%s: the value is not in experiment.over.%s, have: %s"):format(name, text,
      name, table.concat(have, ", ")), at)
  end
  return kept
end

local READ = {
  number = tonumber,
  string = function(text) return text end,
  boolean = function(text) return ({ ["true"] = true, ["false"] = false })[text] end,
}

local function replaced(name, old, text, at)
  local read = READ[type(old)]
  local value = read and read(text)
  if value == nil then
    errors.user(("--set %s=%s: give a %s, as in experiment.params.%s"):format(name, text,
      type(old), name), at)
  end
  return value
end

--- Returns over and params of the experiment after --set, which reduces a list of `over` to one
--- value and replaces a value of `params`.
function M.after_set(e)
  local over, params = schema.merged(e.over, {}), schema.merged(e.params, {})
  for name, text in pairs(core.args.set or {}) do
    if over[name] then
      over[name] = narrowed(name, over[name], text, e.at)
    elseif params[name] ~= nil then
      params[name] = replaced(name, params[name], text, e.at)
    else
      schema.unknown("--set", "name", name, schema.keys_of(schema.merged(over, params)), e.at)
    end
  end
  return over, params
end

--- Returns the list of all points. A point maps names to values; the last name in alphabetical
--- order changes fastest.
function M.product(over)
  local points = { {} }
  for _, name in ipairs(schema.keys_of(over)) do
    local more = {}
    for _, p in ipairs(points) do
      for _, v in ipairs(over[name]) do more[#more + 1] = schema.merged(p, { [name] = v }) end
    end
    points = more
  end
  return points
end

--- Returns a point's values as results show them (label_of); values that cannot be named are
--- omitted.
function M.labels(values)
  local out = {}
  for name, value in pairs(values) do out[name] = label_of(value) end
  return out
end

--- Returns lists of values, indexed by name, as results show them.
function M.list_labels(lists)
  local out = {}
  for name, list in pairs(lists) do
    out[name] = {}
    for i, value in ipairs(list) do out[name][i] = label_of(value) end
  end
  return out
end

return M
