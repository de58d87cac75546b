-- moe.lina: parts of Lina's schedulers for training and inference (ATC 2023) as functions: packing
-- is here, the others are in inference.lua.
local errors = require "moe.base.errors"
local inference = require "moe.techniques.inference"
local packing = require "moe.spec.packing"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"

local M = {}

M.PACKING = schema.merged(packing.FIELDS, {
  model = { type = "model", required = true, doc = "moe.model" },
  cluster = { type = "cluster", required = true, doc = "moe.cluster" },
  system = { type = "system",
    doc = "the system whose micro-ops are measured; default: lina_pipelining" },
})

local function pack(t)
  local at = errors.here()
  local c = schema.check(M.PACKING, t, "moe.lina.packing", at)
  errors.stop_in "policies"
  local system = c.system or system_lib.system "lina_pipelining" {}
  local candidate = system_lib.expand(system)[1][1]
  local spec = target.cluster_spec(c.model, system_lib.cluster_of(system, c.cluster))
  local _, seen = packing.choose(spec, c,
    function(s) return target.plan_of(s, candidate, at) end, at)
  return seen
end

--- The functions of moe.lina.
M.functions = schema.functions("moe.lina", "function", schema.merged(inference.functions, {
  packing = { pack, M.PACKING, "moe.Packing",
    "runs the packing controller; returns what it chose and measured" },
}))

return M
