-- Results: a list of runs with methods that select and combine them. A run is a plain table, as in
-- results.json.
--   R:where{ system = "lancet", gpu = { "p4de", "p3dn" }, nodes = function(n) return n > 2 end }
--                                            runs whose field or coordinate equals the value, is in
--                                            the list, or for which the function returns true;
--                                            false also selects runs without the field
--   R:each()                                 iterator over runs
--   R:by "gpu", R:by { "gpu", "nodes" }      iterator over value (or list of values), its results
--   R:get "iteration_ms"                     values
--   R:map(function(run) return x end)        values; runs for which it returns nil are omitted
--   R:best{ "iteration_ms", among = { "raf", "tutel" } }
--                                            results with the run of the smallest value per point
--   R:ratio{ "iteration_ms", of = "lancet", to = { "raf", "tutel" } }
--                                            one value per point: the smallest value of the systems
--                                            `to` divided by the value of the system `of`
--   :mean() :max() :min() :median() :each()  methods of values; each iterates over value, run
--   R:table{ rows = { "gpu", "nodes" }, cols = "system", cell = function(run) return text end }
-- best and ratio ignore runs that are out of memory (run.oom), since no device could run their
-- plans. get, map and table include them; where { oom = false } removes them.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local errors = require "moe.base.errors"
local journal = require "moe.run.journal"
local result_shape = require "moe.results.result_shape"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

M.SCHEMA = 1

--- Fields of a run and their meaning.
M.FIELDS = {
  experiment = "name of the experiment", entry = "number of the entry in the experiment's run",
  system = "name of the system", model = "name of the model", cluster = "name of the cluster",
  cluster_parameters = "the cluster's fields as the plan used them", devices = "number of devices",
  executor = "simulate, cpu or cuda", device_name = "cuda: the GPU and versions of its software",
  point = "coordinates of a simulated run",
  points = "coordinates of all points for which an executed run is valid",
  parameters = "the model's fields as the plan used them",
  gate_options = "options of a gate policy",
  record = "name of the file with the recorded routing",
  routing = "the workload or trace that tokens follow, with options and seed",
  optimizer = "the optimizer's fields", stages = "the passes with their options",
  without_effect = "stages that did not do what their options request: stage and reason of each",
  all_reduce = "the all-reduce policy",
  choice = "what moe.best, moe.fallback or a system of systems chose",
  candidates = "what that choice was made from: label, time and memory of each candidate",
  degrees = "the degrees that pipemoe chose, one per MoE layer",
  packing = "Lina's packing: the factor by which a device holds more experts, the controller's "
    .. "measurements and its costs",
  fill = "expected share of capacity slots that hold a token",
  assumed = "the assumed constants, indexed by path",
  forward_ms = "time until the forward's last op ends",
  alone_ms = "times of a rank's ops, each alone: collectives by kind, other ops by segment",
  lower_bound_ms = "a time below which no schedule of the plan's ops is: the larger of "
    .. "busiest_lane_ms and critical_path_ms",
  busiest_lane_ms = "sum of the times of the busiest lane's ops",
  critical_path_ms = "longest path of dependent ops",
  overlap = "time of all-to-alls that weight gradients can hide: greedy_ms, exact_ms, bound_ms",
  log = "what the passes did; of schedule passes only lines on the whole step",
  samples_ms = "time of each step",
  peak_bytes = "planned peak memory of a device",
  liveness_bytes = "bytes of a device that are in use at the peak",
  oom = "true if the peak is above the device's memory, so that the run is not possible",
  holders = "the tensors that hold most bytes at the peak, if oom",
  memory_bytes = "memory of a device, if it is known", plan_ms = "time to make the plan",
  plan_hash = "hash of graph, orders and buffers", num_ops = "number of ops of a rank",
  simulate_ms = "time to simulate the plan",
  init = "how parameters are initialized", tokens = "text or reference",
  text = "path of the text",
  expert_products = "how experts' matrix products run, if the recipe states it",
  attention = "the kernels of fused attention, if the recipe states them",
  edits = "changes of the plan's graph for a device; absent if there are none",
  comm_priority = "priority of the transfers' streams, if the recipe states it",
  link = "the emulated link", prediction = "the prediction, frozen before the run",
  drops = "number of drops in each step",
  executed_peak_bytes = "peak memory of a rank in the run; absent if the run failed",
  trace = "name of the trace file",
  placements = "indexed by step and layer: moves of residents since the step before, copies and "
    .. "replicas; max_load and mean_load, rows per device; max_load_plain, the largest number of "
    .. "rows under plain expert parallelism",
  planner_error = "errors of Pro-Prophet's performance model against the executed spans, indexed "
    .. "by op (a2a, experts, trans, agg): error, the mean of |estimated - real| / real over num "
    .. "samples (all steps but the first), and the samples",
  processes = "number of started processes, one per rank; absent if ranks are threads",
  ranks = "one entry per rank: medians over steps of its statistics",
  unigram_entropy = "unigram entropy of the text, in nats",
}
for _, row in ipairs(core.table "metrics") do M.FIELDS[row.name] = row.doc end
--- Names of the fields that a record copies from the entry of `run`, and from the result of a run.
M.OF_OPTIONS = { "steps", "check_finite", "precision", "nccl" }
M.OF_RESULT = { "provenance", "losses", "digest", "eval_loss", "metrics", "stop_reason", "stopped" }
for name, names in pairs { run = M.OF_OPTIONS, result = M.OF_RESULT } do
  for key, field in pairs(schema.picked(schema.declared(name), names)) do
    M.FIELDS[key] = field.doc
  end
end

--- Raises an error that names a field of the record if FIELDS does not have it.
function M.check_record(run)
  for key in pairs(run) do
    assert(M.FIELDS[key], ("'%s' is in a record but not in results.FIELDS"):format(key))
  end
end

local Results = schema.methods("results", {})

function M.new(runs) return setmetatable({ runs = runs }, Results) end

local function field(run, key)
  if run[key] ~= nil then return run[key] end
  return run.point and run.point[key]
end

-- Raises a user error unless the key is a field of runs or a coordinate of these runs' points;
-- returns it.
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

--- Returns the lists of runs with equal key(run), in order of first appearance.
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

-- Fields that describe what was run, except for the system.
local CASE = { "experiment", "entry", "executor", "device_name", "processes", "cluster",
  "cluster_parameters", "devices", "point", "parameters", "gate_options", "routing", "optimizer",
  "fill", "edits", "link", "precision", "nccl", "comm_priority", "steps", "init", "tokens", "text",
  "check_finite", "expert_products", "attention" }

--- Returns the fields that describe what was run, except for the system. They are equal for runs
--- that differ only in the system.
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

-- Returns the run with the smallest value of `key` among some systems of a group (nil: all).
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
        errors.user(("ratio: the results have %s and %s runs, which cannot be mixed; select some "
          .. "with where { executor = ... }"):format(runs[1].provenance, mine.provenance), at)
      end
    end
  end
  return values.new(out, runs)
end

local TABLE = {
  rows = { type = "any", required = true,
    doc = "a field or a list of fields; one row for each of their values" },
  cols = { type = "string", required = true, doc = "a field; one column for each of its values" },
  cell = { type = "function", required = true, doc = "function(run) returning a text" },
}

function Results:table(t)
  local at = errors.here()
  t = schema.check(TABLE, t, "table", at)
  local keys = type(t.rows) == "table" and t.rows or { t.rows }
  for _, key in ipairs { t.cols, unpack(keys) } do check_key(self, key, "table", at) end
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
      local run = M.new(row):where { [t.cols] = field(col[1], t.cols) }.runs[1]
      line[#line + 1] = run and t.cell(run) or "-"
    end
    lines[#lines + 1] = line
  end
  return aligned.text(lines)
end

--- The value in a JSON file. Raises a user error at `at` that names the file if it cannot be read.
function M.json(name, at)
  local text = errors.call(at, core.read_file, name)
  local ok, value = pcall(core.json_decode, text)
  if ok then return value end
  if type(value) == "table" then error(value, 0) end
  errors.user(("%s: %s"):format(name, value), at)
end

local function check_schema(data, file, at)
  if type(data) == "table" and data.schema == M.SCHEMA then return end
  errors.user(("%s: has the schema version %s, but this program reads version %d"):format(file,
    tostring(type(data) == "table" and data.schema), M.SCHEMA), at)
end

-- Returns the content of runs.jsonl, or nil if there is no such file or it has no line.
local function load_lines(file, at)
  local found, text = pcall(core.read_file, file)
  local data = found and journal.parse(text, file, at)
  if data then check_schema(data, file, at) end
  return data
end

-- Returns the content of results.json of a folder, or of runs.jsonl if that is newer, and the name
-- of the file.
local function load_newest(dir, at)
  local name, name_of_lines = dir .. "/results.json", dir .. "/" .. journal.FILE
  local whole = pcall(core.read_file, name)
  local readable, lines = pcall(load_lines, name_of_lines, at)
  if not whole and not readable then error(lines, 0) end
  if not whole and lines then return lines, name_of_lines end
  local data = M.json(name, at)
  check_schema(data, name, at)
  if not readable then
    core.warn(("%s; the file is ignored"):format(lines.message))
  elseif lines and type(data.runs) == "table" and journal.is_newer(lines, data) then
    core.warn(("%s is older than %s, which is read instead"):format(name, name_of_lines))
    return lines, name_of_lines
  end
  return data, name
end

--- Returns the content of results.json of a folder, or of runs.jsonl if that is newer, and the name
--- of the file. Raises a user error if the file cannot be read or was not written by moebench.
function M.load(dir, at)
  local data, name = load_newest(dir, at)
  result_shape.check(data, name)
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
