-- The parts of a run's record (a run in results.json): what is known from its job, what its plan
-- says, and what its simulation found.
local cluster_lib = require "moe.spec.cluster"
local core = require "moe.core"
local pipeline = require "moe.results.charts.pipeline"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"

local M = {}

M.METRICS = {}
for i, row in ipairs(core.table "metrics") do M.METRICS[i] = row.name end

-- Returns the lines of the passes' log for a record. Lines of schedule passes on single ops
-- are omitted; plan:explain() has them.
local function log_of(made, info)
  local scheduler, log = {}, core.array {}
  for _, stage in ipairs(made.candidate.stages) do
    scheduler[stage.name] = stage.kind == "schedule"
  end
  for _, d in ipairs(info.log) do
    if not scheduler[d.stage] or d.op == d.stage then
      log[#log + 1] = ("%s [%s] %s"):format(d.op, d.stage, d.why)
    end
  end
  return log
end

-- Returns the degrees that a pass chose for each layer (pipemoe), or nil if there is no such pass.
local function degrees_of(info)
  local degrees = core.array {}
  for _, d in ipairs(info.log) do
    degrees[#degrees + 1] = tonumber(d.why:match "^degree (%d+)[:,]")
  end
  return #degrees > 0 and degrees or nil
end

--- Returns the part that is known from a job (moe.run.jobs) of the experiment `name`.
function M.of_job(name, job)
  local spec, memory = job.spec, job.spec.cluster.device.memory_bytes
  return {
    experiment = name, entry = job.index, system = job.system.name, model = spec.model.name,
    cluster = spec.cluster.name, cluster_parameters = cluster_lib.shown(spec.cluster),
    devices = spec.ranks, parameters = spec.model,
    gate_options = spec.gate and spec.gate.options, routing = spec.routing and spec.routing.name,
    stack = spec.cluster.stack and spec.cluster.stack.name, optimizer = spec.optimizer,
    edits = spec.edits, memory_bytes = memory > 0 and memory or nil,
  }
end

-- Returns what had no effect: stages of the plan, and candidates that could not be planned.
local function without_effect(made, info)
  local list = core.array(schema.merged(info.without_effect, {}))
  for _, candidate in ipairs(made.tried) do
    if not candidate.iteration_ms then
      list[#list + 1] = { stage = candidate.choice, reason = candidate.why }
    end
  end
  return #list > 0 and list or nil
end

--- Returns what pipeline ranks do as results.json has it: with turns if a picture can show them.
function M.pipeline(ranks)
  local turns = 0
  for _, rank in ipairs(ranks or {}) do turns = turns + #(rank.turns or {}) end
  for _, rank in ipairs(turns > pipeline.MOST and ranks or {}) do rank.turns = nil end
  return ranks
end

--- Returns the part that a plan and its simulation determine. made: a result of target.plan.
function M.of_plan(made)
  local info, sim, candidate = made.plan:info(), made.sim, made.candidate
  return {
    fill = info.fill, padded_rows = info.padded_rows ~= "" and info.padded_rows or nil,
    assumed_routing = info.assumed_routing, dispatcher = info.dispatcher,
    stages = core.array(system_lib.describe(candidate)),
    all_reduce = candidate.all_reduce, packing = made.packing, choice = candidate.choice,
    degrees = degrees_of(info),
    candidates = #made.tried > 1 and made.tried or nil,
    lower_bound_ms = sim.lower_bound_ms, busiest_lane_ms = sim.busiest_lane_ms,
    critical_path_ms = sim.critical_path_ms, simulate_ms = sim.sim_ms, alone_ms = sim.alone_ms,
    measured_share = sim.measured_share, extrapolated_share = sim.extrapolated_share,
    pipeline = M.pipeline(sim.pipeline), peak_bytes_by_rank = info.peak_bytes_by_rank,
    peak_bytes = info.peak_bytes, liveness_bytes = info.liveness_bytes, plan_ms = info.plan_ms,
    oom = made.oom, no_room = sim.no_room, holders = made.oom and info.holders or nil,
    peak_parts = made.oom and info.peak_parts or nil,
    without_effect = without_effect(made, info),
    plan_hash = info.hash, num_ops = info.num_ops, log = log_of(made, info),
  }
end

--- Returns placements as results.json has them, indexed by [step][layer]: numbers of moves, copies
-- and replicas, but not on which devices the experts are.
function M.placements(placements)
  if not placements then return nil end
  local out = {}
  for step, layers in ipairs(placements) do
    out[step] = core.array {}
    for i, p in ipairs(layers) do
      local replicas = 0
      for _, r in ipairs(p.replicas) do replicas = replicas + #r.devices end
      out[step][i] = { layer = p.layer, micro_batch = p.micro_batch, moves = p.moves,
        copies = p.copies, replicas = replicas,
        max_load = p.max_load, mean_load = p.mean_load, max_load_plain = p.max_load_plain,
        log = p.log }
    end
  end
  return out
end

return M
