-- The module `moe`, which recipes require. `moebench doc` describes its functions.
collectgarbage "stop"  -- little of what the modules make is garbage

local aligned = require "moe.base.aligned"
local bundle = require "moe.formats.bundle"
local calibrate = require "moe.run.calibrate"
local check_gradients = require "moe.run.check_gradients"
local choice = require "moe.base.choice"
local claims = require "moe.results.claims"
local cluster = require "moe.spec.cluster"
local collectives = require "moe.spec.collectives"
local comm_tables = require "moe.spec.comm_tables"
local constants = require "moe.spec.constants"
local core = require "moe.core"
local dispatch = require "moe.spec.dispatch"
local dispatch_log = require "moe.formats.dispatch_log"
local dispatch_time = require "moe.spec.dispatch_time"
local eplb = require "moe.formats.eplb"
local errors = require "moe.base.errors"
local experiment = require "moe.run.experiment"
local export = require "moe.results.export"
local from_megatron = require "moe.formats.from_megatron"
local gap = require "moe.search.gap"
local grid = require "moe.spec.grid"
local infer = require "moe.run.infer"
local jobs = require "moe.run.jobs"
local judge = require "moe.results.judge"
local kineto = require "moe.formats.kineto"
local lane_times = require "moe.spec.lane_times"
local layouts = require "moe.search.layouts"
local lina = require "moe.techniques.lina"
local machine = require "moe.formats.machine"
local model = require "moe.spec.model"
local op_time = require "moe.spec.op_time"
local page = require "moe.results.page"
local pipeline_times = require "moe.spec.pipeline_times"
local pipemoe = require "moe.techniques.pipemoe"
local plan = require "moe.run.plan"
local policy = require "moe.spec.policy"
local prophet = require "moe.techniques.prophet"
local reached = require "moe.run.reached"
local results = require "moe.results.results"
local routing = require "moe.spec.routing"
local schema = require "moe.base.schema"
local search = require "moe.search.search"
local settings = require "moe.run.settings"
local step_log = require "moe.formats.step_log"
local system = require "moe.spec.system"
local train = require "moe.run.train"
local values = require "moe.base.values"

-- moe.read_json(file): returns the value in a JSON file.
local function read_json(file)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.read_json", at)
  return errors.call(at, core.json_decode, errors.call(at, core.read_file, file), file)
end

-- moe.merged(...): returns a table with the entries of all tables; of one name the last one's.
local function merged(...)
  local at, out = errors.here(), {}
  for i = 1, select("#", ...) do
    out = schema.merged(out, schema.field({ type = "table", required = true }, (select(i, ...)),
      ("moe.merged[%d]"):format(i), at))
  end
  return out
end

local moe = schema.functions("moe", "name", {
  assumed = { schema.assumed, schema.ASSUMED, "moe.Assumed",
    "a constant that no source gives, with the band in which it is assumed to be" },
  best = { choice.best, "(constructor: (fun(t?: table): moe.Pass), options: table)", "moe.Best",
    "a pass with a list as one option: takes the value with the fastest step that fits in memory" },
  check_gradients = { check_gradients.check_gradients, check_gradients.FIELDS,
    "moe.Gradient[], number",
    "gradients of a model's parameters against central differences of its loss; also returns the "
      .. "largest error" },
  claim = { claims.claim, claims.FIELDS, "moe.Claim",
    "a published figure, and the function that computes our number" },
  collectives = { collectives.collectives, collectives.FIELDS, "moe.CollectiveTimes",
    "times of collectives that share the links of a cluster" },
  constants = { constants.constants, "(paper: string)", "moe.Constant[]",
    "the constants with which a paper's recipes simulate, and where each comes from" },
  dispatch = { dispatch.dispatch, dispatch.FIELDS, "moe.DispatchRows",
    "rows and bytes that a dispatcher moves for given choices, by link" },
  dispatch_log = { dispatch_log.dispatch_log, dispatch_log.FIELDS, "table[]",
    "laws of dispatchers on the user's machine, from a log of DeepEP's tests; writes them" },
  dispatch_time = { dispatch_time.dispatch_time, dispatch_time.FIELDS, "moe.DispatchTime",
    "the time of one dispatch or combine of a dispatcher on a GPU, measured where tables have it" },
  experiment = { experiment.experiment, experiment.FIELDS, "moe.Experiment",
    "points, systems, and how they are run; a recipe returns the experiment" },
  fallback = { choice.fallback, "(constructor: (fun(t?: table): moe.Pass), options: table)",
    "moe.Fallback",
    "a pass with a list as one option: takes the first value whose plan fits in memory" },
  from_megatron = { from_megatron.from_megatron, from_megatron.FIELDS, "moe.MegatronRun",
    "the model, grid, system and optimizer of a run of Megatron-LM by its arguments, its simulated "
      .. "step, and what its log measured",
    example = [[
local moe = require "moe"
local m = moe.from_megatron { cluster = moe.cluster.h100 { nodes = 2 }, vocab = 32000,
  arguments = "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --num-experts 16 "
    .. "--seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --swiglu --bf16 "
    .. "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    .. "--expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall "
    .. "--use-distributed-optimizer --overlap-grad-reduce" }
print(m.predicted.ms, m.predicted.memory_gib)]] },
  gap = { gap.gap, gap.FIELDS, "moe.Gap",
    "simulates a measured step again with one field changed at a time (stack, dispatcher, "
      .. "imbalance, exposed gradients, recompute, clocks); nearest first" },
  grid = { grid.grid, grid.FIELDS, "moe.Grid",
    "how the ranks of a step are arranged, and its micro-batches" },
  infer = { infer.infer, infer.INFER, "moe.InferResult",
    "runs batches through a model's forward, on real ranks or simulated" },
  judge = { judge.judge, judge.FIELDS, "moe.Verdict[]",
    "evaluates claims about numbers that a recipe computes itself" },
  lane_times = { lane_times.lane_times, lane_times.FIELDS, "moe.LaneTimes",
    "when tasks of given lengths on lanes begin and end, in a given order or in the shortest that "
      .. "a search finds" },
  layouts = { layouts.layouts, layouts.FIELDS, "moe.Layout[]",
    "the grids of tp, cp, pp, etp and ep that a model can have on a cluster, and in a line why "
      .. "others cannot be: by their sizes, or by the memory of parameters and states alone" },
  loads = { routing.loads, routing.LOADS, "integer[][]",
    "number of choices of a routing model, indexed by [source rank][expert]" },
  machine = { machine.machine, "(file: string, options?: moe.MachineOptions)", "moe.ClusterFields",
    "fields for moe.cluster.custom from a file of `moebench calibrate`: one node, a device per "
      .. "rank" },
  merged = { merged, "(...: table)", "table",
    "a table with the entries of all the tables; of those of one name it has the last table's" },
  nccl_tests = { comm_tables.nccl_tests,
    "(file: string, how?: { table?: integer, ranks?: integer })", "moe.Times",
    "reads times from the output of all_reduce_perf or alltoall_perf, for a cluster's "
      .. "collectives" },
  op_table = { cluster.op_table, "(file: string)", "moe.OpTable",
    "measured op times of the user, from CSV, for op_times or collective_times of a cluster" },
  op_time = { op_time.op_time, op_time.FIELDS, "moe.OpTime",
    "the time of one op of given sizes on a device of a cluster, measured where the device has "
      .. "tables" },
  options = { settings.options, "(defaults: table<string, number|string|boolean>, check?: "
    .. "fun(name: string, value?: number|string|boolean): string?)",
    "table<string, number|string|boolean>",
    "the settings of a script by name, in place of which --set NAME=VALUE gives others; check "
      .. "returns why the script refuses a setting (value: nil where defaults lack the name)" },
  pipeline_layout = { pipeline_times.pipeline_layout, pipeline_times.LAYOUT, "moe.PipelineLayout",
    "the layers of each stage of a pipeline, from a text in Megatron-LM's form" },
  pipeline_times = { pipeline_times.pipeline_times, pipeline_times.FIELDS, "moe.PipelineTimes",
    "a pipeline schedule in numbers: the turns of each rank, when they begin and end, bubbles and "
      .. "activations; or what is wrong with a table of turns" },
  plan = { plan.plan, plan.PLAN, "moe.Plan",
    "plans and simulates a step of a model on a cluster" },
  profile = { kineto.profile, "(file: string, how?: { rules?: string[][], plan?: moe.Plan })",
    "moe.Profile",
    "what ran on a GPU: lanes, kinds of kernels, hidden and exposed communication, from a profile "
      .. "of PyTorch" },
  read_json = { read_json, "(file: string)", "table",
    "reads a JSON file, from the recipe's folder or one given by --read" },
  results = { results.read, "(folder: string)", "moe.Results",
    "reads the results of an earlier run from the folder of its results.json" },
  run = { experiment.run, "(e: moe.Experiment)", "moe.Results",
    "runs an experiment: writes results.json and traces, prints tables" },
  search = { search.search, search.FIELDS, "moe.Search",
    "looks for the mix of techniques that is best for a model on a cluster; prints it and adds it "
      .. "to results.json, so that a recipe need return nothing",
    example = [[
local moe = require "moe"
local mine = moe.policy.schedule {
  name = "one_each", apply = function(s, g)
    local used = {}
    for _, a2a in ipairs(g:ops { kind = "all_to_all", phase = "backward" }) do
      local dw = g:ops { dw = true, where = function(op)
        return not used[op.name] and s:free(op, a2a)
      end }[1]
      if dw then s:under(dw, a2a); used[dw.name] = true end
    end
  end }
local found = moe.search {
  model = moe.model.gpt2_moe { layers = 12, hidden = 768, heads = 12, seq = 512,
    batch_per_device = 16, experts_per_device = 2, gate = "switch" },
  cluster = moe.cluster.p4de { nodes = 4 },
  techniques = { "partition", "dw_schedule" }, with = { mine {} },
  allowed = function(has) return not (has.dw_schedule and has.one_each) end }
print(found.best.iteration_ms, found.system)]] },
  step_log = { step_log.step_log, "(file: string, how?: { kind?: string })", "moe.StepLog",
    "reads what Megatron-LM, torchtitan or Tutel printed per step" },
  system = { system.system, "(name: string)", "fun(t: moe.SystemFields): moe.System",
    "a list of passes with an all-reduce policy; {} gives the known system of this name",
    fields = system.FIELDS },
  table = { aligned.table, "(rows: (string|number)[][], formats?: string[])", "string",
    "a table as text; the first row is the header, a row without cells is an empty line; formats: "
      .. "for each column that of its numbers, such as '%.1f%%'" },
  train = { train.train, train.TRAIN, "moe.TrainResult", "runs one training on real ranks" },
  values = { values.values, "(list: number[])", "moe.Values",
    "a list of numbers with methods for their mean, median and the like" },
  workload = { routing.workload, "(name: string)", "fun(t?: moe.WorkloadFields): moe.Routing",
    "the routing model of this name, which states the experts that tokens choose",
    fields = routing.options() },
}, {
  version = core.version,
  bundle = bundle.functions,
  cluster = cluster.constructors,
  dispatcher = policy.dispatchers,
  eplb = eplb.functions,
  lina = lina.functions,
  model = model.constructors,
  pass = policy.passes,
  pipeline = policy.pipelines,
  pipemoe = pipemoe.functions,
  policy = policy.constructors,
  prophet = prophet.functions,
  trace = routing.trace,
})
schema.check_methods()
collectgarbage("restart", -1)  -- begins where memory has doubled

--- Returns the definition of the policy `name` in this Lua state; called by the engine's rank
--- threads, each of which evaluates the recipe in its own state.
function moe._policy(kind, name) return policy.registry[kind][name] end

-- Returns the list of experiments that a recipe returned. Raises a user error for another value.
local function experiments_of(value)
  if value == nil or schema.is_a("search", value) then return {} end
  return experiment.returned(value) or errors.user(("the recipe returned a %s that is neither an "
    .. "experiment nor a list of experiments; return one of these, or nothing"):format(type(value)))
end

-- Checks a recipe without running anything: its experiments, or, if it calls functions that run
-- something itself, the part before the first such call.
local function check(chunk)
  local ok, value = xpcall(chunk, errors.with_traceback)
  if not ok then
    if core.kind_of(value) ~= "stop" then error(value, 0) end
    return core.say "ok up to the first call in the recipe that runs something"
  end
  local experiments = experiments_of(value)
  experiment.check_run(experiments)
  experiment.check_all(experiments)
  if value == nil then core.say "ok: the recipe runs nothing" end
end

--- The function that the C++ program calls (Host::main in bindings/host). `argument` depends on the
--- mode: the compiled recipe for "run" and "check", a kind or nil for "list", a topic or nil for
--- "doc", the name of the file to write for "calibrate" and "report", nil for the others.
function moe._main(mode, argument)
  if mode == "list" then return require("moe.list").list(argument) end
  if mode == "doc" then return require("moe.doc").doc(argument) end
  if mode == "calibrate" then return calibrate.calibrate(argument) end
  if mode == "report" then return page.report(argument) end
  if mode == "export" then return export.export() end
  if mode == "diff" then return require("moe.results.diff").diff() end
  if mode == "merge" then return require("moe.results.merge").merge() end
  local front = (mode == "serve" or mode == "repl") and require("moe.front." .. mode)
  reached.begin(moe)
  if front then return front[mode]() end
  if mode == "check" then return check(argument) end
  local experiments = experiments_of(argument())
  experiment.check_run(experiments)
  experiment.run_all(experiments)
  jobs.check_executor()
  settings.check()
  experiment.check_refused()
end

return moe
