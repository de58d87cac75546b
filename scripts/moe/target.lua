-- Targets: what a plan is made for. A target turns (model, cluster or ranks, system) into the
-- core's plan specification, for simulation on a cluster or for execution on CPU ranks.
local cluster_lib = require "moe.cluster"
local core = require "moe.core"
local errors = require "moe.errors"
local model_lib = require "moe.model"
local system_lib = require "moe.system"

local M = {}

M.OPTIMIZER = {
  name = { type = "string", enum = { "sgd" }, default = "sgd" },
  lr = { type = "number", lo = 0, hi = 1e38, default = 0.1 },
  momentum = { type = "number", lo = 0, hi = 1, default = 0.9 },
}

--- Specification for simulation on a cluster.
function M.cluster_spec(model, cluster, optimizer)
  local resolved, gate = model_lib.resolve(model, cluster.devices, "f16")
  return { model = resolved, gate = gate, optimizer = optimizer, ranks = cluster.devices,
    cluster = cluster_lib.plain(cluster), fill = model_lib.fill(resolved),
    cost = { kind = "roofline" }, element_bytes = 0 }
end

--- Specification for CPU ranks; link may be nil (the ranks' memory is the wire). The rates stand
--- for no machine: they matter only where no op is profiled, and there no time is reported.
function M.cpu_spec(model, ranks, link, optimizer, precision)
  local resolved, gate = model_lib.resolve(model, ranks, "f32")
  local wire = link or { bytes_per_s = 1e12, latency_us = 0 }
  return { model = resolved, gate = gate, optimizer = optimizer, ranks = ranks,
    cluster = { name = "cpu", nodes = ranks, devices_per_node = 1, nics_per_node = 1,
      device = { name = "cpu", gemm_flops_per_s = 1e11, vector_flops_per_s = 1e10,
        memory_bytes_per_s = 1e10, launch_us = 0, memory_bytes = 0 },
      intra = wire, nic = wire, a2a_base_us = 0, a2a_per_peer_us = 0 },
    fill = model_lib.fill(resolved),
    cost = { kind = "profile", cache = core.args.cache, link = link ~= nil },
    element_bytes = precision == "f64" and 8 or 4 }
end

--- Whether the plan depends on how long ops take: where it is chosen, or a stage reads costs.
function M.reads_times(candidates)
  for _, stage in ipairs(candidates[1].stages) do
    if stage.apply or stage.name == "dw_schedule" then return true end
  end
  return #candidates > 1
end

--- One plan: of a system of system.expand(). Errors stand at the line of `at`.
function M.plan_of(spec, candidate, at)
  spec.system = candidate
  return errors.call(at, core.plan, spec)
end

--- Plans every candidate of the system, simulates each and keeps the fastest:
--- { plan, sim = its simulation, candidate, tried = { { choice, iteration_ms } } }.
function M.plan(spec, system)
  local best
  local tried = core.array {}
  for i, candidate in ipairs(system_lib.expand(system)) do
    local plan = M.plan_of(spec, candidate, system.at)
    local sim = errors.call(system.at, plan.simulate, plan)
    tried[i] = { choice = candidate.choice, iteration_ms = sim.iteration_ms }
    if not best or sim.iteration_ms < best.sim.iteration_ms then
      best = { plan = plan, sim = sim, candidate = candidate, tried = tried }
    end
  end
  return best
end

return M
