-- The module `moe`, which recipes require. scripts/README.md describes its functions.
local aligned = require "moe.base.aligned"
local calibrate = require "moe.run.calibrate"
local choice = require "moe.base.choice"
local claims = require "moe.results.claims"
local cluster = require "moe.spec.cluster"
local collectives = require "moe.spec.collectives"
local comm_tables = require "moe.spec.comm_tables"
local core = require "moe.core"
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

local moe = {
  version = core.version,
  assumed = schema.assumed,
  best = choice.best,
  claim = claims.claim,
  cluster = cluster.constructors,
  collectives = collectives.collectives,
  experiment = experiment.experiment,
  fallback = choice.fallback,
  infer = infer.infer,
  judge = judge.judge,
  lina = lina.functions,
  loads = routing.loads,
  machine = machine.machine,
  model = model.constructors,
  nccl_tests = comm_tables.nccl_tests,
  pass = policy.passes,
  pipemoe = pipemoe.functions,
  plan = train.plan,
  policy = policy.constructors,
  prophet = prophet.functions,
  results = results.read,
  run = experiment.run,
  system = system.system,
  table = aligned.text,
  trace = routing.trace,
  train = train.train,
  workload = routing.workload,
}

--- Returns the definition of the policy `name` in this Lua state; called by the engine's rank
--- threads, each of which evaluates the recipe in its own state.
function moe._policy(kind, name) return policy.registry[kind][name] end

-- Returns the list of experiments that a recipe returned. Raises a user error for another value.
local function experiments_of(value)
  if schema.is_a("experiment", value) then return { value } end
  local fits = type(value) == "table" and #value > 0
  for _, e in ipairs(fits and value or {}) do fits = fits and schema.is_a("experiment", e) end
  if not fits then
    errors.user("a recipe returns an experiment, a list of experiments, or nothing; this one "
      .. "returned something else")
  end
  return value
end

-- Checks a recipe without running anything: its experiments, or, if it calls functions that run
-- something itself, the part before the first such call.
local function check(chunk)
  local ok, value = xpcall(chunk, errors.with_traceback)
  if not ok then
    if core.kind_of(value) ~= "stop" then error(value, 0) end
    return core.say "ok up to the first call in the recipe that runs something"
  end
  for _, e in ipairs(value ~= nil and experiments_of(value) or {}) do
    core.say(("ok: %s, %d plans"):format(e.name, experiment.check(e)))
  end
  if value == nil then core.say "ok: the recipe runs nothing" end
end

--- The function that the host (bindings/main.cpp) calls. `argument` depends on the mode: the
--- recipe's compiled chunk for "run" and "check", a kind or nil for "list", the name of the file to
--- write for "calibrate" and "report".
function moe._main(mode, argument)
  if mode == "list" then return list.list(argument) end
  if mode == "calibrate" then return calibrate.calibrate(argument) end
  if mode == "report" then return page.report(argument) end
  if mode == "check" then return check(argument) end
  local value = argument()
  for _, e in ipairs(value ~= nil and experiments_of(value) or {}) do experiment.run(e) end
  if value == nil then experiment.check_run() end
end

return schema.namespace("moe", "name", moe)
