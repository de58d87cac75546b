-- moe.plan{...}: the plan of a step, outside an experiment, and what can be asked of it.
local core = require "moe.core"
local errors = require "moe.base.errors"
local explain = require "moe.run.explain"
local grid_lib = require "moe.spec.grid"
local number_bytes = require "moe.results.number_bytes"
local rates = require "moe.results.rates"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local settings = require "moe.run.settings"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"
local train = require "moe.run.train"
local turns = require "moe.run.turns"

local M = {}

M.heads = nil  -- or a list that gets what a table's head says of each plan (moe.results.judge)

M.PLAN = {
  model = { type = "model", required = true, doc = "moe.model" },
  cluster = { type = "cluster", required = true, doc = "moe.cluster" },
  system = { type = "system", required = true, doc = "moe.system" },
  optimizer = target.OPTIMIZER_FIELD,
  grid = grid_lib.FIELD,
  edits = { type = train.EDITS,
    doc = "changes of the graph, as for the executor cuda; default: none" },
  detail = { type = "string", enum = { "ops", "turns" }, default = "ops",
    doc = "turns: the step is composed of the turns of fewer micro-batches, which takes a small "
      .. "part of the time; what is returned has the methods of moe.ComposedPlan alone" },
}

local Composed = schema.methods("composed plan", "composed",
  "a step of many micro-batches that is composed of turns, from moe.plan with detail = 'turns'", {
    { "choice", "string?", "the option or system that moe.best, moe.fallback or `of` took" },
    { "simulate", "(): moe.ComposedStep", "the composed step" },
    { "turns", "(rank?: integer): string",
      "what a pipeline rank does, as cells such as 0F3 (stage, kind, micro-batch, from 0)" },
  })

schema.record("composed step", "sim", "a step that is composed of turns", {
  { "iteration_ms", "number", "time of the step" },
  { "idle_ms", "number[]", "of each pipeline rank, the part of the step in which it computes "
    .. "nothing" },
  { "composed_of", "integer", "micro-batches of the simulated step whose turns these are" },
  { "peak_bytes", "integer?", "planned peak memory of a device; absent where the schedule holds "
    .. "more activations in this step than in the simulated one" },
  { "peak_bytes_by_rank", "integer[]?", "the same of each pipeline rank" },
  { "oom", "boolean?", "true if peak_bytes are more than a device of the cluster has" },
  { "misfit", "string?", "if oom: the reason" }, rates.ROWS,
})

local Plan = schema.methods("plan", "plan", "the plan of a step, from moe.plan", {
  { "choice", "string?", "the option or system that moe.best, moe.fallback or `of` took" },
  { "order", "(lane: string, t?: moe.RankFields): string[]",
    "names of the ops of a lane, in order; with several pipeline ranks of one of them" },
  { "turns", "(rank?: integer): string",
    "what a pipeline rank does, as cells such as 0F3 (stage, kind, micro-batch, from 0)" },
  { "text", "(t?: moe.RankFields): string", "the graph as text, below comments on the bytes of its "
    .. "numbers and on memory that is short; default: all pipeline ranks in one graph" },
  { "info", "(): moe.PlanInfo", "properties of the plan, and how it was made" },
  { "memory", "(t?: moe.RankFields): moe.PlanMemory",
    "planned bytes per device; default: of the pipeline rank with the highest peak" },
  { "simulate", "(t?: moe.SimulateFields): moe.SimResult",
    "without t, the simulation from when the plan was made; with t, a new simulation, and "
      .. "`moebench check` ends at this call" },
  { "explain", "(t?: moe.ExplainFields): moe.Explanation",
    "why communication is exposed, and what would help" },
  { "overlap", "(): moe.Overlap",
    "how much of the all-to-alls' time weight gradients can hide, from the graph alone" },
  { "spans", "(t?: moe.SpansFields): moe.Span[]", "the simulated timeline, ordered by begin" },
  { "micro_ops", "(): { a2a_ms: number, ffn_ms: number, num: integer }",
    "forward times that Lina's packing compares, means over MoE layers and their parts, with each "
      .. "op alone: the all-to-all to the experts, the experts; num: number of parts" },
  { "run", '(executor: "cpu"|"cuda", t?: moe.RunFields): moe.TrainResult',
    "runs the plan on real ranks, one per device of its cluster" },
})

schema.record("peak part", "part", "a part of the planned peak memory of a device", {
  { "what", "string", "what the bytes are for, such as parameters or activations" },
  { "bytes", "integer", "number of bytes" },
})

local MEMORY = {
  { "peak_bytes", "integer", "peak memory of a device" },
  { "liveness_bytes", "integer", "bytes that are in use at the peak" },
  { "arena_bytes", "integer", "size of the block that holds activations and gradients" },
  { "persistent_bytes", "integer", "bytes of parameters and optimizer states" },
  { "holders", "string[]", "the tensors that hold most bytes at the peak, largest first" },
  { "peak_parts", "moe.PeakPart[]", "what the peak consists of, largest first" },
}
schema.record("plan memory", "memory", "planned bytes of a device", MEMORY)

schema.record("exchange use", "use", "the first exchange of a plan's dispatcher to the experts or "
  .. "back, by expected choices; bytes are those that the ranks of a node send", {
  { "op", "string", "its name" }, { "us", "number", "its time alone" },
  { "dtype", "string", "element type of rows on the wire: fp8, bf16 or fp32" },
  { "start_us", "number", "the part before any row" },
  { "nic_us", "number", "the time of the fullest NIC" },
  { "nvlink_us", "number", "the time of the fullest NVLink port" },
  { "sm_us", "number", "the time in which its SMs copy rows" },
  { "logical_bytes", "number", "what published bandwidths count: rows of the first hop, with those "
    .. "that stay in the node" },
  { "nic_bytes", "number", "what crosses the node's NICs" },
  { "nvlink_bytes", "number", "what crosses NVLink" },
})
schema.record("dispatcher use", "d", "what a plan's dispatcher takes and moves", {
  { "name", "string", "its name" }, { "sms", "integer", "SMs that it takes" },
  { "slower", "number", "how much longer products take beside it" },
  { "host_sync", "boolean", "whether the CPU waits for counts" },
  { "dispatch", "moe.ExchangeUse?", "to the experts" },
  { "combine", "moe.ExchangeUse?", "back" },
})

schema.record("plan info", "info", "properties of a plan, and how it was made", {
  { "num_ops", "integer", "number of ops of a rank, or of one of each pipeline rank" },
  { "fullest_rank", "integer", "the pipeline rank with the highest peak, whose bytes these are" },
  { "peak_bytes_by_rank", "integer[]?", "peak memory of a device of each pipeline rank" },
  { "hash", "string", "hash of graph, orders and buffers" },
  { "lanes", "string[]", "names of the lanes" }, { "plan_ms", "number", "time to make the plan" },
  { "stages", "{ name: string, changed: boolean, changes: table, ms: number }[]",
    "what each pass changed, and how long it took" },
  { "without_effect", "{ stage: string, reason: string }[]",
    "stages that did not do what their options request, and why" },
  { "log", "moe.Decision[]", "decisions of the passes" },
  { "cost", "string", "the source of the ops' times" },
  { "fill", "number", "expected share of capacity slots that hold a token" },
  { "padded_rows", "string", "of a model without capacity: what the plan does with all slots, and "
    .. "not only with the share `fill` in use: send, compute, send and compute, or nothing" },
  { "assumed_routing", "moe.AssumedRouting", "what the plan assumes of the routing" },
  { "dispatcher", "moe.DispatcherUse?", "of a plan with one" },
  { "num_profiled", "integer", "number of ops that were measured" },
  { "num_disturbed", "integer", "number of op times that rest on measurements on a disturbed "
    .. "machine" },
  results.REHEARSAL, MEMORY,
})

schema.record("overlap", "overlap",
  "how much of the all-to-alls' time weight gradients (dW) can hide, from the graph alone", {
    { "num_a2a", "integer", "number of all-to-alls of the backward" },
    { "num_dw", "integer", "number of weight gradients" },
    { "a2a_ms", "number", "sum of the times of the all-to-alls" },
    { "dw_ms", "number", "sum of the times of the weight gradients" },
    { "greedy_ms", "number", "time hidden under Lancet's assignment of dW to all-to-alls" },
    { "bound_ms", "number", "upper bound of the time that any assignment hides" },
    { "exact_ms", "number?", "time hidden by the best assignment; only if num_dw is at most 24 and "
      .. "the search takes at most 10^6 branches" },
  })

schema.record("span", "span", "the time of one op on a lane", {
  { "op", "string", "name of the op" }, { "kind", "string", "one of `moebench list ops`" },
  { "rank", "integer", "number of the rank, from 1" },
  { "lane", "string", "the lane that ran the op" },
  { "chunk", "integer", "number of the chunk of a transfer, from 1" },
  { "bytes", "integer", "bytes that the rank sends to other ranks" },
  { "post_ms", "number", "when the op was ready to begin" },
  { "begin_ms", "number", "when the op began" }, { "end_ms", "number", "when the op ended" },
})

schema.record("sim result", "sim",
  "a simulation: the means of the steps' metrics, and more", {
    { "statistic", "string", "mean: of which statistic over the steps the times are" },
    { "oom", "boolean?", "true if no device of the cluster can run the plan: its peak is above the "
      .. "device's memory, or a device has no room for the rows of a step" },
    { "misfit", "string?", "if oom: the reason, with the parts of the peak" },
    { "sim_ms", "number", "time to simulate" },
    { "ops_alone", "table?",
      "the metrics predicted from ops that run alone, before the rehearsal" },
    { "placements", "moe.LayerPlacement[][]?",
      "indexed by step and layer, if the model has a placement policy" },
    rates.ROWS, results.SIMULATED }, schema.declared "metrics")

schema.record("layer placement", "placement", "where the experts of a layer are in a step", {
  { "owners", "integer[]", "for each expert the device that owns it" },
  { "replicas", "{ expert: integer, devices: integer[] }[]",
    "residents on devices other than the expert's owner" },
  { "shadows", "{ expert: integer, devices: integer[] }[]",
    "copies that exist for this step only" },
  results.PLACEMENT,
})

M.RANK = {
  rank = { type = "integer", lo = 1, hi = 1e5, doc = "number of a pipeline rank, from 1" },
}

-- Returns the pipeline rank that t asks for, or nil.
local function rank_of(self, t, what, at)
  local rank = schema.check(M.RANK, t or {}, what, at).rank
  local most = self.spec.model.pp
  if rank and rank > most then
    errors.user(("%s.rank: %d is not allowed; the plan has %d pipeline rank%s"):format(what, rank,
      most, most == 1 and "" or "s"), at)
  end
  return rank
end

function Plan:order(lane, t)
  local core_plan, at = self.core, errors.here()
  local rank = rank_of(self, t, "order", at)
  if rank and self.spec.model.pp > 1 then lane = ("%s %d"):format(lane, rank) end
  return errors.call(at, core_plan.order, core_plan, lane)
end
function Composed:simulate() return self.sim end
local function turns_of(self, rank)
  rank = rank_of(self, { rank = rank }, "turns", errors.here()) or 1
  return self.pipeline and self.pipeline.rows[rank]
    or target.in_order(self.spec.model.micro_batches)
end
Composed.turns, Plan.turns = turns_of, turns_of
function Plan:text(t)
  local spec, sim = self.spec, self.sim
  local head = { number_bytes.line(spec.model.dtype, spec.optimizer.name, self.candidate.stages,
    spec.model.dtypes), unpack(number_bytes.stand_ins(spec.model)) }
  if sim.oom then head[#head + 1] = "OOM: " .. sim.misfit end
  return ("# %s\n%s"):format(table.concat(head, "\n# "),
    self.core:text(rank_of(self, t, "text", errors.here())))
end
function Plan:info() return self.core:info() end

M.SIMULATE = schema.changed(schema.picked(schema.declared "run", { "steps", "first_step" }), {
  steps = { hi = 1e6, required = true,
    doc = "number of steps to simulate; steps differ only under a routing model" },
  first_step = { lo = 1, hi = 1e9, default = 1,
    doc = "step of the routing with which the simulation begins" },
})

function Plan:simulate(t)
  local core_plan = self.core
  if t == nil then return self.sim end
  local at = errors.here()
  local c = schema.check(M.SIMULATE, t, "simulate", at)
  errors.stop_in "check"
  if c.first_step == 1 then self.asked = math.max(self.asked, c.steps) end
  local sim = errors.call(at, core_plan.simulate, core_plan,
    { steps = c.steps, first_step = c.first_step - 1 })
  sim.timelines = nil
  return target.mark(schema.merged(sim, rates.of(self.model, self.spec, self.cluster,
    sim.iteration_ms)), self.spec, core_plan)
end

function Plan:overlap()
  local core_plan = self.core
  return errors.call(errors.here(), core_plan.overlap, core_plan)
end

M.EXPLAIN = {
  step = { type = "integer", lo = 1, hi = 1e6, default = 1,
    doc = "the step; of a simulation, steps differ only under a routing model" },
}

M.SPANS = schema.merged(M.EXPLAIN, {
  all_ranks = { type = "boolean", default = false,
    doc = "whether to return the spans of all ranks, and not only of the first; without a routing "
      .. "model all ranks do the same" },
})

-- Returns timelines that include the simulated step `step`. For a step beyond those that the plan
-- keeps, it simulates again and keeps the result: up to the largest step that was ever requested,
-- and at least twice as many steps as before.
local function simulation_with(self, step, at)
  if step > self.held.steps then
    local steps = math.max(step, self.asked, 2 * self.held.steps)
    self.held = { steps = steps, timelines = errors.call(at, self.core.simulate, self.core,
      { steps = steps, keep = "all" }).timelines }
  end
  return self.held.timelines
end

function Plan:spans(t)
  local core_plan = self.core
  local at = errors.here()
  local c = schema.check(M.SPANS, t or {}, "spans", at)
  local step = self.spec.routing and c.step or 1  -- without a routing model all steps are equal
  return errors.call(at, core_plan.spans, core_plan,
    { timelines = simulation_with(self, step, at), step = step, all_ranks = c.all_ranks })
end

function Plan:micro_ops()
  local core_plan = self.core
  return errors.call(errors.here(), core_plan.micro_ops, core_plan)
end

function Plan:memory(t)
  local rank, out = rank_of(self, t, "memory", errors.here()), {}
  local info = rank and self.core:memory_of(rank) or self.core:info()
  for _, row in ipairs(MEMORY) do out[row[1]] = info[row[1]] end
  return out
end

function Plan:explain(t)
  local at = errors.here()
  local c = schema.check(M.EXPLAIN, t or {}, "explain", at)
  local step = self.spec.routing and c.step or 1  -- without a routing model all steps are equal
  local e = explain.of(self.core, at, { timelines = simulation_with(self, step, at) }, step,
    self.sim.pipeline)
  if self.sim.oom then e.text = ("OOM: %s\n%s"):format(self.sim.misfit, e.text) end
  return e
end

function Plan:run(executor, t)
  local at = errors.here()
  schema.field({ type = "string", enum = train.EXECUTORS, required = true }, executor,
    "moe.plan.run", at)
  train.check_executor(executor, "moe.plan.run", at)
  local c = schema.check(train.RUN, t or {}, "moe.plan.run", at)
  local spec = target.executed_in(c.precision, schema.merged(self.spec, {
    own_attention = train.own_attention(executor, c, "moe.plan.run", at) }))
  -- In place of the simulated plan's edits.
  spec.edits = train.edits(executor, c, "moe.plan.run", at)
  local options = train.run_options(executor, c, spec, "moe.plan.run", at)
  train.claim_outputs(c, "moe.plan.run", at)
  local plan = target.plan_of(spec, self.candidate, at)
  errors.stop_in "check"
  local result = train.good(train.started("running", plan, options, spec.ranks, at), at)
  function result.explain(of, step)
    return explain.of(plan, errors.here(), of, step, of.pipeline)
  end
  function result.spans(of, fields)
    local here = errors.here()
    local asked = schema.check(M.SPANS, fields or {}, "spans", here)
    return errors.call(here, plan.spans, plan,
      { timelines = of.timelines, step = asked.step, all_ranks = asked.all_ranks })
  end
  return result
end

M.plan = schema.taking(M.PLAN, "moe.plan", function(c, at)
  errors.stop_in "policies"
  c = settings.call(c, M.PLAN, "moe.plan", at)
  local spec = target.cluster_spec(c.model, system_lib.cluster_of(c.system, c.cluster),
    c.optimizer)
  spec.edits = c.edits
  if target.places(c.system) then spec.simulate = { steps = target.PLACED_STEPS } end
  spec.composed = c.detail == "turns" and turns.of(spec, c.system, at) or nil
  local made = target.plan(spec, c.system)
  local held = { steps = 1, timelines = made.sim.timelines }  -- timelines of steps 1 to `steps`
  made.sim.timelines = nil
  local cluster = system_lib.cluster_of(c.system, c.cluster)
  made.sim = schema.merged(made.sim, rates.of(c.model, spec, cluster, made.sim.iteration_ms))
  if made.oom then core.warn("moe.plan: OOM: " .. made.sim.misfit) end
  if M.heads then
    M.heads[#M.heads + 1] = { system = c.system.name, parameters = spec.model,
      optimizer = spec.optimizer, stack = spec.cluster.stack and spec.cluster.stack.name,
      assumed_routing = made.plan:info().assumed_routing, composed_of = made.sim.composed_of }
  end
  if spec.composed then
    return setmetatable({ sim = made.sim, pipeline = made.pipeline, choice = made.candidate.choice,
      spec = spec }, Composed)
  end
  return setmetatable({ core = made.plan, sim = made.sim, held = held, asked = 1,
    candidate = made.candidate, pipeline = made.pipeline, choice = made.candidate.choice,
    spec = spec, model = c.model, cluster = cluster }, Plan)
end)

return M
