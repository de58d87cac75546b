-- Results: a list of runs with selectors (`moebench doc results`). A run is a plain table, as in
-- results.json. best and ratio pass over runs that are out of memory (run.oom): their times are of
-- plans that no device can hold. get, map and table show all; leave them out with
-- where { oom = false }.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local errors = require "moe.base.errors"
local journal = require "moe.run.journal"
local result_shape = require "moe.results.result_shape"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

M.SCHEMA = 1

--- Fields of a run.
local ROWS = {
  { "experiment", "string", "its name" },
  { "entry", "integer", "which of the experiment's run" },
  { "system", "string", "its name" }, { "model", "string", "its name" },
  { "cluster", "string", "its name" },
  { "cluster_parameters", "moe.ClusterFields", "its rates, resolved" },
  { "devices", "integer", "how many" },
  { "executor", '"simulate"|"cpu"|"cuda"', "that simulated or ran it" },
  { "device_name", "string?", "the GPU and its versions, of cuda" },
  { "point", "table<string, any>?", "coordinates of a simulated run" },
  { "points", "table<string, any>[]?", "all points that an executed run stands for" },
  { "parameters", "moe.ModelFields", "the model's, resolved" },
  { "gate_options", "table?", "of a gate policy" },
  { "record", "string?", "the file of its routing" },
  { "routing", "string?", "the workload or trace that tokens follow, with options and seed" },
  { "optimizer", "moe.Optimizer", "its parameters" },
  { "stages", "{ name: string, kind: string, options: table }[]", "passes with their options" },
  { "without_effect", "{ stage: string, reason: string }[]?",
    "what stages were told and did not do" },
  { "all_reduce", "moe.AllReduce", "the policy" },
  { "choice", "string?", "what moe.best, moe.fallback or a system of systems chose" },
  { "candidates", "table[]?", "what it chose from, and why" },
  { "degrees", "integer[]?", "that pipemoe chose, by MoE layer" },
  { "packing", "moe.Packing?", "what Lina's packing chose" },
  { "fill", "number", "expected share of capacity slots in use" },
  { "assumed", "table<string, moe.AssumedFields>?", "constants without a source, by path" },
  { "forward_ms", "number?", "until the forward's last op ends" },
  { "alone_ms", "table<string, number>",
    "a rank's ops, each alone: collectives by kind, the rest by segment" },
  { "lower_bound_ms", "number",
    "no schedule of the plan's ops is faster: the larger of the next two" },
  { "busiest_lane_ms", "number", "sum of a lane's ops" },
  { "critical_path_ms", "number", "longest path of dependencies" },
  { "overlap", "moe.Overlap?", "what weight gradients can hide of the all-to-alls" },
  { "log", "string[]", "what the passes did; of schedulers what concerns the whole step" },
  { "samples_ms", "number[]", "every step" },
  { "peak_bytes", "integer", "a device, planned" },
  { "liveness_bytes", "integer", "a device, alive at the peak" },
  { "oom", "boolean?", "true where the peak is beyond the device: no such run can be" },
  { "holders", "string[]?", "what holds the peak, where it is beyond the device" },
  { "memory_bytes", "integer?", "of a device, where it is known" },
  { "plan_ms", "number", "time to plan" },
  { "plan_hash", "string", "of graph, orders and buffers" },
  { "num_ops", "integer", "of a rank" },
  { "simulate_ms", "number?", "time to simulate" },
  { "init", "string?", "of the parameters" }, { "tokens", "string?", "text or reference" },
  { "text", "string?", "its path" },
  { "expert_products", "string?", "the variant of experts' products where the recipe says it" },
  { "attention", "string?", "the kernels of fused attention where the recipe says it" },
  { "edits", "moe.Edits?",
    "what is changed in the plan's graph for a device; nothing where it is not there" },
  { "comm_priority", "string?",
    "of transfers' streams over compute's, where the recipe says it" },
  { "link", "moe.Link?", "the emulated link" },
  { "prediction", "moe.Prediction?", "of an executed run, frozen before it" },
  { "drops", "integer[]?", "choices without a slot, by step" },
  { "executed_peak_bytes", "integer?", "a rank, executed; nothing where the run failed" },
  { "trace", "string?", "its file" },
  { "placements", "moe.RunPlacement[][]?", "by step and layer" },
  { "planner_error", "table<string, moe.PlannerError>?",
    "Pro-Prophet's performance model beside the spans, by op: a2a, experts, trans, agg" },
  { "processes", "integer?", "that were started for a rank each; none where ranks are threads" },
  { "ranks", "moe.RankStats[]?", "by rank: medians of what it counts in a step" },
  { "unigram_entropy", "number?", "of the text, nats" },
}
local METRICS = schema.declared "metrics"
local declared = schema.merged(METRICS, {})  -- what the engine declares of a run's fields
--- What a record takes as it is of a run's options, and of what the run left.
M.OF_OPTIONS = { "steps", "check_finite", "precision", "nccl" }
M.OF_RESULT = { "provenance", "losses", "digest", "eval_loss", "metrics", "stop_reason", "stopped" }
for name, names in pairs { run = M.OF_OPTIONS, result = M.OF_RESULT } do
  for key, field in pairs(schema.picked(schema.declared(name), names)) do
    declared[key] = schema.merged(field, { maybe = key ~= "provenance" })
  end
end
declared.metrics = schema.merged(declared.metrics, { as = "moe.Metrics[]" })
schema.record("metrics", "metrics", "times of a step", {}, METRICS)
schema.record("run", "run", "a run, as results.json and R:each() have it", ROWS, declared).also =
  "results"

--- Its fields by name.
M.FIELDS = schema.merged(declared, {})
for _, row in ipairs(ROWS) do M.FIELDS[row[1]] = true end

schema.record("prediction", "run.prediction", "what was expected before a run, and how", {
  { "frozen", "true", "it was on disk before the run began" },
  { "basis", "string", "what the times of ops come from" },
  { "profile_ms", "number", "time to measure ops" },
  { "rehearsal_ms", "number", "time to rehearse" },
  { "ops_alone", "table<string, number>?", "metrics of ops alone, before anything was rehearsed" },
  { "error", "number", "iteration_ms of the run over the predicted one, less 1" },
}, METRICS)

schema.record("planner error", "error", "Pro-Prophet's performance model beside a run's spans", {
  { "error", "number?", "mean of |estimated - real| / real; nil without samples" },
  { "num", "integer", "samples in error: of all steps but the first" },
  { "samples", "{ step: integer[], layer: integer[], phase: string[], estimated_ms: number[], "
    .. "real_ms: number[] }", "every sample" },
})

schema.record("run placement", "placement", "where experts were, of a layer in a step", {
  { "layer", "integer", "the block" },
  { "moves", "integer", "residents that have come since the step before" },
  { "copies", "integer", "of experts, for the step" },
  { "replicas", "integer", "residents beside their owner" },
  { "max_load", "integer", "rows of the busiest device" },
  { "mean_load", "number", "rows of a device" },
  { "max_load_plain", "integer", "the busiest device under plain expert parallelism" },
  { "log", "string[]?", "what the policy said" },
})

schema.record("results file", "results.json", "what a run of a recipe leaves in its folder", {
  { "schema", "integer", "of this file" },
  { "version", "string", "of moebench" },
  { "date", "string", "when it began, UTC" },
  { "session", "string", "one process, or the job, that wrote it" },
  { "recipe", "{ name: string, path: string, hash: string }", "that was run" },
  { "machine", "{ cpu: string, cores: integer, kernel_set: string, git?: string }",
    "that it ran on" },
  { "seed", "integer", "--seed" },
  { "lines", "integer", "of runs.jsonl, which has the same line by line" },
  { "experiments", "{ name: string, title: string, over: table, params: table, set?: table }[]",
    "that were run" },
  { "runs", "moe.Run[]", "of all experiments" },
  { "claims", "moe.Verdict[]", "of all experiments" },
}).also = "results"

--- Raises an error that names a field of the record which FIELDS does not have.
function M.check_record(run)
  for key in pairs(run) do
    assert(M.FIELDS[key], ("'%s' stands in a record and not in results.FIELDS"):format(key))
  end
end

local Results = schema.methods("results", "R", "runs, as moe.run and moe.results give them", {
  { "runs", "moe.Run[]", "the runs" },
  { "where", "(fields: table<string, any>): moe.Results",
    "runs whose field, or coordinate, is equal, is in the list or pleases the function; false: "
      .. "also none" },
  { "each", "(): (fun(): moe.Run?)", "iterates over the runs" },
  { "by", "(fields: string|string[]): (fun(): any, moe.Results)",
    "iterates over each value, or list of values, and its results" },
  { "get", "(field: string): moe.Values", "the field of each run that has it" },
  { "map", "(f: fun(run: moe.Run): number?): moe.Values",
    "f of each run; those that give nil are left out" },
  { "best", "(t: { [1]: string, among?: string[] }): moe.Results",
    "the run with the least value of the field, among these systems, of each point" },
  { "ratio", "(t: { [1]: string, of: string, to: string|string[] }): moe.Values",
    "of each point the least value of the systems `to` over that of the system `of`" },
  { "groups", "(key: fun(run: moe.Run): any): moe.Run[][]",
    "lists of the runs with equal keys, in order of appearance" },
  { "table", "(t: { rows: string|string[], cols: string, cell: fun(run: moe.Run): string }): "
    .. "string",
    "a table as text: a row and a column for each value of the fields" },
})

function M.new(runs) return setmetatable({ runs = runs }, Results) end

local function field(run, key)
  if run[key] ~= nil then return run[key] end
  return run.point and run.point[key]
end

-- A key must be a field of runs or a coordinate of these ones.
local function check_key(R, key, path, at)
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
  if type(t) ~= "table" then schema.refuse("where", t, 'a table, as { system = "raf" }', at) end
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
  local order, by_key = {}, {}
  for _, run in ipairs(self.runs) do
    local k = core.json_encode(key(run))
    if not by_key[k] then
      by_key[k] = {}
      order[#order + 1] = by_key[k]
    end
    table.insert(by_key[k], run)
  end
  return order
end

-- Fields that say what was run, apart from its system.
local CASE = { "experiment", "entry", "executor", "device_name", "processes", "cluster",
  "cluster_parameters", "devices", "point", "parameters", "gate_options", "routing", "optimizer",
  "fill", "edits", "link", "precision", "nccl", "comm_priority", "steps", "init", "tokens", "text",
  "check_finite", "expert_products", "attention" }

--- What was run apart from the system, by field; the same of runs that differ in the system only.
function M.case_of(run)
  local case = {}
  for _, name in ipairs(CASE) do case[name] = run[name] end
  return case
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

-- The run of the least value among some systems (all, where nil) of a group.
local function least(group, key, among)
  local best
  for _, run in ipairs(group) do
    local value = (not among or fits(run.system, among)) and field(run, key)
    if value and not run.oom and (not best or value < field(best, key)) then best = run end
  end
  return best
end

function Results:best(t)
  local at = errors.here()
  local ok = type(t) == "table" and type(t[1]) == "string"
    and (t.among == nil or type(t.among) == "table")
  if not ok then errors.user('best: give { "field", among = { "system", ... } }', at) end
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
    errors.user('ratio: give { "field", of = "system", to = { "system", ... } }', at)
  end
  check_key(self, t[1], "ratio", at)
  check_systems(self, "ratio", { t.of, unpack(to) }, at)
  local out, runs = {}, {}
  for _, group in ipairs(self:groups(M.case_of)) do
    local mine, other = least(group, t[1], { t.of }), least(group, t[1], to)
    if mine and other and field(mine, t[1]) ~= 0 then
      out[#out + 1], runs[#runs + 1] = field(other, t[1]) / field(mine, t[1]), mine
      if runs[1].provenance ~= mine.provenance then
        errors.user(("ratio: %s and %s runs do not mix; choose with where { executor = ... }")
          :format(runs[1].provenance, mine.provenance), at)
      end
    end
  end
  return values.new(out, runs)
end

-- A coordinate, or one of these fields, in which runs differ.
local function difference_of(runs)
  local keys = schema.keys_of(schema.merged(runs[1].point or {}, {}))
  for _, key in ipairs { "system", "executor", "experiment", "entry" } do keys[#keys + 1] = key end
  for _, key in ipairs(keys) do
    for _, run in ipairs(runs) do
      if field(run, key) ~= field(runs[1], key) then return key end
    end
  end
end

-- The run of a cell, or nil. Several are an error: all but one would be missing in the table.
local function only_run(runs, keys, at)
  if #runs < 2 then return runs[1] end
  local cell = {}
  for i, key in ipairs(keys) do cell[i] = ("%s = %s"):format(key, tostring(field(runs[1], key))) end
  errors.user(("table: %d runs for %s, which differ in %s; add it to rows, or choose with where")
    :format(#runs, table.concat(cell, ", "), difference_of(runs) or "nothing but their times"), at)
end

local TABLE = {
  rows = { type = "any", required = true, doc = "a field or a list of fields" },
  cols = { type = "string", required = true, doc = "a field" },
  cell = { type = "function", required = true, doc = "function(run) returning a text" },
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

--- The value in a JSON file; an error at `at`, which names the file, where there is none.
function M.json(name, at)
  local text = errors.call(at, core.read_file, name)
  local ok, value = pcall(core.json_decode, text)
  if ok then return value end
  if type(value) == "table" then error(value, 0) end
  errors.user(("%s: %s"):format(name, value), at)
end

local function check_schema(data, file, at)
  if type(data) == "table" and data.schema == M.SCHEMA then return end
  errors.user(("%s: has schema %s, this program reads %d"):format(file,
    tostring(type(data) == "table" and data.schema), M.SCHEMA), at)
end

-- What the lines of a folder say; nil where there are none.
local function load_lines(file, at)
  local found, text = pcall(core.read_file, file)
  local data = found and journal.parse(text, file, at)
  if data then check_schema(data, file, at) end
  return data
end

-- What stands in results.json of a folder, or in runs.jsonl where that knows more, and the name of
-- the file.
local function load_newest(dir, at)
  local name, name_of_lines = dir .. "/results.json", dir .. "/" .. journal.FILE
  local whole = pcall(core.read_file, name)
  local readable, lines = pcall(load_lines, name_of_lines, at)
  if not whole and not readable then error(lines, 0) end
  if not whole and lines then return lines, name_of_lines end
  local data = M.json(name, at)
  check_schema(data, name, at)
  if not readable then
    core.warn(("%s; it is left out"):format(lines.message))
  elseif lines and type(data.runs) == "table" and journal.is_newer(lines, data) then
    core.warn(("%s is older than %s, which is read"):format(name, name_of_lines))
    return lines, name_of_lines
  end
  return data, name
end

--- What stands in results.json of a folder, or in runs.jsonl where that knows more, and the name of
--- the file; an error at `at` where this program cannot read it, or did not write it.
function M.load(dir, at)
  local data, name = load_newest(dir, at)
  result_shape.check(data, name)
  return data, name
end

--- moe.results "dir": the results of an earlier run. Runs that did not end are left out.
function M.read(dir)
  local at = errors.here()
  if type(dir) ~= "string" then schema.refuse("moe.results", dir, "a folder", at) end
  return M.ended((M.load(dir, at)).runs)
end

--- Results of those of the runs that ended.
function M.ended(runs)
  local out = {}
  for _, run in ipairs(runs) do
    if run.iteration_ms then out[#out + 1] = run end
  end
  return M.new(out)
end

return M
