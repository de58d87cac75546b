-- Results: a list of runs with methods that select and combine them (`moebench doc results`). A run
-- is a plain table, as in results.json. best and ratio ignore runs that are out of memory
-- (run.oom), since no device could run their plans. get, map and table include them;
-- where { oom = false } removes them.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local errors = require "moe.base.errors"
local journal = require "moe.run.journal"
local paired = require "moe.results.paired"
local rates = require "moe.results.rates"
local result_shape = require "moe.results.result_shape"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

M.SCHEMA = 1

--- Fields of plans and simulations that runs have too: { name, type, doc } each. Of a simulation:
M.SIMULATED = {
  { "samples_ms", "number[]", "time of each step" },
  { "forward_ms", "number", "time until the forward's last op ends" },
  { "median_ms", "number", "median of the steps' times, whatever `statistic` is" },
  { "load_imbalance", "number?", "under a routing: rows of each layer's busiest rank divided by "
    .. "the mean over ranks, mean over the simulated steps" },
  { "lower_bound_ms", "number", "a time below which no schedule of the ops is, the mean over the "
    .. "simulated steps: of each the larger of its busiest_lane_ms and critical_path_ms" },
  { "busiest_lane_ms", "number", "sum of the times of the busiest lane's ops" },
  { "critical_path_ms", "number", "longest path of dependent ops" },
  { "alone_ms", "table<string, number>",
    "times of a rank's ops, each alone: collectives by kind, what runs again under recompute, "
    .. "other ops by segment" },
  { "measured_share", "number",
    "share of the ops' time that measurements around their sizes give" },
  { "extrapolated_share", "number", "share of the ops' time by measurements of other sizes" },
  { "peak_bytes", "integer", "planned peak memory of a device" },
  { "liveness_bytes", "integer", "bytes of a device that are in use at the peak" },
  { "peak_bytes_by_rank", "integer[]?", "planned peak memory of a device of each pipeline rank, if "
    .. "there are several" },
  { "pipeline", "moe.PipelineRank[]?", "what each pipeline rank does in the first simulated or "
    .. "last executed step, if there are several: its compute, and its idle time by cause; the sum "
    .. "is that step" },
}
schema.record("turn time", "turn", "a turn of a pipeline rank", {
  { "text", "string", "stage, kind and micro-batch, from 0, such as 2F5" },
  { "begin_ms", "number", "when its first compute op begins" },
  { "end_ms", "number", "when its last compute op ends" },
})
schema.record("pipeline rank", "rank", "what a pipeline rank does in a step, which is their sum",
  { { "turns", "moe.TurnTime[]?", "its turns in their order; absent from results of many" } },
  schema.declared "bubbles")
--- Of the rehearsal of a plan.
M.REHEARSAL = {
  { "profile_ms", "number", "time to measure ops" },
  { "rehearsal_ms", "number", "time of the rehearsal" },
  { "rehearsal_others", "number", "share of the cores that others took during the rehearsal" },
  { "rehearsal_spread", "number", "distance between the quartiles of the rehearsed steps' times, "
    .. "divided by their median" },
  { "speed_spread", "number", "how much the time of the reference kernel on a core varied just "
    .. "before the rehearsal: standard deviation divided by median" },
}
--- Of the placement of a layer's experts in a step.
M.PLACEMENT = {
  { "layer", "integer", "number of the block" },
  { "micro_batch", "integer?", "of a placement that each micro-batch of a step makes for itself: "
    .. "the number of the micro-batch" },
  { "moves", "integer", "residents that were moved to a device since the step before" },
  { "copies", "integer", "number of copies of experts for this step" },
  { "max_load", "integer", "rows of the busiest device" },
  { "mean_load", "number", "mean number of rows per device" },
  { "max_load_plain", "integer", "rows of the busiest device under plain expert parallelism" },
  { "log", "string[]?", "log lines of the policy" },
}

--- Fields of a run that the engine does not declare: { name, type, doc } each.
local ROWS = {
  { "experiment", "string", "name of the experiment" },
  { "entry", "integer", "number of the entry in the experiment's run" },
  { "system", "string", "name of the system" }, { "model", "string", "name of the model" },
  { "cluster", "string", "name of the cluster" },
  { "cluster_parameters", "moe.ClusterFields", "the cluster's fields as the plan used them" },
  { "devices", "integer", "number of devices" },
  { "executor", '"simulate"|"cpu"|"cuda"', "the executor that simulated or ran the plan" },
  { "device_name", "string?", "cuda: the GPU and versions of its software" },
  { "point", "table<string, any>?", "coordinates of a simulated run" },
  { "points", "table<string, any>[]?",
    "coordinates of all points for which an executed run is valid" },
  { "parameters", "moe.ModelFields", "the model's fields as the plan used them" },
  { "gate_options", "table?", "options of a gate policy" },
  { "record", "string?", "name of the file with the recorded routing" },
  { "routing", "string?", "the workload or trace that tokens follow, with options and seed" },
  { "optimizer", "moe.Optimizer", "the optimizer's fields" },
  { "stages", "{ name: string, kind: string, options: table }[]", "the passes with their options" },
  { "without_effect", "{ stage: string, reason: string }[]?",
    "stages that did not do what their options request: stage and reason of each" },
  { "all_reduce", "moe.AllReduce", "the all-reduce policy" },
  { "stack", "string?", "name of the software whose kernels were simulated, if any" },
  { "choice", "string?", "the option or system that moe.best, moe.fallback or `of` took" },
  { "candidates", "table[]?",
    "what that choice was made from: label, time and memory of each candidate, or the reason why "
    .. "it could not be planned" },
  { "degrees", "integer[]?", "the degrees that pipemoe chose, one per MoE layer" },
  { "packing", "moe.Packing?", "what Lina's packing controller chose and measured" },
  { "fill", "number", "expected share of capacity slots that hold a token" },
  { "padded_rows", "string?", "as in plan:info(), if not empty" },
  { "assumed_routing", "moe.AssumedRouting", "what simulations and predictions assume of the "
    .. "routing, and the sample of the gate that gives it" },
  { "assumed", "table<string, moe.AssumedFields>?", "the assumed constants, indexed by path" },
  { "statistic", '"mean"|"median"?', "of which statistic over the steps iteration_ms and the "
    .. "other times are: the mean of simulated steps; of executed steps, all but the first, the "
    .. "median, or the mean where a system of the case places experts, since few steps move them" },
  { "dispatcher", "moe.DispatcherUse?", "of a plan with one: links, SMs, waits, bytes per node" },
  { "overlap", "moe.Overlap?", "time of all-to-alls that weight gradients can hide" },
  { "log", "string[]", "what the passes did; of schedule passes only lines on the whole step" },
  { "oom", "boolean?",
    "true if the peak is above the device's memory, or if a device has no room for the rows of a "
    .. "step (no_room), so that the run is not possible" },
  { "no_room", "string?", "which MoE layer sends which device more rows than model.rows_bound" },
  { "holders", "string[]?", "the tensors that hold most bytes at the peak, if oom" },
  { "peak_parts", "moe.PeakPart[]?", "what the peak consists of, largest first, if oom" },
  { "memory_bytes", "integer?", "memory of a device, if it is known" },
  { "plan_ms", "number", "time to make the plan" },
  { "plan_hash", "string", "hash of graph, orders and buffers" },
  { "num_ops", "integer", "number of ops of a rank" },
  { "simulate_ms", "number?", "time to simulate the plan" },
  { "init", "string?", "how parameters are initialized" },
  { "parameters_from", "string?", "the file that the parameters were read from in place of it" },
  { "resume_from", "string?", "the checkpoint that the run went on from; step 1 of its results is "
    .. "the first step after it" },
  { "tokens", "string?", "text or reference" }, { "text", "string?", "path of the text" },
  { "attention", "string?", "the kernels of fused attention, if the recipe states them" },
  { "edits", "moe.Edits?", "changes of the plan's graph for a device; absent if there are none" },
  { "comm_priority", "string?", "priority of the transfers' streams, if the recipe states it" },
  { "link", "moe.Link?", "the emulated link" },
  { "prediction", "moe.Prediction?", "prediction of an executed run, frozen before the run" },
  { "drops", "integer[]?", "number of drops in each step" },
  { "executed_peak_bytes", "integer?",
    "peak memory of a rank in the run; absent if the run failed" },
  { "launches_per_step", "integer?", "kernels that a step launched on the device, for all ranks on "
    .. "it; absent if no step was recorded there" },
  { "trace", "string?", "name of the trace file" },
  { "placements", "moe.RunPlacement[][]?", "placement of experts, indexed by step and layer" },
  { "planner_error", "table<string, moe.PlannerError>?", "errors of Pro-Prophet's performance "
    .. "model against the executed spans, indexed by op (a2a, experts, trans, agg)" },
  { "processes", "integer?", "number of started processes, one per rank; absent if ranks are "
    .. "threads" },
  { "ranks", "moe.RankStats[]?", "one entry per rank: medians over steps of its statistics" },
  { "reference_ms", "number?", "time of a fixed piece of work during the run, median over steps; a "
    .. "machine on which it takes longer is slower" },
  { "others", "number?", "share of all cores' time during the run that other processes used or the "
    .. "hypervisor took" },
  { "crowded", "string?", "that there are more ranks than cores and no pace, so that the run's "
    .. "times say little" },
  { "disturbed", "string?", "what disturbed the run, so that its times say little" },
  { "turn_steps", "integer?", "executed in turns with the other systems of its case, of so many "
    .. "steps each (the first turn: one step)" },
  { "one_by_one", "string?", "why the systems of the case ran one after the other" },
  { "unigram_entropy", "number?", "unigram entropy of the text, in nats" },
}
for _, row in ipairs(M.SIMULATED) do
  local name, kind, doc = unpack(row)
  local maybe = name == "forward_ms" or name == "median_ms"  -- executed runs have not all
  ROWS[#ROWS + 1] = { name, maybe and kind .. "?" or kind, doc }
end
for _, row in ipairs(rates.ROWS) do ROWS[#ROWS + 1] = row end
schema.record("assumed routing", "run.assumed_routing", "what simulations and predictions assume "
  .. "of the routing", {
    { "choices_of", "string?", "the workload or trace whose choices replace the gate" },
    { "gate", "string?", "the gate, if it chooses" },
    { "scores", "string?", "on which scores it ran: even, or those of a workload; absent if the "
      .. "recipe gives the fill" },
    { "sources", "integer?", "number of ranks whose choices were counted" },
    { "tokens", "integer?", "number of tokens of each of these ranks" },
    { "choices", "number?", "choices per token, dropped ones included; of a workload those of the "
      .. "last layer in the first step" },
    { "dropped", "number?", "share of these choices that found no slot" },
  })
local METRICS = schema.declared "metrics"
local declared = schema.merged(METRICS, {})  -- the fields of a run that the engine declares
--- Names of the fields that a record copies from the entry of `run`, and from the result of a run.
M.OF_OPTIONS = { "steps", "check_finite", "precision", "nccl", "pace" }
M.OF_RESULT = { "provenance", "losses", "digest", "eval_loss", "metrics", "stop_reason", "stopped" }
for name, names in pairs { run = M.OF_OPTIONS, result = M.OF_RESULT } do
  for key, field in pairs(schema.picked(schema.declared(name), names)) do
    declared[key] = schema.merged(field, { maybe = key ~= "provenance" })
  end
end
declared.metrics = schema.merged(declared.metrics, { as = "moe.Metrics[]" })
schema.record("metrics", "metrics", "times of a step", {}, METRICS)
schema.record("run", "run", "a run, as in results.json and from R:each()", ROWS, declared).also =
  "results"

M.FIELDS = schema.merged(declared, {})
for _, row in ipairs(ROWS) do M.FIELDS[row[1]] = true end

schema.record("prediction", "run.prediction", "the prediction of an executed run, made before it", {
  { "frozen", "true", "always true: the prediction was written to disk before the run began" },
  { "basis", "string", "the source of the ops' times" },
  { "ops_alone", "table<string, number>?",
    "the metrics predicted from ops that run alone, before the rehearsal" },
  { "disturbed_ops", "integer?", "number of op times that were measured while the machine was "
    .. "disturbed; absent if there are none" },
  { "slower", "number?", "by what factor compute, with the wait for a slower rank, took longer "
    .. "during the run than in the rehearsal before the prediction, in equal steps of plain expert "
    .. "parallelism" },
  { "same_speed_ms", "number?", "iteration_ms predicted for the speed that the machine had, by "
    .. "kind of op, in the rehearsal's steps that ran in turns with the run" },
  { "same_routing_ms", "number?", "the same for the routing of the run's first 64 steps; absent if "
    .. "the routing was known before the run" },
  { "lo_ms", "number?", "lower end of the interval of iteration_ms, which 9 of 10 runs at the same "
    .. "speed are expected to be in; absent without a rehearsal, and if it would reach beyond a "
    .. "tenth or ten times of iteration_ms" },
  { "hi_ms", "number?", "upper end" },
  { "inside", "boolean?", "whether `error` is within the interval; with same_routing_ms, within "
    .. "one that does not count how much the routing may vary" },
  { "steady_ms", "number?", "mean of the run's steps between the quartiles (`statistic` mean: of "
    .. "all), each as it would be at the run's own speed: steps of the rehearsal beside it say "
    .. "how slow the machine was in each" },
  { "error", "number", "steady_ms divided by same_routing_ms, or by same_speed_ms where that is "
    .. "absent, minus 1; without both as frozen_error" },
  { "frozen_error", "number", "the run's iteration_ms divided by the predicted one, minus 1" },
  M.REHEARSAL }, METRICS)

schema.record("planner error", "error",
  "error of Pro-Prophet's performance model against a run's spans", {
  { "error", "number?", "mean of |estimated - real| / real; nil if there are no samples" },
  { "num", "integer", "number of samples in `error`: those of all steps except the first" },
  { "samples", "{ step: integer[], layer: integer[], phase: string[], estimated_ms: number[], "
    .. "real_ms: number[] }", "all samples: entry i of each list belongs to sample i" },
})

schema.record("run placement", "placement", "where the experts of a layer were in a step", {
  { "replicas", "integer", "number of residents on devices other than the experts' owners" },
  M.PLACEMENT,
})

schema.record("results file", "results.json",
  "the file that a run of a recipe writes to its folder", {
  { "schema", "integer", "version of the file's format" },
  { "version", "string", "version of moebench" },
  { "date", "string", "when the run began, in UTC" },
  { "session", "string", "id of the process or job that wrote the file" },
  { "recipe", "{ name: string, path: string, hash: string }", "the recipe that was run" },
  { "machine", "{ cpu: string, cores: integer, kernel_set: string, git?: string }",
    "the machine on which the recipe ran" },
  { "seed", "integer", "the value of --seed" },
  { "lines", "integer", "number of lines of runs.jsonl, which has the same content line by line" },
  { "experiments", "{ name: string, title: string, over: table, params: table, set?: table, "
    .. "planned?: integer, simulations?: { done: integer, found: integer } }[]", "the experiments "
    .. "that were run, with the number of their runs, had they not been interrupted, and the "
    .. "numbers of simulations that were done and that were found in the cache" },
  { "runs", "moe.Run[]", "runs of all experiments" },
  { "claims", "moe.Verdict[]", "evaluated claims of all experiments" },
  { "searches", "moe.Search[]?", "what each moe.search found, with `seen`: time, memory and label "
    .. "of every mix" },
  { "sensitivities", "moe.Sensitivity[]?",
    "how numbers of the experiments move with the assumed constants" },
}).also = "results"

--- Returns the line that says that an experiment ended early, or nil if all its runs were done.
function M.incomplete(done, planned)
  return done < planned and ("Incomplete: %d of %d runs were done"):format(done, planned) or nil
end

--- Raises an error if the record has a field that is not in FIELDS; the error names that field.
function M.check_record(run)
  for key in pairs(run) do
    assert(M.FIELDS[key], ("'%s' is in a record but not in results.FIELDS"):format(key))
  end
end

local Results = schema.methods("results", "R",
  "runs, and questions about them, as moe.run and moe.results return it; R.runs is their list", {
  { "runs", "moe.Run[]", "the runs" },
  { "where", "(fields: table<string, any>): moe.Results",
    "runs whose field or coordinate equals the value, is in the list, or for which the function "
      .. "returns true; false also selects runs without the field" },
  { "each", "(): (fun(): moe.Run?)", "returns an iterator over the runs" },
  { "by", "(fields: string|string[]): (fun(): any, moe.Results)",
    "returns an iterator over each value, or list of values, and the results that have it" },
  { "get", "(field: string): moe.Values", "the values of the field, of the runs that have it" },
  { "map", "(f: fun(run: moe.Run): number?): moe.Values",
    "the values of f(run); runs for which it returns nil are omitted" },
  { "best", "(t: { [1]: string, among?: string[] }): moe.Results",
    "for each point the run with the smallest value of the field, among these systems" },
  { "ratio", "(t: { [1]: string, of: string, to: string|string[] }): moe.Values",
    "for each point the smallest value of the systems `to` divided by the value of the system "
      .. "`of`" },
  { "groups", "(key: fun(run: moe.Run): any): moe.Run[][]",
    "lists of the runs with equal key(run), in order of first appearance" },
  { "differences", "(): moe.Difference[]",
    "compares each two executed runs of a case that took turns" },
  { "table", "(t: { rows: string|string[], cols: string, cell: fun(run: moe.Run): string }): "
    .. "string",
    "a table as text, with a row and a column for each value of the fields" },
})

function M.new(runs) return setmetatable({ runs = runs }, Results) end

local function field(run, key)
  if run[key] ~= nil then return run[key] end
  return run.point and run.point[key]
end

-- Raises a user error unless the key is a field of runs or a coordinate of these runs' points;
-- returns it.
local function check_key(R, key, path, at)
  if type(key) ~= "string" then schema.refuse(path, key, "the name of a field", at) end
  if #R.runs == 0 or M.FIELDS[key] then return key end
  local names = schema.merged(M.FIELDS, {})
  for _, run in ipairs(R.runs) do
    for name in pairs(run.point or {}) do names[name] = true end
  end
  if not names[key] then schema.unknown(path, "field", key, schema.keys_of(names), at) end
  return key
end

local function fits(value, wanted)
  if type(wanted) == "function" then return wanted(value) end
  if type(wanted) ~= "table" then return value == wanted or wanted == false and value == nil end
  for _, one in ipairs(wanted) do
    if value == one then return true end
  end
  return false
end

function Results:where(t)
  local at = errors.here()
  if type(t) ~= "table" then
    schema.refuse("where", t, 'a table, for example { system = "raf" }', at)
  end
  for key in pairs(t) do check_key(self, key, "where", at) end
  local out = {}
  for _, run in ipairs(self.runs) do
    local all = true
    for key, wanted in pairs(t) do all = all and fits(field(run, key), wanted) end
    if all then out[#out + 1] = run end
  end
  return M.new(out)
end

function Results:each()
  local i = 0
  return function()
    i = i + 1
    return self.runs[i]
  end
end

function Results:map(f)
  if type(f) ~= "function" then schema.refuse("map", f, "a function of a run", errors.here()) end
  local out, runs = {}, {}
  for _, run in ipairs(self.runs) do
    local value = f(run)
    if value ~= nil then out[#out + 1], runs[#runs + 1] = value, run end
  end
  return values.new(out, runs)
end

function Results:get(key)
  check_key(self, key, "get", errors.here())
  return self:map(function(run) return field(run, key) end)
end

function Results:groups(key)
  local at = errors.here()
  if type(key) ~= "function" then schema.refuse("groups", key, "a function of a run", at) end
  return schema.grouped(self.runs, function(run)
    return errors.call(at, core.json_encode, key(run))
  end)
end

local CASE = { "experiment", "entry", "executor", "device_name", "processes", "cluster",
  "cluster_parameters", "devices", "point", "parameters", "gate_options", "routing", "optimizer",
  "fill", "edits", "link", "pace", "precision", "nccl", "comm_priority", "steps", "init",
  "parameters_from", "resume_from", "tokens", "text", "check_finite", "attention" }

--- Returns the fields that describe what was run, except for the system. They are equal for runs
--- that differ only in the system.
function M.case_of(run)
  local case = {}
  for _, name in ipairs(CASE) do case[name] = run[name] end
  return case
end

function Results:differences()
  local out = {}
  for _, group in ipairs(self:groups(M.case_of)) do
    for i, a in ipairs(group) do
      for j = i + 1, #group do out[#out + 1] = paired.difference(a, group[j]) end
    end
  end
  return out
end

function Results:by(keys)
  local at = errors.here()
  local names = type(keys) == "table" and keys or { keys }
  for _, key in ipairs(names) do check_key(self, key, "by", at) end
  local function values_of(run)
    local out = {}
    for i, key in ipairs(names) do
      out[i] = field(run, key)
      if out[i] == nil then out[i] = "-" end
    end
    return out
  end
  local groups, i = self:groups(values_of), 0
  return function()
    i = i + 1
    if not groups[i] then return nil end
    local key = values_of(groups[i][1])
    return type(keys) == "table" and key or key[1], M.new(groups[i])
  end
end

local function check_systems(R, what, names, at)
  local have = {}
  for _, run in ipairs(R.runs) do have[run.system] = true end
  for _, name in ipairs(names) do
    if next(have) and not have[name] then
      schema.unknown(what, "system", name, schema.keys_of(have), at)
    end
  end
end

-- Returns the run of a group with the smallest value of `key`, without runs that are out of memory;
-- among: the systems to choose from (nil: all).
local function least(group, key, among)
  local best
  for _, run in ipairs(group) do
    local value = (not among or fits(run.system, among)) and field(run, key)
    if value and type(value) ~= "number" then
      schema.refuse(key, value, "a field whose values are numbers", errors.here())
    end
    if value and not run.oom and (not best or value < field(best, key)) then best = run end
  end
  return best
end

function Results:best(t)
  local at = errors.here()
  local ok = type(t) == "table" and type(t[1]) == "string"
    and (t.among == nil or type(t.among) == "table")
  if not ok then
    errors.user('best: the argument has a wrong form; give { "field", among = { "system", ... } }',
      at)
  end
  check_key(self, t[1], "best", at)
  check_systems(self, "best", t.among or {}, at)
  local out = {}
  for _, group in ipairs(self:groups(M.case_of)) do out[#out + 1] = least(group, t[1], t.among) end
  return M.new(out)
end

function Results:ratio(t)
  local at = errors.here()
  local ok = type(t) == "table" and type(t[1]) == "string" and type(t.of) == "string"
  local to = ok and (type(t.to) == "table" and t.to or { t.to }) or {}
  if not ok or #to == 0 then
    errors.user('ratio: the argument has a wrong form; give { "field", of = "system", '
      .. 'to = { "system", ... } }', at)
  end
  check_key(self, t[1], "ratio", at)
  check_systems(self, "ratio", { t.of, unpack(to) }, at)
  local out, runs = {}, {}
  for _, group in ipairs(self:groups(M.case_of)) do
    local mine, other = least(group, t[1], { t.of }), least(group, t[1], to)
    if mine and other and field(mine, t[1]) ~= 0 then
      out[#out + 1], runs[#runs + 1] = field(other, t[1]) / field(mine, t[1]), mine
      if runs[1].provenance ~= mine.provenance then
        errors.user(("ratio: the results have %s and %s runs, which cannot be mixed; select some "
          .. "with where { executor = ... }"):format(runs[1].provenance, mine.provenance), at)
      end
    end
  end
  return values.new(out, runs)
end

-- Returns the name of the first coordinate or field in which the runs differ; nil if there is none.
local function difference_of(runs)
  local keys = schema.keys_of(schema.merged(runs[1].point or {}, {}))
  for _, key in ipairs { "system", "executor", "experiment", "entry" } do keys[#keys + 1] = key end
  for _, key in ipairs(keys) do
    for _, run in ipairs(runs) do
      if field(run, key) ~= field(runs[1], key) then return key end
    end
  end
end

-- Returns the run of a cell, or nil if there is none. Raises a user error if there are several,
-- since a cell shows only one.
local function only_run(runs, keys, at)
  if #runs < 2 then return runs[1] end
  local cell = {}
  for i, key in ipairs(keys) do cell[i] = ("%s = %s"):format(key, tostring(field(runs[1], key))) end
  errors.user(("table: %d runs for %s, which differ in %s; add it to rows, or select runs by where")
    :format(#runs, table.concat(cell, ", "), difference_of(runs) or "nothing but their times"), at)
end

local TABLE = {
  rows = { type = "any", required = true,
    doc = "a field or a list of fields; one row for each of their values" },
  cols = { type = "string", required = true, doc = "a field; one column for each of its values" },
  cell = { type = "function", required = true, doc = "function(run) returning a string" },
}

function Results:table(t)
  local at = errors.here()
  t = schema.check(TABLE, t, "table", at)
  local keys = type(t.rows) == "table" and t.rows or { t.rows }
  local all_keys = schema.merged(keys, { [#keys + 1] = t.cols })
  for _, key in ipairs(all_keys) do check_key(self, key, "table", at) end
  local function labels_of(run)
    local labels = {}
    for i, key in ipairs(keys) do labels[i] = tostring(field(run, key)) end
    return labels
  end
  local cols = self:groups(function(run) return { tostring(field(run, t.cols)) } end)
  local lines = { { unpack(keys) } }
  for _, col in ipairs(cols) do table.insert(lines[1], tostring(field(col[1], t.cols))) end
  for _, row in ipairs(self:groups(labels_of)) do
    local line = labels_of(row[1])
    for _, col in ipairs(cols) do
      local run = only_run(M.new(row):where { [t.cols] = field(col[1], t.cols) }.runs, all_keys, at)
      line[#line + 1] = run and t.cell(run) or "-"
    end
    lines[#lines + 1] = line
  end
  return aligned.text(lines)
end

--- Returns the value in a JSON file. Raises a user error at `at` that names the file if it cannot
--- be read.
function M.json(name, at)
  local text = errors.call(at, core.read_file, name)
  local ok, value = pcall(core.json_decode, text)
  if ok then return value end
  if type(value) == "table" then error(value, 0) end
  errors.user(("%s: %s"):format(name, value), at)
end

local function check_schema(data, file, at)
  if type(data) == "table" and data.schema == M.SCHEMA then return end
  errors.user(("%s: has the schema version %s, but this program reads version %d; run the recipe "
    .. "again"):format(file,
    schema.show(type(data) == "table" and data.schema or nil), M.SCHEMA), at)
end

-- Returns the text of a file, or nil if it cannot be read; but one that is too large is an error.
local function text_of(file, at)
  local found, text = pcall(core.read_file, file)
  if found then return text end
  if tostring(text):find("; allowed: at most ", 1, true) then errors.user(text, at) end
end

-- Returns the content of runs.jsonl, or nil if there is no such file or it has no complete line.
local function load_lines(file, at)
  local text = text_of(file, at)
  local data = text and journal.parse(text, file, at)
  if data then
    check_schema(data, file, at)
    result_shape.check(data, file)
  end
  return data
end

--- Returns the content of results.json of a folder, or of runs.jsonl if that is newer, and the name
--- of the file. Raises a user error if the file cannot be read or was not written by moebench.
function M.load(dir, at)
  local name, name_of_lines = dir .. "/results.json", dir .. "/" .. journal.FILE
  local whole = text_of(name, at)
  local readable, lines = pcall(load_lines, name_of_lines, at)
  if not whole and not readable then error(lines, 0) end
  if not whole and not lines and #(core.args.folders or {}) > 0 then
    errors.user(("%s: has neither results.json nor %s; give a folder that `moebench run` wrote")
      :format(dir, journal.FILE), at)
  end
  if not whole and lines then return lines, name_of_lines end
  local data = M.json(name, at)
  check_schema(data, name, at)
  result_shape.check(data, name)
  if not readable then
    core.warn(("%s; the file is ignored"):format(lines.message))
  elseif lines and journal.is_newer(lines, data) then
    core.warn(("%s is older than %s, which is read instead"):format(name, name_of_lines))
    return lines, name_of_lines
  end
  return data, name
end

--- moe.results "dir": returns the results of an earlier run, without runs that did not end.
function M.read(dir)
  local at = errors.here()
  if type(dir) ~= "string" then schema.refuse("moe.results", dir, "a folder", at) end
  return M.ended((M.load(dir, at)).runs)
end

--- Returns the results of the runs that have ended.
function M.ended(runs)
  local out = {}
  for _, run in ipairs(runs) do
    if run.iteration_ms then out[#out + 1] = run end
  end
  return M.new(out)
end

return M
