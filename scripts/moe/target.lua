-- Targets: what a plan is made for. A target turns (model, cluster, system) into the core's plan
-- specification, for simulation on a cluster or for execution on CPU ranks.
local core = require "moe.core"
local errors = require "moe.errors"
local model_lib = require "moe.model"
local schema = require "moe.schema"
local system_lib = require "moe.system"

local M = {}

local LINK = {
  bytes_per_s = { type = "number", lo = 1e3, hi = 1e13, required = true,
    doc = "bytes a second, one way" },
  latency_us = { type = "number", lo = 0, hi = 1e7, default = 0, doc = "one traversal" },
}
M.LINK = LINK

local OPTIMIZER = {
  name = { type = "string", enum = { "sgd" }, default = "sgd" },
  lr = { type = "number", lo = 0, hi = 1e6, default = 0.1 },
  momentum = { type = "number", lo = 0, hi = 1, default = 0.9 },
}

function M.optimizer(t, path, at)
  local o = schema.check(OPTIMIZER, t or {}, path, at)
  return { lr = o.lr, momentum = o.momentum }
end

-- What the core takes of a cluster.
local function plain(cluster)
  local out = {}
  for _, k in ipairs { "name", "nodes", "devices_per_node", "device", "intra", "nic",
    "nics_per_node", "a2a_base_us", "a2a_per_peer_us" } do
    out[k] = cluster[k]
  end
  return out
end

--- Specification for simulation on a cluster.
function M.cluster_spec(model, cluster, system, optimizer)
  if not cluster.device then
    errors.user("cluster: device is missing; a simulation needs its rates", nil, system.at)
  end
  local resolved, gate = model_lib.resolve(model, cluster.devices, "f16", model.at)
  return { model = resolved, gate = gate, optimizer = optimizer, ranks = cluster.devices,
    cluster = plain(cluster), fill = model_lib.fill(resolved), cost = { kind = "roofline" },
    element_bytes = 0 }
end

--- Specification for CPU ranks; link may be nil (the ranks' memory is the wire).
function M.cpu_spec(model, ranks, link, optimizer, precision)
  local resolved, gate = model_lib.resolve(model, ranks, "f32", model.at)
  local rate = link and link.bytes_per_s or 1e12
  local latency = link and link.latency_us or 0
  local wire = { bytes_per_s = rate, latency_us = latency }
  return { model = resolved, gate = gate, optimizer = optimizer, ranks = ranks,
    cluster = { name = "cpu", nodes = ranks, devices_per_node = 1, nics_per_node = 1,
      device = { name = "cpu", gemm_flops_per_s = 1e11, vector_flops_per_s = 1e10,
        memory_bytes_per_s = 1e10, launch_us = 0, memory_bytes = 0 },
      intra = wire, nic = wire, a2a_base_us = 0, a2a_per_peer_us = 0 },
    fill = model_lib.fill(resolved),
    cost = { kind = "profile", cache = core.args.cache, link = link ~= nil },
    element_bytes = precision == "f64" and 8 or 4 }
end

--- Plans every candidate of the system, simulates each, and returns the fastest:
--- plan, its simulation, the chosen label (nil without moe.best), and all candidates' times.
function M.plan(spec, system)
  local best_plan, best_sim, choice
  local tried = {}
  for _, candidate in ipairs(system_lib.expand(system)) do
    spec.system = candidate
    local plan = errors.call(system.at, nil, core.plan, spec)
    local sim = errors.call(system.at, nil, plan.simulate, plan)
    tried[#tried + 1] = { choice = candidate.choice, iteration_ms = sim.iteration_ms }
    if not best_sim or sim.iteration_ms < best_sim.iteration_ms then
      best_plan, best_sim, choice = plan, sim, candidate.choice
    end
  end
  spec.system = nil
  return best_plan, best_sim, choice, tried
end

return M
