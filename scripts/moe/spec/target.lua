-- Targets: a plan is made either for simulation on a cluster or for execution on real ranks. The
-- functions here turn a model, a cluster or number of ranks, and a system into the plan
-- specification that the core takes, and choose among a system's candidates.
local cluster_lib = require "moe.spec.cluster"
local core = require "moe.core"
local dtypes = require "moe.spec.dtypes"
local errors = require "moe.base.errors"
local memory = require "moe.base.memory"
local model_lib = require "moe.spec.model"
local packing = require "moe.spec.packing"
local dispatch_time = require "moe.spec.dispatch_time"
local pipeline_times = require "moe.spec.pipeline_times"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"

local M = {}

-- Returns the model's routing as the core and results take it, or nil.
local function routing_of(model)
  return model.routing and { handle = model.routing.handle, name = model.routing.name,
    scores = model.by_scores }
end

local OPTIMIZERS = { sgd = schema.declared "sgd", adamw = schema.declared "adamw" }

-- The fields of all optimizers in one list. They have no defaults, since the optimizers' defaults
-- differ; the doc of a field names the optimizers that take it, each with its default.
M.OPTIMIZER = { name = { type = "string", enum = schema.keys_of(OPTIMIZERS), default = "sgd",
  doc = "name of the optimizer" } }
for _, name in ipairs(schema.keys_of(OPTIMIZERS)) do
  for key, field in pairs(OPTIMIZERS[name]) do
    local known = M.OPTIMIZER[key]
    local doc = ("%s%s; default: %g"):format(name, field.doc and ", " .. field.doc or "",
      field.default)
    M.OPTIMIZER[key] = schema.merged(schema.optional(field),
      { doc = known and known.doc .. "; " .. doc or doc })
  end
end

local given = setmetatable({}, { __mode = "k" })  -- optimizer -> its fields without defaults

--- Returns the fields of a checked optimizer that the recipe gave, with its name.
function M.given_optimizer(o) return given[o] end

-- Fills in the defaults of the optimizer o.name and returns o. Raises a user error for a field that
-- this optimizer does not take.
local function complete(o, path, at)
  local fields = OPTIMIZERS[o.name]
  for key in pairs(o) do
    if key ~= "name" and not fields[key] then
      errors.user(("%s.%s: is not a field of %s, which has: %s"):format(path, key, o.name,
        table.concat(schema.keys_of(fields), ", ")), at, path .. "." .. key)
    end
  end
  given[o] = schema.merged(o, {})
  for key, field in pairs(fields) do
    if o[key] == nil then o[key] = field.default end
  end
  return o
end

--- The field `optimizer`. OPTIMIZER_FIELD has a default, and is for a case, moe.train and similar
--- calls; OTHER_OPTIMIZER is for an entry of an experiment's `run`, where it replaces the point's
--- optimizer.
M.OPTIMIZER_FIELD = { type = M.OPTIMIZER, default = {}, complete = complete,
  doc = "the optimizer, which updates the parameters" }
M.OTHER_OPTIMIZER = { type = M.OPTIMIZER, complete = complete,
  doc = "in place of the point's optimizer" }

--- Returns the types with which a model is simulated on a cluster if the model does not give any:
--- those of the one type for which the cluster's rates were found; else megatron_bf16, or f16_16
--- for a device without a rate of bf16. Raises a user error if the model gives another type than
--- that of the rates.
function M.types_on(model, cluster)
  local rates, gemm = cluster.dtype, cluster.device and cluster.device.gemm_flops_per_s
  local own = dtypes.of(model, { activations = rates })
  if rates and own ~= rates then
    local key = model.dtype and "dtype" or "dtypes"
    errors.user(("%s.%s: '%s' is not allowed on %s, whose rates were found with %s; give that "
      .. "or omit %s"):format(model.path, key, own, cluster.name, rates, key), model.at,
      model.path .. "." .. key)
  end
  if rates then return { activations = rates } end
  return type(gemm) == "table" and not gemm.bf16 and gemm.f16 and "f16_16" or "megatron_bf16"
end

--- Returns the specification for simulation on a cluster. ends: as in schema.collector, or nil.
function M.cluster_spec(model, cluster, optimizer, ends)
  if ends then
    model, cluster = model_lib.at_ends(model, ends), cluster_lib.at_ends(cluster, ends)
  end
  local spec = model_lib.resolve(model, cluster.devices, M.types_on(model, cluster))
  return schema.merged(spec, { routing = routing_of(model),
    optimizer = optimizer, ranks = cluster.devices,
    cluster = cluster_lib.plain(cluster, spec.model.dtype, model.path .. ".dtype", model.at),
    fill = model_lib.fill(model, spec.model),
    sample = not model.fill,
    cost = { kind = "roofline", fp8_flops_per_s = cluster_lib.fp8_rate(cluster, spec.model.dtypes,
      model.path .. ".dtypes", model.at) }, element_bytes = 0 })
end

--- Returns the specification for execution in `precision`, which overrides the model's dtype: bf16
--- stores activations in 2 bytes and everything else in 4; f32 stores every number in 4 bytes, f64
--- in 8.
function M.executed_in(precision, spec)
  local bf16 = precision == "bf16"
  return schema.merged(spec, {
    model = schema.merged(spec.model, { dtype = bf16 and "bf16" or "f32", dtypes = {} }),
    element_bytes = bf16 and 0 or precision == "f64" and 8 or 4 })
end

--- Returns the specification for ranks of the executor "cpu" or "cuda". link: the emulated link, or
--- nil if bytes only move in the ranks' memory. The device's rates here describe no machine: they
--- are used only if no op is profiled, and then no predicted time is reported.
function M.real_spec(executor, model, ranks, link, optimizer, precision)
  local spec = model_lib.resolve(model, ranks, "pure_f32")
  if (spec.model.dtypes.products or "plain") ~= "plain" then
    errors.user(("%s.dtypes: products in %s are simulated only; ranks of the executor %s have no "
      .. "kernels for them; give other dtypes"):format(model.path, spec.model.dtypes.products,
      executor), model.at, model.path .. ".dtypes")
  end
  for _, part in pairs(spec.model.stand_in or {}) do
    errors.user(("%s: a block of stated flops and bytes stands in for its %s, which is simulated "
      .. "only; leave this model out of what ranks of the executor %s run"):format(model.path,
      part.what, executor), model.at)
  end
  local wire = link or { bytes_per_s = 1e12, latency_us = 0 }
  local per_node = wire.devices_per_node or 1
  if ranks % per_node ~= 0 then
    errors.user(("link.devices_per_node: %d does not divide the number of ranks, %d; give a "
      .. "divisor"):format(
      per_node, ranks), model.at)
  end
  return M.executed_in(precision, schema.merged(spec, { routing = routing_of(model),
    optimizer = optimizer, ranks = ranks,
    cluster = { name = executor, nodes = ranks / per_node, devices_per_node = per_node,
      nics_per_node = 1,
      device = { name = executor, gemm_flops_per_s = 1e11, vector_flops_per_s = 1e10,
        memory_bytes_per_s = 1e10, launch_us = 0, memory_bytes = 0 },
      intra = wire.intra or wire, nic = wire, a2a_base_us = 0, a2a_per_peer_us = 0,
      share = wire.share, sharing_efficiency = wire.sharing_efficiency },
    fill = model_lib.fill(model, spec.model), sample = not model.fill,
    cost = { kind = "profile", device = executor, precision = precision, cache = core.args.cache,
      link = link ~= nil } }))
end

--- Says it if the element type that the model gives has no effect on ranks with the specification
--- `spec`, as real_spec() returns it.
function M.say_dtype(executor, model, spec)
  local key = model.dtype and "dtype" or "dtypes"
  local activations, others = dtypes.of(model, { activations = spec.model.dtype })
  if activations == spec.model.dtype and not next(others) then return end
  core.warn(("%s.%s: '%s' has no effect; ranks of the executor %s compute in %s, the run's "
    .. "precision"):format(model.path, key, type(model[key]) == "string" and model[key]
    or activations, executor, spec.cost.precision))
end

local defs = {}  -- entries of policy.pass_rows, indexed by name
for _, row in ipairs(policy.pass_rows) do defs[row.name] = row end

-- Returns what a stage reads from the cost model: "nothing", "rates" (of a device and its links) or
-- "times" (of single ops).
local function reads_of(stage)
  if stage.apply then return "times" end  -- a policy of the recipe may read any time
  local def = defs[stage.name]
  if not def then return "rates" end  -- a placement of the recipe
  if def.reads ~= "nothing" then return def.reads end
  for _, option in ipairs(def.options) do
    local value = stage.options[option.name]
    if option.reads and value and value ~= 0 then return option.reads end
  end
  return "nothing"
end

local function any_reads(stages, what)
  for _, stage in ipairs(stages) do
    if reads_of(stage) == what then return true end
  end
  return false
end

--- Returns whether a stage decides by how long ops take.
function M.stage_reads_times(stage) return reads_of(stage) == "times" end

--- Returns whether the plan depends on how long ops take: the fastest of several alternatives is
--- taken, a stage reads times, or experts are packed. alternatives: as system.expand() returns
--- them.
function M.reads_times(alternatives)
  return #alternatives > 1 or alternatives[1][1].packing ~= nil
    or any_reads(alternatives[1][1].stages, "times")
end

--- Returns whether a placement policy plans with rates, which are fitted to times of profiled ops.
function M.reads_rates(alternatives) return any_reads(alternatives[1][1].stages, "rates") end

--- Returns whether the system has a stage that places experts.
function M.places(system)
  for _, stage in ipairs(system_lib.expand(system)[1][1].stages) do
    if stage.kind == "placement" then return true end
  end
  return false
end

--- The number of simulated steps for a system that places experts, unless the recipe gives another.
--- One step would not be enough: a placement is made from the counts of the step before, so the
--- first step has none.
M.PLACED_STEPS = 8

--- The most steps of an executed run that are simulated, to predict it and then with its routing.
M.MOST_PREDICTED = 64

--- The schedule of pipeline ranks of a system that gives none.
M.PIPELINE = "1f1b"

--- Returns the row of a pipeline rank that runs each micro-batch's forward and backward in turn.
function M.in_order(micro_batches)
  local row = {}
  for m = 0, micro_batches - 1 do row[#row + 1] = ("0F%d,0B%d"):format(m, m) end
  return table.concat(row, ",")
end

--- Returns the pipeline of a plan, as the core takes it, or nil for one pipeline rank.
function M.pipeline_of(spec, candidate)
  local m, schedule = spec.model, candidate.pipeline
  local function turns()
    return pipeline_times.turns { schedule = schedule or M.PIPELINE, layout = spec.layout,
      ranks = m.pp, micro_batches = m.micro_batches, at = spec.at }
  end
  if m.pp > 1 then return turns() end
  if not schedule then return nil end
  -- One pipeline rank runs F0, B0, F1, B1, ... unless the schedule says otherwise.
  local ok, made = pcall(turns)
  if ok and made.rows[1] ~= M.in_order(m.micro_batches) then return made end
  core.warn(("system '%s': the pipeline schedule %s has no effect with one pipeline rank; give "
    .. "grid.pp%s"):format(candidate.name, schedule.name,
      ok and "" or " (" .. tostring(made.message or made):gsub("^.-schedule: ", "") .. ")"))
  return nil
end

--- Returns the plan of one candidate of system.expand(). Errors name the line `at`.
function M.plan_of(spec, candidate, at)
  spec.system, spec.pipeline = candidate, M.pipeline_of(spec, candidate)
  spec.dispatcher = candidate.dispatcher and dispatch_time.of_plan(spec, candidate, at)
  return errors.call(at, core.plan, spec)
end

--- Marks what a simulation of the core's plan found, with peak_bytes and no_room: if no device of
--- the cluster can run the plan, sets its `oom` to true and `misfit` to the reason. Returns it.
function M.mark(found, spec, plan)
  local of = { peak_bytes = found.peak_bytes, no_room = found.no_room,
    memory_bytes = spec.cluster.device.memory_bytes }
  if memory.misfit(of) then
    local info = plan:info()
    of.peak_parts = info.peak_parts
    found.oom, found.misfit = true, memory.misfit(of)
    if info.padded_rows ~= "" then
      found.misfit = ("%s (ranks %s a slot for every token, as the model has no capacity; "
        .. "irregular_a2a and used_rows avoid it)"):format(found.misfit, info.padded_rows)
    end
  end
  return found
end

-- Plans and simulates a candidate; returns { plan, sim, candidate, packing, oom }. Appends the
-- candidate's label, time and memory to `tried`.
local function try(spec, candidate, at, tried)
  local seen
  if candidate.packing then
    local n
    n, seen = packing.choose(spec, candidate.packing,
      function(packed) return M.plan_of(packed, candidate, at) end, at)
    spec = packing.packed(spec, n)
  end
  local plan, sim
  if spec.composed then
    plan, sim = spec.composed(spec, candidate)
  else
    plan = M.plan_of(spec, candidate, at)
    sim = errors.call(at, plan.simulate, plan, spec.simulate)
  end
  M.mark(sim, spec, plan)
  tried[#tried + 1] = { choice = candidate.choice, iteration_ms = sim.iteration_ms,
    peak_bytes = sim.peak_bytes, oom = sim.oom, why = sim.misfit }
  return { plan = plan, sim = sim, candidate = candidate, pipeline = spec.pipeline, packing = seen,
    oom = sim.oom }
end

-- As try(). A candidate of several that cannot be planned is appended to `tried` with the reason
-- alone, and gives nil.
local function allowed(spec, candidate, at, tried)
  if not candidate.choice then return try(spec, candidate, at, tried) end
  local ok, made = errors.try(try, spec, candidate, at, tried)
  if ok then return made end
  tried[#tried + 1] = { choice = candidate.choice, why = made.message:gsub("^[^:]*:%d+: ", "") }
  return nil, made
end

-- Returns the first candidate that fits in memory, planned and simulated; the last one that can be
-- planned if none fits; nil and the first error if none can be planned.
local function first_that_fits(spec, candidates, at, tried)
  local fits, failure
  for _, candidate in ipairs(candidates) do
    local made, err = allowed(spec, candidate, at, tried)
    fits, failure = made or fits, failure or err
    if made and not made.oom then break end
  end
  return fits, failure
end

local function better(a, b)
  if a.oom ~= b.oom then return b.oom end
  return a.sim.iteration_ms < b.sim.iteration_ms
end

--- Plans and simulates a system and returns the best of its alternatives: the fastest among those
--- that fit in memory, or the fastest of all if none fits. Alternatives that cannot be planned are
--- passed over, unless all are. spec.simulate: the options that the core's plan:simulate takes, or
--- nil; spec.composed: nil, or a function of the specification and a candidate that returns a plan
--- of turns and what is composed of them (moe.run.turns). Returns { plan, sim = its simulation,
--- whose `timelines` the core's trace, spans and explain take, candidate, pipeline = the turns of
--- pipeline ranks or nil, packing = the record of packing.choose or nil, oom = true or nil, tried =
--- { { choice, iteration_ms, peak_bytes, oom, why } } }, without a time for those that were passed
--- over.
function M.plan(spec, system)
  local best, failure
  local tried = core.array {}
  if spec.model.pp == 1 and system.pipeline and system.pipeline.of then
    system = system_lib.with(system, { pipeline = { name = system.pipeline.name } })
  end
  for _, candidates in ipairs(system_lib.expand(system)) do
    local made, err = first_that_fits(spec, candidates, system.at, tried)
    if made and (not best or better(made, best)) then best = made end
    failure = failure or err
  end
  if not best then error(failure, 0) end
  best.tried = tried
  return best
end

return M
