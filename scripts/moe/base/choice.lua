-- moe.best and moe.fallback: a pass with a list of values for one option. Each value makes a
-- candidate. moe.best takes the candidate with the fastest simulated step; moe.fallback takes the
-- first candidate whose plan fits in a device's memory.
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local mt = {
  best = schema.class("best", "moe.best(...)"),
  fallback = schema.class("fallback", "moe.fallback(...)"),
}

-- Returns the name of the option whose value is a list, and that list.
local function open_option(what, options, at)
  local name
  for k, v in pairs(options) do
    if type(v) == "table" then
      if name then
        errors.user(("%s: options '%s' and '%s' are both lists; give only one option a list of "
          .. "values"):format(what, name, k), at)
      end
      name = k
    end
  end
  local list = { type = "list", of = { type = "any" }, distinct = true, default = {} }
  local path = ("%s.%s"):format(what, tostring(name))
  local values = schema.field(list, name and options[name], path, at)
  if #values == 0 then
    errors.user(what .. ": give one option a list of values, for example { degree = { 1, 2, 4 } }; "
      .. "no option has a list with values", at)
  end
  return name, values
end

local function chooser(kind)
  local what = "moe." .. kind
  return function(constructor, options)
    local at = errors.here()
    if type(constructor) ~= "function" then
      schema.refuse(what, constructor,
        "the constructor of a pass, for example moe.pass.capacity_pipeline", at)
    end
    if type(options) ~= "table" then
      schema.refuse(what, options, "a table of the pass's options, with a list of values "
        .. "for one of them", at)
    end
    local name, values = open_option(what, options, at)
    local candidates = {}
    for i, value in ipairs(values) do
      local pass = constructor(schema.merged(options, { [name] = value }))
      candidates[i] = { label = ("%s=%s"):format(name, tostring(value)),
        pass = schema.field({ type = "pass" }, pass, what, at) }
    end
    return schema.object({ kind = kind, option = name, candidates = candidates }, mt[kind])
  end
end

--- Returns the pass, or the first candidate of a choice between passes.
function M.first(pass) return pass.candidates and pass.candidates[1].pass or pass end

--- Returns f(pass), or the choice with f(pass) in place of each candidate, or one of these if f
--- made all equal. option: the name of the option that f changes.
function M.changed(pass, option, f)
  if not pass.candidates then return f(pass) end
  local candidates, seen = {}, {}
  for _, c in ipairs(pass.candidates) do
    local made, label = f(c.pass), c.label
    if option == pass.option then label = ("%s=%s"):format(option, made.options[option]) end
    if not seen[label] then candidates[#candidates + 1] = { label = label, pass = made } end
    seen[label] = true
  end
  if #candidates == 1 then return candidates[1].pass end
  return schema.object({ kind = pass.kind, option = pass.option, candidates = candidates },
    mt[pass.kind])
end

--- moe.best(constructor, { option = { values } }): takes the value with the fastest simulated step
--- among those whose plans fit in memory; the fastest of all values when no plan fits.
M.best = chooser "best"

--- moe.fallback(constructor, { option = { values } }): takes the first value whose plan fits in
--- memory; the last value when no plan fits.
M.fallback = chooser "fallback"

-- Returns, for each list of stages and each candidate of one pass, that list with the candidate's
-- stage appended. choices: the candidates.
local function followed(lists, choices)
  local longer = {}
  for _, list in ipairs(lists) do
    for _, c in ipairs(choices) do
      local stages = schema.merged(list.stages, {})
      stages[#stages + 1] = { name = c.pass.name, kind = c.pass.stage, options = c.pass.options,
        apply = c.pass.apply, placement = c.pass.placement, needs = c.pass.needs,
        gives = c.pass.gives }
      longer[#longer + 1] = { stages = stages, label = list.label and c.label
        and list.label .. " " .. c.label or list.label or c.label }
    end
  end
  return longer
end

--- Expands a list of passes. Returns a list of alternatives, one for each combination of candidates
--- of the moe.best passes. An alternative is a list of { stages, label }, one for each combination
--- of candidates of the moe.fallback passes, in the order in which they are to be tried.
function M.alternatives(passes)
  local all = { { { stages = {} } } }
  for _, pass in ipairs(passes) do
    local more = {}
    for _, lists in ipairs(all) do
      if pass.kind == "best" then
        for _, c in ipairs(pass.candidates) do more[#more + 1] = followed(lists, { c }) end
      else
        more[#more + 1] = followed(lists, pass.candidates or { { pass = pass } })
      end
    end
    all = more
  end
  return all
end

return M
