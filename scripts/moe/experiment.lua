-- moe.experiment{...}: points, systems and targets; run() makes results.json, traces and tables.
local claims = require "moe.claims"
local core = require "moe.core"
local errors = require "moe.errors"
local model_lib = require "moe.model"
local points = require "moe.points"
local report = require "moe.report"
local results = require "moe.results"
local schema = require "moe.schema"
local system_lib = require "moe.system"
local target = require "moe.target"
local train = require "moe.train"

local M = {}

local mt = schema.class("experiment", "an experiment, as moe.experiment {...}")

local MAX_TRACES = 8  -- of simulated runs

--- What a point is made of.
M.CASE = {
  model = { type = "model", required = true, doc = "moe.model" },
  cluster = { type = "cluster", doc = "moe.cluster; needed to simulate" },
  systems = { type = "list", of = { type = "system" }, required = true,
    doc = "list of moe.system" },
  optimizer = { type = target.OPTIMIZER, default = {} },
}

M.FIELDS = {
  name = { type = "string", required = true, doc = "names it in results" },
  title = { type = "string", default = "" },
  over = { type = "table", default = {}, doc = "name -> list; the product makes the points" },
  params = { type = "table", default = {}, doc = "name -> value, which --set may replace" },
  case = { type = "function", doc = "function(point) returning model, cluster, systems" },
  run = { type = "list", of = { type = "any" }, default = { "simulate" },
    doc = '"simulate", or { "cpu", ranks =, steps =, model = {...}, link = {...} }' },
  claims = { type = "list", of = { type = "claim" }, default = {}, doc = "list of moe.claim" },
}
for name in pairs(M.CASE) do
  M.FIELDS[name] = { type = "any", doc = "instead of case, where there is one point" }
end

--- The entry { "cpu", ... } of run.
M.CPU = schema.merged(train.CPU_RUN, {
  model = { type = "table", doc = "what differs from the point's model on this target" },
  optimizer = { type = target.OPTIMIZER, doc = "instead of the point's" },
  systems = { type = "list", of = { type = "string" },
    doc = "names of the systems to execute; all" },
})

local function check_entry(entry, path, at)
  if entry == "simulate" then return { kind = "simulate" } end
  local kind = type(entry) == "table" and entry[1] or entry
  if kind ~= "cpu" then schema.unknown(path, "executor", kind, { "cpu", "simulate" }, at) end
  local given = type(entry) == "table" and schema.merged(entry, {}) or {}
  given[1] = nil
  return schema.merged(schema.check(M.CPU, given, path, at), { kind = kind, path = path })
end

function M.experiment(t)
  local at = errors.here()
  local e = schema.check(M.FIELDS, t, "experiment", at)
  points.check(e.over, e.params, at)
  e.entries = {}
  for i, entry in ipairs(e.run) do
    e.entries[i] = check_entry(entry, ("experiment.run[%d]"):format(i), at)
  end
  local direct = {}
  for name in pairs(M.CASE) do
    if e.case and e[name] ~= nil then
      errors.user("experiment.case: give case, or model, cluster and systems, not both", at)
    end
    direct[name] = e[name]
  end
  if not e.case and next(e.over) then
    errors.user("experiment.over: needs case = function(point) to make use of it", at)
  end
  e.case_path = e.case and "experiment.case" or "experiment"
  e.case = e.case or function() return direct end
  e.at = at
  return setmetatable(e, mt)
end

local function resolve_case(e, point, params)
  local given = schema.namespace("case", "coordinate", schema.merged(params, point))
  local case = schema.check(M.CASE, e.case(given), e.case_path, e.at)
  if #case.systems == 0 then errors.user(e.case_path .. ".systems: the list is empty", e.at) end
  local seen = {}
  for _, s in ipairs(case.systems) do
    if seen[s.name] then
      errors.user(("%s.systems: '%s' stands there twice; names must differ"):format(e.case_path,
        s.name), e.at)
    end
    seen[s.name] = true
  end
  case.point = points.labels(point)
  return case
end

local function simulate_jobs(e, case)
  if not case.cluster then
    errors.user(e.case_path .. ': cluster is missing; "simulate" needs it', e.at)
  end
  local jobs = {}
  for i, system in ipairs(case.systems) do
    jobs[i] = { system = system, case = case,
      spec = target.cluster_spec(case.model, case.cluster, case.optimizer) }
  end
  return jobs
end

local function wanted(list, name)
  for _, n in ipairs(list or { name }) do
    if n == name then return true end
  end
  return false
end

local function cpu_jobs(e, entry, case)
  local model = model_lib.override(case.model, entry.model, entry.path .. ".model", e.at)
  local ranks = core.args.ranks or entry.ranks
  local jobs, names = {}, {}
  for i, system in ipairs(case.systems) do
    names[i] = system.name
    if wanted(entry.systems, system.name) then
      local spec = target.cpu_spec(model, ranks, entry.link, entry.optimizer or case.optimizer,
        entry.precision)
      jobs[#jobs + 1] = { system = system, case = case, entry = entry, spec = spec,
        options = train.run_options(entry, spec.model, entry.path, e.at) }
    end
  end
  for i, name in ipairs(entry.systems or {}) do
    if not wanted(names, name) then
      schema.unknown(("%s.systems[%d]"):format(entry.path, i), "system", name, names, e.at)
    end
  end
  return jobs
end

-- What an executed run depends on.
local function key_of(job)
  local candidates = {}
  for i, c in ipairs(system_lib.expand(job.system)) do candidates[i] = system_lib.describe(c) end
  local gate = job.spec.gate
  return core.json_encode { job.system.name, job.system.all_reduce, candidates, job.spec.model,
    gate and gate.options or {}, job.spec.optimizer, job.entry.path }
end

-- The jobs of an entry over all cases. Points that make the same executed run share it.
local function jobs_of(e, entry, cases)
  local all, by_key = {}, {}
  for _, case in ipairs(cases) do
    local jobs = entry.kind == "cpu" and cpu_jobs(e, entry, case) or simulate_jobs(e, case)
    for _, job in ipairs(jobs) do
      local key = entry.kind == "cpu" and key_of(job) or #all
      if not by_key[key] then
        job.points = {}
        by_key[key], all[#all + 1] = job, job
      end
      table.insert(by_key[key].points, case.point)
    end
  end
  return all
end

-- The entries of run that --executor asks for.
local function entries_of(e)
  local only, kept, have = core.args.executor, {}, {}
  for _, entry in ipairs(e.entries) do
    if not only or only == entry.kind then kept[#kept + 1] = entry end
    have[entry.kind] = true
  end
  if #kept == 0 then
    schema.unknown("--executor", "executor for this recipe", only, schema.keys_of(have), e.at)
  end
  return kept
end

-- Calls do_job(job) for all jobs of an experiment; all are resolved before the first one is done.
local function each_job(e, over, params, do_job)
  local cases, all = {}, {}
  for i, point in ipairs(points.product(over)) do cases[i] = resolve_case(e, point, params) end
  for _, entry in ipairs(entries_of(e)) do
    for _, job in ipairs(jobs_of(e, entry, cases)) do all[#all + 1] = job end
  end
  for _, job in ipairs(all) do do_job(job) end
  return #all
end

-- All experiments of this process: results.json holds them together.
local session = { runs = {}, claims = {}, experiments = {} }

local function flush()
  session.machine = session.machine or core.machine()
  core.write_output("results.json", core.json_encode({ schema = results.SCHEMA,
    recipe = core.recipe, machine = session.machine, version = core.version,
    seed = core.args.seed or 1, experiments = core.array(session.experiments),
    runs = core.array(session.runs), claims = core.array(session.claims) }, 1) .. "\n")
end

local TIMES = { "iteration_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "hidden_comm_ms",
  "wait_ms" }

local function base_record(e, job, made)
  local info, spec = made.plan:info(), job.spec
  return {
    experiment = e.name, system = job.system.name, model = spec.model.name,
    cluster = spec.cluster.name, cluster_parameters = spec.cluster, devices = spec.ranks,
    parameters = spec.model,
    gate_options = spec.gate and spec.gate.options, optimizer = spec.optimizer, fill = spec.fill,
    stages = core.array(system_lib.describe(made.candidate)), all_reduce = job.system.all_reduce,
    choice = made.candidate.choice, candidates = #made.tried > 1 and made.tried or nil,
    lower_bound_ms = made.sim.lower_bound_ms, simulate_ms = made.sim.sim_ms,
    peak_bytes = info.peak_bytes, liveness_bytes = info.liveness_bytes, plan_ms = info.plan_ms,
    plan_hash = info.hash, num_ops = info.num_ops,
  }
end

-- The run stands in results.json from here on; returns how its traces are called.
local function add_run(run)
  session.runs[#session.runs + 1] = run
  return ("trace-%03d-%s-"):format(#session.runs, run.system)
end

local function simulate(e, job)
  local cluster = job.case.cluster
  local made = target.plan(job.spec, job.system)
  local run = base_record(e, job, made)
  run.point, run.executor, run.provenance = job.case.point, "simulate", "simulated"
  for _, k in ipairs(TIMES) do run[k] = made.sim[k] end
  run.samples_ms = core.array { made.sim.iteration_ms }
  local memory = cluster.device.memory_bytes
  run.out_of_memory = memory > 0 and run.peak_bytes > memory or nil
  run.assumed = cluster.assumed
  local trace = add_run(run)
  if #session.runs <= MAX_TRACES then
    run.trace = trace .. "simulated.json"
    core.write_output(run.trace, made.plan:trace {})
  end
  core.progress(("simulated %s on %d %s devices"):format(run.system, run.devices, run.cluster))
  return run
end

-- Median over the steps after the first, which touches every page and fills the caches; it is kept
-- as a sample.
local function median_of(metrics, key)
  local list = results.values {}
  for i, m in ipairs(metrics) do
    if i > 1 or #metrics == 1 then list[#list + 1] = m[key] end
  end
  return list:median()
end

local function executed_record(run, r)
  for _, k in ipairs { "provenance", "samples_ms", "losses", "digest", "eval_loss",
    "unigram_entropy", "metrics" } do
    run[k] = r[k]
  end
  for _, k in ipairs(TIMES) do run[k] = median_of(r.metrics, k) end
  run.executed_peak_bytes, run.stopped = r.peak_bytes, r.stopped or nil
  run.drops = core.array {}
  for step, layers in ipairs(r.moe) do
    run.drops[step] = 0
    for _, layer in ipairs(layers) do run.drops[step] = run.drops[step] + layer.dropped end
  end
  run.prediction.error = run.iteration_ms / run.prediction.iteration_ms - 1
end

-- Appends to `done` what has run, also when it was interrupted.
local function execute(e, job, done)
  local entry = job.entry
  core.progress(("profiling and planning %s on %d ranks"):format(job.system.name, job.spec.ranks))
  local made = target.plan(job.spec, job.system)
  local run = base_record(e, job, made)
  run.points, run.executor = core.array(job.points), "cpu"
  run.link, run.precision = entry.link, entry.precision
  run.simulate_ms = nil  -- the first simulation waits for the profiler
  for _, k in ipairs { "steps", "init", "tokens", "text" } do run[k] = entry[k] end
  run.prediction = { frozen = true, profile_ms = made.plan:info().profile_ms }
  for _, k in ipairs(TIMES) do run.prediction[k] = made.sim[k] end
  local trace = add_run(run)
  flush()  -- the prediction is on disk before there is anything to know
  job.options.on_step = function(step, loss)
    core.progress(("%s: step %d of %d, loss %.4f"):format(run.system, step, entry.steps, loss))
  end
  local r = errors.call(job.system.at, made.plan.run, made.plan, job.options)
  if #r.losses > 0 then
    executed_record(run, r)
    done[#done + 1] = run
    flush()  -- before the trace, which an interrupt would keep from being written
    core.write_output(trace .. "executed.json", made.plan:trace { result = r, step = #r.losses })
    run.trace = trace .. "executed.json"
    flush()
  end
end

--- Everything but running: every case is resolved and every system planned for every target.
--- Returns the number of plans.
function M.check(e)
  local over, params = points.after_set(e)
  return each_job(e, over, params, function(job)
    if job.entry then job.spec.cost = { kind = "roofline" } end
    target.plan(job.spec, job.system)
  end)
end

--- Runs an experiment; writes results.json and traces, prints the tables, returns the results. What
--- is complete when a run fails is written and printed, then the error goes on.
function M.run(e)
  local at = errors.here()
  errors.stop_in "policies"
  schema.field({ type = "experiment", required = true }, e, "moe.run", at)
  if core.mode == "check" then M.check(e) end
  errors.stop_in "check"
  local over, params = points.after_set(e)
  session.experiments[#session.experiments + 1] = { name = e.name, title = e.title,
    over = points.list_labels(over), params = points.labels(params) }
  local R, verdicts = results.new {}, {}
  local ok, err = xpcall(function()
    each_job(e, over, params, function(job)
      if job.entry then
        execute(e, job, R.runs)
      else
        R.runs[#R.runs + 1] = simulate(e, job)
      end
    end)
    for i, claim in ipairs(e.claims) do
      verdicts[i] = claims.evaluate(claim, R)
      session.claims[#session.claims + 1] = verdicts[i]
    end
  end, errors.with_traceback)
  if ok or #R.runs > 0 then
    flush()
    report.print(e, R, verdicts)
  end
  if not ok then error(err, 0) end
  return R
end

return M
