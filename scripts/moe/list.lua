-- `moebench list [kind]`: what there is, read from the same tables as the checks.
local aligned = require "moe.aligned"
local claims_lib = require "moe.claims"
local cluster = require "moe.cluster"
local core = require "moe.core"
local errors = require "moe.errors"
local model = require "moe.model"
local papers = require "moe.papers"
local schema = require "moe.schema"
local stubs = require "moe.stubs"
local system = require "moe.system"

local M = {}

local function clusters()
  local out = { { name = "custom",
    doc = "every number given in the recipe, or by moe.machine 'machine.lua'" } }
  for _, name in ipairs(cluster.files) do
    out[#out + 1] = { name = name, doc = cluster.doc(name) }
  end
  return out
end

local function systems()
  local out = {}
  for i, name in ipairs(schema.keys_of(system.known)) do
    out[i] = { name = name, doc = system.known[name].doc }
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

local LISTS = { clusters = clusters, systems = systems, claims = claims,
  models = function() return model.docs end }
for _, kind in ipairs { "gates", "passes", "placements", "executors", "ops",
  "workloads" } do
  LISTS[kind] = function() return core.table(kind) end
end

local function say_list(kind)
  local rows = { { kind } }
  for _, item in ipairs(LISTS[kind]()) do
    local options = {}
    for i, o in ipairs(item.options or {}) do
      options[i] = ("%s = %s"):format(o.name, tostring(o.default))
    end
    rows[#rows + 1] = { "  " .. item.name, item.doc
      .. (#options > 0 and (" { %s }"):format(table.concat(options, ", ")) or "") }
  end
  core.say(aligned.text(rows))
end

--- Prints one kind, or all; "stubs" are type stubs for lua-language-server.
function M.list(kind)
  if kind == "stubs" then return core.say(stubs.text()) end
  local kinds = schema.keys_of(LISTS)
  if not kind then
    for _, name in ipairs(kinds) do say_list(name) end
  elseif LISTS[kind] then
    say_list(kind)
  else
    kinds[#kinds + 1] = "stubs"
    errors.command(schema.unknown_text("list", "kind", kind, kinds))
  end
end

return M
