-- Lina's expert packing (ATC 2023, section 4.4): n times as many experts per device, in groups of
-- 1/n of the devices, so that all-to-alls stay inside a group and every expert has n residents
-- whose gradients are all-reduced. Its controller as a planning function: from n = 1 on, n doubles
-- while the experts of a micro-op take less time than its all-to-all.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

--- Options of the controller.
M.FIELDS = {
  most = { type = "integer", lo = 1, hi = 1e6, doc = "n at most; all experts on every device" },
  begin_step = { type = "integer", lo = 0, hi = 1e9, default = 10,
    doc = "the step that is measured first (paper: 10)" },
  every = { type = "integer", lo = 1, hi = 1e9, default = 4,
    doc = "steps between measurements (paper: 4)" },
  host_bytes_per_s = { type = "number", lo = 1, hi = 1e15, default = 25e9,
    doc = "between a device and its host, one way; PCIe 4.0 x16 less its overhead" },
}

--- The specification with n times as many experts per device.
function M.packed(spec, n)
  return schema.merged(spec, { model = schema.merged(spec.model, { ep = spec.ranks / n }) })
end

schema.record("packing", "packing", "what Lina's packing controller chose, and saw", {
  { "n", "integer", "experts per device over those without packing" },
  { "ep", "integer", "devices of an expert-parallel group" },
  { "settled_step", "integer", "the step that is measured last" },
  { "exchange_ms", "number", "what bringing the experts takes, once" },
  { "offload_bytes", "number", "of a device, beyond its memory" },
  { "offload_ms", "number", "what they take to come and go, a step" },
  { "trace",
    "{ n: integer, ffn_ms: number, a2a_ms: number, peak_bytes: integer, step: integer }[]",
    "every n that was measured" },
})

--- Runs the controller. plan(spec): a plan. Returns n and what it saw. What does not fit in the
--- device's memory is in its host's, and comes and goes once per step. Errors are raised at the line of
--- `at`.
function M.choose(spec, o, plan, at)
  local most = math.min(o.most or spec.ranks, spec.ranks)
  local trace, n, made = core.array {}, 1
  while true do
    made = plan(M.packed(spec, n))
    local t = errors.call(at, made.micro_ops, made)
    trace[#trace + 1] = { n = n, ffn_ms = t.ffn_ms, a2a_ms = t.a2a_ms,
      peak_bytes = made:info().peak_bytes, step = o.begin_step + (#trace) * o.every }
    if t.ffn_ms >= t.a2a_ms or 2 * n > most or spec.ranks % (2 * n) ~= 0 then break end
    n = 2 * n
  end
  local last, memory = trace[#trace], spec.cluster.device.memory_bytes
  local over = memory > 0 and math.max(0, last.peak_bytes - memory) or 0
  return n, { n = n, ep = spec.ranks / n, settled_step = last.step,
    exchange_ms = errors.call(at, made.exchange_ms, made), offload_bytes = over,
    offload_ms = 2e3 * over / o.host_bytes_per_s, trace = trace }
end

return M
