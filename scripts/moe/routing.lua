-- Routing laws: moe.workload "name" {...}, and moe.loads{...}, what a law says.
local core = require "moe.core"
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

local mt = schema.class("routing", "a workload or a trace, as moe.workload 'zipf' { s = 1.2 }")

local SEED = { type = "integer", lo = 0, hi = 2 ^ 53, doc = "of its random numbers; --seed, or 1" }

--- The options of a row of core.table("workloads") as a field list.
function M.workload_fields(row)
  local out = { seed = SEED }
  for _, o in ipairs(row.options) do
    out[o.name] = { type = o.whole and "integer" or "number", lo = o.lo, hi = o.hi,
      default = o.default, doc = o.doc }
  end
  return out
end

--- What `routing` takes. law, name: as the core's functions return them.
local function object(law, name) return setmetatable({ law = law, name = name }, mt) end
M.object = object

local function workload_row(name, at)
  local names = {}
  for i, row in ipairs(core.table "workloads") do
    if row.name == name then return row end
    names[i] = row.name
  end
  schema.unknown("moe.workload", "workload", name, names, at)
end

--- moe.workload "zipf" { s = 1.2, seed = 3 }: which experts tokens choose, by name and seed.
function M.workload(name)
  local row = workload_row(name, errors.here())
  return function(t)
    local at = errors.here()
    local given = schema.check(M.workload_fields(row), t or {}, "moe.workload." .. name, at)
    local seed = given.seed or core.args.seed or 1
    given.seed = nil
    return object(errors.call(at, core.workload, name, given, seed))
  end
end

M.LOADS = {
  routing = { type = "routing", required = true, doc = "moe.workload or moe.trace" },
  ranks = { type = "integer", lo = 1, hi = 65536, required = true, doc = "sources" },
  tokens = { type = "integer", lo = 0, hi = 1e8, required = true, doc = "tokens a rank" },
  experts = { type = "integer", lo = 1, hi = 65536, required = true, doc = "experts in all" },
  k = { type = "integer", lo = 1, hi = 65536, default = 1, doc = "choices a token" },
  step = { type = "integer", lo = 1, hi = 1e9, default = 1 },
  layer = { type = "integer", lo = 1, hi = 1e6, default = 1, doc = "MoE layer, from 1" },
}

--- moe.loads{...}: how many choices of each source go to each expert, [source][expert].
function M.loads(t)
  local at = errors.here()
  local c = schema.check(M.LOADS, t, "moe.loads", at)
  local law = c.routing.law
  c.routing = nil
  return errors.call(at, core.loads, law, c)
end

return M
