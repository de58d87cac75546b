-- moe.lina: the decisions of Lina's scheduler (ATC 2023) as functions.
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

local functions = {}

--- moe.lina.packing{...}: runs the packing controller. Returns what it chose and measured: { n = by
--- what factor a device holds more experts than without packing, ep = devices of a group,
--- settled_step, exchange_ms (once), offload_bytes, offload_ms (per step), trace = { { n, ffn_ms,
--- a2a_ms, peak_bytes, step } } }.
function functions.packing(t)
  local at = errors.here()
  local c = schema.check(M.PACKING, t, "moe.lina.packing", at)
  errors.stop_in "policies"
  local candidate = system_lib.expand(c.system or system_lib.system "lina_pipelining" {})[1][1]
  local spec = target.cluster_spec(c.model, c.cluster, nil)
  local _, seen = packing.choose(spec, c,
    function(s) return target.plan_of(s, candidate, at) end, at)
  return seen
end

functions.inference = inference.inference
functions.locality = inference.locality
functions.place = inference.place
functions.popularity = inference.popularity
functions.token_classes = inference.token_classes
functions.trace = inference.trace

M.functions = schema.namespace("moe.lina", "function", functions)

return M
