-- Lina's expert packing (ATC 2023, section 4.4): each device holds n times as many experts, and the
-- devices form n groups, each of which holds every expert once. All-to-alls stay inside a group,
-- and the gradients of an expert are all-reduced over its n devices. The paper's controller, which
-- chooses n during training, is a planning function here: n starts at 1 and doubles while the
-- experts of a micro-op (a part of an all-to-all with its experts) take less time than its
-- all-to-all.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

M.FIELDS = {
  most = { type = "integer", lo = 1, hi = 1e6,
    doc = "largest n, the factor for experts per device; default: all experts on every device" },
  begin_step = { type = "integer", lo = 0, hi = 1e9, default = 10,
    doc = "the step that is measured first (paper: 10)" },
  every = { type = "integer", lo = 1, hi = 1e9, default = 4,
    doc = "steps between measurements (paper: 4)" },
  host_bytes_per_s = { type = "number", lo = 1, hi = 1e15, default = 25e9,
    doc = "bytes per second between a device and host memory, one way; the default is PCIe 4.0 x16 "
      .. "without its overhead" },
}

--- Returns the plan's specification with n times as many experts per device.
function M.packed(spec, n)
  return schema.merged(spec, { model = schema.merged(spec.model, { ep = spec.model.ep / n }) })
end

schema.record("packing", "packing", "what Lina's packing controller chose and measured", {
  { "n", "integer", "by what factor a device holds more experts than without packing" },
  { "ep", "integer", "number of devices of an expert-parallel group" },
  { "settled_step", "integer", "the step of the last measurement" },
  { "exchange_ms", "number", "time to bring the experts to their devices, once" },
  { "offload_bytes", "number", "bytes of a device that do not fit in its memory" },
  { "offload_ms", "number", "time per step to copy these bytes from host memory and back" },
  { "trace",
    "{ n: integer, ffn_ms: number, a2a_ms: number, peak_bytes: integer, step: integer }[]",
    "the measurement at each n" },
})

--- Runs the packing controller. plan(spec) must return a plan. Returns n and a record of how n was
--- found, of the type "packing". Bytes that do not fit in the device's memory are kept in host
--- memory and copied to the device and back once per step (offload_*). Errors name the line `at`.
function M.choose(spec, o, plan, at)
  local group = spec.model.ep  -- ranks that hold every expert once without packing
  local most = math.min(o.most or group, group)
  local trace, n, made = core.array {}, 1
  while true do
    made = plan(M.packed(spec, n))
    local t, info = errors.call(at, made.micro_ops, made), errors.call(at, made.info, made)
    trace[#trace + 1] = { n = n, ffn_ms = t.ffn_ms, a2a_ms = t.a2a_ms,
      peak_bytes = info.peak_bytes, step = o.begin_step + (#trace) * o.every }
    if t.ffn_ms >= t.a2a_ms or 2 * n > most or group % (2 * n) ~= 0 then break end
    n = 2 * n
  end
  local last, memory = trace[#trace], spec.cluster.device.memory_bytes
  local over = memory > 0 and math.max(0, last.peak_bytes - memory) or 0
  return n, { n = n, ep = group / n, settled_step = last.step,
    exchange_ms = errors.call(at, made.exchange_ms, made), offload_bytes = over,
    offload_ms = 2e3 * over / o.host_bytes_per_s, trace = trace }
end

return M
