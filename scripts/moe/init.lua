-- moe: the library that recipes require. `moebench doc` describes all of it.
local aligned = require "moe.base.aligned"
local calibrate = require "moe.run.calibrate"
local choice = require "moe.base.choice"
local claims = require "moe.results.claims"
local cluster = require "moe.spec.cluster"
local collectives = require "moe.spec.collectives"
local comm_tables = require "moe.spec.comm_tables"
local core = require "moe.core"
local doc = require "moe.doc"
local errors = require "moe.base.errors"
local experiment = require "moe.run.experiment"
local infer = require "moe.run.infer"
local judge = require "moe.results.judge"
local lina = require "moe.techniques.lina"
local list = require "moe.list"
local machine = require "moe.spec.machine"
local model = require "moe.spec.model"
local page = require "moe.results.page"
local pipemoe = require "moe.techniques.pipemoe"
local policy = require "moe.spec.policy"
local prophet = require "moe.techniques.prophet"
local results = require "moe.results.results"
local routing = require "moe.spec.routing"
local schema = require "moe.base.schema"
local system = require "moe.spec.system"
local train = require "moe.run.train"

local moe = schema.functions("moe", "name", {
  assumed = { schema.assumed, schema.ASSUMED, "moe.Assumed",
    "a constant without a source, with the band that it lies in" },
  best = { choice.best, "(constructor: (fun(t?: table): moe.Pass), options: table)", "moe.Best",
    "a pass with a list as one option: the value with the fastest simulated step that fits" },
  claim = { claims.claim, claims.FIELDS, "moe.Claim",
    "a paper's number, and how ours is computed" },
  collectives = { collectives.collectives, collectives.FIELDS, "moe.CollectiveTimes",
    "how long collectives take that meet on the links of a cluster" },
  experiment = { experiment.experiment, experiment.FIELDS, "moe.Experiment",
    "points, systems and what they are simulated or run on; a recipe returns it" },
  fallback = { choice.fallback, "(constructor: (fun(t?: table): moe.Pass), options: table)",
    "moe.Fallback", "a pass with a list as one option: the first value whose plan fits in memory" },
  infer = { infer.infer, infer.INFER, "moe.InferResult",
    "batches through the forward of a model, on real ranks or simulated" },
  judge = { judge.judge, judge.FIELDS, "moe.Verdict[]",
    "claims about numbers that a recipe computes itself" },
  loads = { routing.loads, routing.LOADS, "integer[][]",
    "how many choices of each source go to each expert, [source][expert]" },
  machine = { machine.machine, "(file: string, options?: moe.MachineOptions)", "moe.ClusterFields",
    "what `moebench calibrate` measured, for moe.cluster.custom: a node with a device per rank" },
  nccl_tests = { comm_tables.nccl_tests, "(file: string)", "moe.Times",
    "times in the output of all_reduce_perf or alltoall_perf, for a cluster's collectives" },
  plan = { train.plan, train.PLAN, "moe.Plan",
    "a step of a model on a cluster, planned and simulated" },
  results = { results.read, "(folder: string)", "moe.Results",
    "results of an earlier run, of its results.json" },
  run = { experiment.run, "(e: moe.Experiment)", "moe.Results",
    "runs an experiment: writes results.json and traces, prints tables" },
  system = { system.system, "(name: string)", "fun(t: moe.SystemFields): moe.System",
    "a list of passes with an all-reduce policy: {} a known one, else the passes given",
    fields = system.FIELDS },
  table = { aligned.text, "(rows: (string|number)[][])", "string",
    "aligned columns; the first row is the header, one without cells an empty line" },
  train = { train.train, train.TRAIN, "moe.TrainResult", "one training run on real ranks" },
  workload = { routing.workload, "(name: string)", "fun(t?: moe.WorkloadFields): moe.Routing",
    "which experts tokens choose, by the law of that name", fields = routing.options() },
}, {
  version = core.version,
  cluster = cluster.constructors,
  lina = lina.functions,
  model = model.constructors,
  pass = policy.passes,
  pipemoe = pipemoe.functions,
  policy = policy.constructors,
  prophet = prophet.functions,
  trace = routing.trace,
})
schema.check_methods()

--- For rank threads: the definition of a policy in this state.
function moe._policy(kind, name) return policy.registry[kind][name] end

-- The experiments that a recipe returned.
local function experiments_of(value)
  if schema.is_a("experiment", value) then return { value } end
  local fits = type(value) == "table" and #value > 0
  for _, e in ipairs(fits and value or {}) do fits = fits and schema.is_a("experiment", e) end
  if not fits then
    errors.user "a recipe returns an experiment, a list of them, or nothing"
  end
  return value
end

-- Everything but running: a script is checked as far as the first thing that it would run.
local function check(chunk)
  local ok, value = xpcall(chunk, errors.with_traceback)
  if not ok then
    if core.kind_of(value) ~= "stop" then error(value, 0) end
    return core.say "ok, as far as what the recipe runs first"
  end
  for _, e in ipairs(value ~= nil and experiments_of(value) or {}) do
    core.say(("ok: %s, %d plans"):format(e.name, experiment.check(e)))
  end
  if value == nil then core.say "ok: the recipe runs nothing" end
end

--- The host's door. mode: "run" or "check" with the recipe's chunk, "list" with a kind or nil,
--- "doc" with a topic or nil, "calibrate" and "report" with the name of the file to write.
function moe._main(mode, argument)
  if mode == "list" then return list.list(argument) end
  if mode == "doc" then return doc.doc(argument) end
  if mode == "calibrate" then return calibrate.calibrate(argument) end
  if mode == "report" then return page.report(argument) end
  if mode == "check" then return check(argument) end
  local value = argument()
  for _, e in ipairs(value ~= nil and experiments_of(value) or {}) do experiment.run(e) end
  if value == nil then experiment.check_run() end
end

return moe
