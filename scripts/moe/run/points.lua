-- The points of an experiment: all combinations of the values of `over`, after --set.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"
local settings = require "moe.run.settings"

local M = {}

-- Fields of runs that no coordinate may have the name of, since it would hide them.
local OF_RUNS = { experiment = true, executor = true, provenance = true, system = true,
  parameters = true, peak_bytes = true, point = true, samples_ms = true }
for _, row in ipairs(core.table "metrics") do OF_RUNS[row.name] = true end

-- Returns the value by which results and --set refer to a value of `over`: the value itself, or the
-- field `name` of a table; nil if there is none.
local function label_of(value)
  if type(value) == "table" then value = value.name end
  local kind = type(value)
  if value ~= value then return nil end
  if kind == "string" or kind == "number" or kind == "boolean" then return value end
end

--- Raises a user error unless every field of `over` is a non-empty list of different values that
--- can be named, and is not also in params.
function M.check(over, params, at)
  for name, list in pairs(over) do
    local path = "experiment.over." .. tostring(name)
    if type(name) ~= "string" then
      errors.user(("experiment.over: the key '%s' is not allowed; give each list a name, as over = "
        .. "{ nodes = { 1, 2 } }"):format(tostring(name)), at)
    end
    if OF_RUNS[name] then
      errors.user(path .. ": is the name of a field of runs; give the coordinate another name", at)
    end
    schema.field({ type = "list", of = { type = "any" }, least = "value" }, list, path, at)
    local seen = {}
    for i, value in ipairs(list) do
      local label, entry = label_of(value), ("%s[%d]"):format(path, i)
      if label == nil then
        schema.refuse(entry, value,
          "a number, a string, a boolean, or a table or object with a field name", at)
      end
      if seen[label] then
        errors.user((type(value) == "table"
          and "%s: its name '%s' is that of another value too; give each its own name"
          or "%s: '%s' is in the list twice; values must differ"):format(entry, tostring(label)),
          at)
      end
      seen[label] = true
    end
    if params[name] ~= nil then
      errors.user(path .. ": is also in experiment.params; give only one of the two", at)
    end
  end
end

-- Returns the values of `over` that a setting leaves of a list: those that it names, in its order.
-- A list of numbers takes other numbers too, and factors of its own ones.
local function chosen(s, list, at)
  local kept, have, seen, numbers = {}, {}, {}, true
  for i, value in ipairs(list) do
    numbers, have[i] = numbers and type(value) == "number", tostring(label_of(value))
  end
  local function keep(value)
    local label = label_of(value)
    if not seen[label] then kept[#kept + 1] = value end
    seen[label] = true
  end
  for _, label in ipairs(s.labels) do
    local factor, count = numbers and settings.factor(s.values[label]), #kept
    for _, value in ipairs(list) do
      if factor then keep(value * factor) end
      if label_of(value) == label or tostring(label_of(value)) == s.values[label] then
        keep(value)
      end
    end
    if numbers and type(label) == "number" then keep(label) end
    if #kept == count and not (factor or seen[label]) then
      errors.user(("--set %s=%s: the value is not in experiment.over.%s, have: %s"):format(s.name,
        s.values[label], s.name, table.concat(have, ", ")), at)
    end
  end
  return kept
end

-- Returns the values that a setting gives a parameter whose value is `old`.
local function replaced(s, old, at)
  local values, read = {}, settings.READ[type(old)]
  for i, label in ipairs(s.labels) do
    local text = s.values[label]
    local factor = type(old) == "number" and settings.factor(text)
    if factor then values[i] = old * factor elseif read then values[i] = read(text) end
    if values[i] == nil then
      errors.user(("--set %s=%s: give a %s, as in experiment.params.%s"):format(s.name, text,
        type(old), s.name), at)
    end
  end
  return values
end

--- Returns over and params of the experiment after the settings of the command line: they choose
--- values of `over`, replace values of `params`, and several values make a new list of `over`.
function M.after_set(e)
  local over, params = schema.merged(e.over, {}), schema.merged(e.params, {})
  for _, s in ipairs(settings.all()) do
    if over[s.name] then
      over[s.name] = chosen(s, over[s.name], e.at)
      settings.found(s)
    elseif params[s.name] ~= nil then
      local values = replaced(s, params[s.name], e.at)
      settings.found(s)
      params[s.name] = nil
      if #values == 1 then params[s.name] = values[1] else over[s.name] = values end
    elseif not s.head then
      settings.unknown(s, schema.keys_of(schema.merged(over, params)), e.at)
    elseif #s.labels > 1 then
      over[s.name] = s.labels
    end
  end
  return over, params
end

--- Returns a point's values as results show them (label_of); values that cannot be named are
--- omitted.
function M.labels(values)
  local out = {}
  for name, value in pairs(values) do out[name] = label_of(value) end
  return out
end

function M.list_labels(lists)
  local out = {}
  for name, list in pairs(lists) do
    out[name] = {}
    for i, value in ipairs(list) do out[name][i] = label_of(value) end
  end
  return out
end

return M
