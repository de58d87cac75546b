-- Relations that any simulation must obey, on every built-in cluster: what is wrong as text, or "".
local cluster_lib = require "moe.spec.cluster"
local moe = require "moe"

local NODES = 2
local failures = {}

local function expect(holds, text, ...)
  if not holds then failures[#failures + 1] = text:format(...) end
end

-- The metrics of a step of a small model. t: fields of the model that differ.
local function step(name, t, system, nodes, stack)
  local model = { layers = 4, hidden = 1024, heads = 16, seq = 512, batch_per_device = 4,
    vocab = 512, experts_per_device = 1 }
  for key, value in pairs(t) do model[key] = value end
  return moe.plan { model = moe.model.gpt2_moe(model), system = moe.system(system or "raf") {},
    cluster = moe.cluster[name] { nodes = nodes or NODES, stack = stack } }:simulate()
end

local function message_of(f, ...)
  local ok, why = pcall(f, ...)
  return ok and "no error" or tostring(type(why) == "table" and why.message or why)
end

-- The rates that a device has are those of its element types, each at most its peak; another type
-- is refused. From wide to narrow no step and no product takes longer.
local function check_dtypes(name, peaks)
  local device = moe.cluster[name] { nodes = NODES }.device
  local before
  for _, dtype in ipairs { "f32", "tf32", "bf16", "f16" } do
    local peak = peaks[dtype]
    local gemm = { cluster = moe.cluster[name] { nodes = NODES }, op = "gemm", dtype = dtype,
      m = 8192, n = 8192, k = 8192 }
    if peak then
      local flops_per_s = 2 * 8192 ^ 3 / (moe.op_time(gemm).ms * 1e-3)
      expect(flops_per_s <= peak, "%s: a product in %s runs at %.3g flops per s, peak %.3g", name,
        dtype, flops_per_s, peak)
      local now = step(name, { dtype = dtype })
      if before then
        expect(now.compute_ms <= before.compute_ms and now.iteration_ms <= before.iteration_ms,
          "%s: a step in %s computes %g ms, in a wider type %g ms", name, dtype, now.compute_ms,
          before.compute_ms)
      end
      before = now
    else
      for _, why in ipairs { message_of(step, name, { dtype = dtype }),
        message_of(moe.op_time, gemm) } do
        local no_rate = why:find(("'%s' has no rate on %s"):format(dtype, device.name), 1, true)
          and why:find("which has .*f32", 1)
        local no_table = why:find(("'%s': %s has neither measured times"):format(dtype,
          device.name), 1, true)
        expect(no_rate or no_table, "%s: %s: %s", name, dtype, why)
      end
    end
  end
  local wide, narrow = step(name, { dtype = "f32" }), step(name, { dtype = "f16" })
  expect(wide.compute_ms > 1.5 * narrow.compute_ms, "%s: f32 computes %g ms, f16 %g ms", name,
    wide.compute_ms, narrow.compute_ms)
end

-- Without the stack: its host time does not grow with the tokens, and its masks with their square.
local function check_sizes(name)
  local function bare(t, nodes)
    -- Updates and the reading of weights, which do not grow with the tokens, are short.
    t.dtype, t.batch_per_device = "f16", t.batch_per_device or 16
    return step(name, t, "raf", nodes, false)
  end
  local one = bare {}
  for field, twice in pairs { batch_per_device = bare { batch_per_device = 32 },
    layers = bare { layers = 8 } } do
    local ratio = twice.compute_ms / one.compute_ms
    expect(ratio > 1.6 and ratio < 2.2, "%s: twice the %s computes %.2f times as long", name, field,
      ratio)
  end
  local more = bare({}, 2 * NODES)
  expect(more.exposed_comm_ms >= one.exposed_comm_ms, "%s: exposed on %d nodes %g ms, on %d %g ms",
    name, 2 * NODES, more.exposed_comm_ms, NODES, one.exposed_comm_ms)
end

local function check_systems(name)
  for _, system in ipairs { "raf", "raf_irregular", "tutel", "fastermoe", "lancet", "lina" } do
    local sim = step(name, { dtype = "f16" }, system)
    expect(sim.iteration_ms >= sim.lower_bound_ms, "%s, %s: %g ms, bound %g ms", name, system,
      sim.iteration_ms, sim.lower_bound_ms)
  end
  local function routed(routing)
    return step(name, { capacity = "none", gate = "top_k", k = 2, routing = routing },
      "raf_irregular").iteration_ms
  end
  local even, skewed = routed(moe.workload "balanced" {}), routed(moe.workload "zipf" { s = 1 })
  expect(skewed >= even, "%s: skewed %g ms, even %g ms", name, skewed, even)
end

for _, name in ipairs(cluster_lib.files) do
  local file = require("moe.clusters." .. name)(moe.assumed, require "moe.gpus.nodes", 1)
  local peaks = file.device.peak_gemm_flops_per_s
  expect(type(peaks) == "table" and peaks.f32 and peaks.f16, "%s: no rates by element type", name)
  if type(peaks) == "table" then check_dtypes(name, peaks) end
  check_sizes(name)
  check_systems(name)
end
return table.concat(failures, "\n")
