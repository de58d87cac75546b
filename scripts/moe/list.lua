-- `moebench list [kind]`: prints what is built in, from the tables that the checks use too.
local aligned = require "moe.base.aligned"
local balance = require "moe.techniques.balance"
local claims_lib = require "moe.results.claims"
local core = require "moe.core"
local errors = require "moe.base.errors"
local model_lib = require "moe.spec.model"
local papers = require "moe.papers"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"
local stacks = require "moe.spec.stack"
local stubs = require "moe.stubs"
local system = require "moe.spec.system"

local M = {}

-- Returns { name, doc } for each function of a part of the library, for example moe.<part>.custom,
-- in the order of schema.calls.
local function functions_of(part)
  local out = {}
  for _, call in ipairs(schema.calls) do
    local name = call.name:match("^" .. part .. "%.(.*)$")
    if name then out[#out + 1] = { name = name, doc = call.doc } end
  end
  return out
end

-- Returns the values of an option in `tried`, the candidates of moe.best or moe.fallback, as
-- "max_parts = 8, 4, 2"; nil if all are the default.
local function option_text(option, tried)
  local values, differs = {}, false
  for _, candidate in ipairs(tried) do
    local value = candidate.pass.options[option.name]
    differs = differs or value ~= option.default
    if values[#values] ~= tostring(value) then values[#values + 1] = tostring(value) end
  end
  return differs and ("%s = %s"):format(option.name, table.concat(values, ", ")) or nil
end

-- Returns a pass with those options that differ from their defaults, as text: "fallback of
-- partition { max_parts = 8, 4, 2 }".
local function pass_text(pass)
  local tried, options = pass.candidates or { { pass = pass } }, {}
  local name = tried[1].pass.name
  for _, row in ipairs(policy.pass_rows) do
    for _, option in ipairs(row.name == name and row.options or {}) do
      options[#options + 1] = option_text(option, tried)
    end
  end
  return (pass.candidates and pass.kind .. " of " or "") .. name
    .. (#options > 0 and (" { %s }"):format(table.concat(options, ", ")) or "")
end

local function systems()
  local out = {}
  for i, name in ipairs(schema.keys_of(system.known)) do
    local known, parts = system.known[name], {}
    for _, pass in ipairs(known.passes) do parts[#parts + 1] = pass_text(pass) end
    if known.packing then parts[#parts + 1] = "packing" end
    out[i] = { name = name, doc = known.doc,
      parts = #parts > 0 and table.concat(parts, ", ") or "no pass" }
  end
  return out
end

local function claims()
  local out = {}
  for i, id in ipairs(schema.keys_of(papers)) do
    local c = papers[id]
    out[i] = { name = id, doc = ("%s: %s: %s"):format(c.figure, c.text,
      claims_lib.number_text(c.unit, c.value, "%g %s")) }
  end
  return out
end

-- Returns the architectures and models; those of published sizes with their counts.
local function models()
  local out = functions_of "model"
  for _, row in ipairs(out) do
    local counts = model_lib.published(row.name)
    if counts then
      row.doc = ("%.4g B parameters, %.4g B active per token%s"):format(counts.all, counts.active,
        counts.missing and "; cannot be planned: needs " .. counts.missing
          or (", %.4g GFLOPs per token of %d"):format(counts.gflops, model_lib.COUNTED_SEQ))
    end
  end
  return out
end

-- Returns the placement policies: those of the engine, and the methods in Lua.
local function placements()
  local out, row_of = schema.merged(core.table "placements", {}), {}
  for _, row in ipairs(policy.pass_rows) do row_of[row.name] = row end
  for _, name in ipairs(schema.keys_of(balance)) do out[#out + 1] = row_of[name] end
  return out
end

local LISTS = { systems = systems, claims = claims,
  clusters = function() return functions_of "cluster" end,
  stacks = function() return stacks.rows end,
  pipelines = function() return policy.pipeline_rows end,
  dispatchers = function() return policy.dispatcher_rows end,
  models = models, passes = function() return policy.pass_rows end, placements = placements }
for _, kind in ipairs { "gates", "executors", "metrics", "ops", "workloads" } do
  LISTS[kind] = function() return core.table(kind) end
end

--- Returns the entries that `moebench list <kind>` shows: a list of { name, doc, ... }.
function M.rows(kind) return LISTS[kind]() end

local function say_list(kind)
  local rows = { { kind } }
  for _, item in ipairs(M.rows(kind)) do
    local options = {}
    for i, o in ipairs(item.options or {}) do
      options[i] = ("%s = %s"):format(o.name, tostring(o.default))
    end
    rows[#rows + 1] = { "  " .. item.name, item.doc
      .. (#options > 0 and (" { %s }"):format(table.concat(options, ", ")) or "") }
    if item.parts then rows[#rows + 1] = { "", "  = " .. item.parts } end
  end
  core.say(aligned.text(rows))
end

--- Prints what is built in of one kind, for example "gates", or of all kinds if `kind` is nil. For
--- "stubs", prints type stubs for lua-language-server instead.
function M.list(kind)
  if kind == "stubs" then return core.say(stubs.text()) end
  local kinds = schema.keys_of(LISTS)
  if not kind then
    for _, name in ipairs(kinds) do
      if name ~= "claims" then say_list(name) end
    end
    say_list "claims"  -- longer than all others together
  elseif LISTS[kind] then
    say_list(kind)
  else
    kinds[#kinds + 1] = "stubs"
    errors.command(schema.unknown_text("list", "kind", kind, kinds))
  end
end

return M
