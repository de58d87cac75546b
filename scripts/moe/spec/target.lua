-- Targets: what a plan is made for. A target turns (model, cluster or ranks, system) into the
-- core's plan specification, for simulation on a cluster or for execution on real ranks.
local cluster_lib = require "moe.spec.cluster"
local core = require "moe.core"
local errors = require "moe.base.errors"
local model_lib = require "moe.spec.model"
local packing = require "moe.spec.packing"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"

local M = {}

-- What the core and results take of a model's routing.
local function routing_of(model)
  return model.routing and { handle = model.routing.handle, name = model.routing.name }
end

local OPTIMIZERS = { sgd = schema.declared "sgd", adamw = schema.declared "adamw" }

-- Without defaults, since optimizers differ in them; the doc says which optimizer takes a field.
M.OPTIMIZER = { name = { type = "string", enum = schema.keys_of(OPTIMIZERS), default = "sgd",
  doc = "which it is" } }
for _, name in ipairs(schema.keys_of(OPTIMIZERS)) do
  for key, field in pairs(OPTIMIZERS[name]) do
    local known = M.OPTIMIZER[key]
    local doc = ("%s%s; %g"):format(name, field.doc and ", " .. field.doc or "", field.default)
    M.OPTIMIZER[key] = schema.merged(schema.optional(field),
      { doc = known and known.doc .. "; " .. doc or doc })
  end
end

-- The fields of an optimizer with its defaults. One that another optimizer takes is an error.
local function complete(o, path, at)
  local fields = OPTIMIZERS[o.name]
  for key in pairs(o) do
    if key ~= "name" and not fields[key] then
      errors.user(("%s.%s: is not a field of %s, which takes: %s"):format(path, key, o.name,
        table.concat(schema.keys_of(fields), ", ")), at, path .. "." .. key)
    end
  end
  for key, field in pairs(fields) do
    if o[key] == nil then o[key] = field.default end
  end
  return o
end

--- An optimizer where one may be given, and where one replaces another.
M.OPTIMIZER_FIELD = { type = M.OPTIMIZER, default = {}, complete = complete,
  doc = "what makes updates of gradients" }
M.OTHER_OPTIMIZER = { type = M.OPTIMIZER, complete = complete, doc = "instead of the point's" }

--- What a model is simulated in on a cluster where it does not say: what the cluster's rates were
--- found in, or f16.
function M.dtype_on(model, cluster)
  local rates = cluster.dtype
  if rates and model.dtype and model.dtype ~= rates then
    errors.user(("%s.dtype: '%s' is not allowed on %s, whose rates were found in %s"):format(
      model.path, model.dtype, cluster.name, rates), model.at, model.path .. ".dtype")
  end
  return rates or "f16"
end

--- Specification for simulation on a cluster. ends: as in schema.collector, or nil.
function M.cluster_spec(model, cluster, optimizer, ends)
  if ends then
    model, cluster = model_lib.at_ends(model, ends), cluster_lib.at_ends(cluster, ends)
  end
  local resolved, gate = model_lib.resolve(model, cluster.devices, M.dtype_on(model, cluster))
  return { model = resolved, gate = gate, routing = routing_of(model),
    optimizer = optimizer, ranks = cluster.devices,
    cluster = cluster_lib.plain(cluster), fill = model_lib.fill(model, resolved),
    cost = { kind = "roofline" }, element_bytes = 0 }
end

--- The specification as it is executed in `precision`, whatever the model says of its types: bf16
--- stores activations in 2 bytes and all else in 4, f32 and f64 store every number in as many.
function M.executed_in(precision, spec)
  local bf16 = precision == "bf16"
  return schema.merged(spec, {
    model = schema.merged(spec.model, { dtype = bf16 and "bf16" or "f32" }),
    element_bytes = bf16 and 0 or precision == "f64" and 8 or 4 })
end

--- Specification for ranks of the executor "cpu" or "cuda"; link may be nil (the ranks' memory is
--- the wire). The rates stand for no machine: they matter only where no op is profiled, and there
--- no time is reported.
function M.real_spec(executor, model, ranks, link, optimizer, precision)
  local resolved, gate = model_lib.resolve(model, ranks, "f32")
  local wire = link or { bytes_per_s = 1e12, latency_us = 0 }
  local per_node = wire.devices_per_node or 1
  if ranks % per_node ~= 0 then
    errors.user(("link.devices_per_node: %d does not divide %d ranks"):format(per_node, ranks),
      model.at)
  end
  return M.executed_in(precision, { model = resolved, gate = gate, routing = routing_of(model),
    optimizer = optimizer, ranks = ranks,
    cluster = { name = executor, nodes = ranks / per_node, devices_per_node = per_node,
      nics_per_node = 1,
      device = { name = executor, gemm_flops_per_s = 1e11, vector_flops_per_s = 1e10,
        memory_bytes_per_s = 1e10, launch_us = 0, memory_bytes = 0 },
      intra = wire.intra or wire, nic = wire, a2a_base_us = 0, a2a_per_peer_us = 0,
      share = wire.share, sharing_efficiency = wire.sharing_efficiency },
    fill = model_lib.fill(model, resolved),
    cost = { kind = "profile", device = executor, precision = precision, cache = core.args.cache,
      link = link ~= nil } })
end

local defs = {}  -- of built-in passes, by name
for _, row in ipairs(core.table "passes") do defs[row.name] = row end

-- What a stage reads of the cost model: "nothing", "rates" or "times".
local function reads_of(stage)
  if stage.apply then return "times" end  -- a recipe's own may ask for anything
  if stage.placement then return "rates" end
  local def = defs[stage.name]
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

--- Whether the plan depends on how long ops take: where the best of some is taken, a stage reads
--- times, or experts are packed. alternatives: of system.expand().
function M.reads_times(alternatives)
  return #alternatives > 1 or alternatives[1][1].packing ~= nil
    or any_reads(alternatives[1][1].stages, "times")
end

--- Whether a placement policy plans with rates, which are fitted to how long ops take.
function M.reads_rates(alternatives) return any_reads(alternatives[1][1].stages, "rates") end

--- Whether the system places experts.
function M.places(system)
  for _, stage in ipairs(system_lib.expand(system)[1][1].stages) do
    if stage.kind == "placement" then return true end
  end
  return false
end

--- Steps that are simulated where experts are placed and nothing else is said: the first one is
--- without a placement that is made from the step before.
M.PLACED_STEPS = 8

--- One plan: of a candidate of system.expand(). Errors stand at the line of `at`.
function M.plan_of(spec, candidate, at)
  spec.system = candidate
  return errors.call(at, core.plan, spec)
end

local function gib(bytes) return ("%.1f GiB"):format(bytes / 2 ^ 30) end

-- A candidate's plan, simulated: { plan, sim, candidate, packing, oom }. What it took is noted in
-- `tried`.
local function try(spec, candidate, at, tried)
  local seen
  if candidate.packing then
    local n
    n, seen = packing.choose(spec, candidate.packing,
      function(packed) return M.plan_of(packed, candidate, at) end, at)
    spec = packing.packed(spec, n)
  end
  local plan = M.plan_of(spec, candidate, at)
  local sim = errors.call(at, plan.simulate, plan, spec.simulate)
  local memory = spec.cluster.device.memory_bytes
  local oom = memory > 0 and sim.peak_bytes > memory or nil
  tried[#tried + 1] = { choice = candidate.choice, iteration_ms = sim.iteration_ms,
    peak_bytes = sim.peak_bytes, oom = oom,
    why = oom and ("%s do not fit in %s"):format(gib(sim.peak_bytes), gib(memory)) or nil }
  return { plan = plan, sim = sim, candidate = candidate, packing = seen, oom = oom }
end

-- The first candidate that fits in memory; the last one where none does.
local function first_that_fits(spec, candidates, at, tried)
  local made
  for _, candidate in ipairs(candidates) do
    made = try(spec, candidate, at, tried)
    if not made.oom then break end
  end
  return made
end

local function better(a, b)
  if a.oom ~= b.oom then return b.oom end
  return a.sim.iteration_ms < b.sim.iteration_ms
end

--- Plans and simulates what the system may become and keeps the best: of those that fit in memory
--- the fastest, where none does the fastest of all. spec.simulate: what plan:simulate of the core
--- takes, or nil. Returns { plan, sim = its simulation, whose `timelines` the core's trace, spans
--- and explain take, candidate, packing = what its controller saw or nil, oom = true or nil,
--- tried = { { choice, iteration_ms, peak_bytes, oom, why } } }.
function M.plan(spec, system)
  local best
  local tried = core.array {}
  for _, candidates in ipairs(system_lib.expand(system)) do
    local made = first_that_fits(spec, candidates, system.at, tried)
    if not best or better(made, best) then best = made end
  end
  best.tried = tried
  return best
end

return M
