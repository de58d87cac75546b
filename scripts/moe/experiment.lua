-- moe.experiment{...}: points, systems and targets; run() makes results.json, traces and
-- the tables.
local core = require "moe.core"
local errors = require "moe.errors"
local model_lib = require "moe.model"
local report = require "moe.report"
local results = require "moe.results"
local schema = require "moe.schema"
local target = require "moe.target"
local train = require "moe.train"

local M = {}

local mt = { __name = "experiment" }
M.mt = mt

local CASE = {
  model = { type = "any", required = true, doc = "moe.model" },
  cluster = { type = "any", doc = "moe.cluster; needed to simulate" },
  systems = { type = "table", required = true, doc = "list of moe.system" },
  optimizer = { type = "table" },
}

local FIELDS = train.merged({
  name = { type = "string", required = true, doc = "names the output" },
  title = { type = "string", default = "" },
  over = { type = "table", default = {}, doc = "name -> list; the product makes the points" },
  params = { type = "table", default = {}, doc = "name -> value, that --set may replace" },
  case = { type = "function", doc = "function(point) returning model, cluster, systems" },
  run = { type = "table", default = { "simulate" },
    doc = '"simulate", or { "cpu", ranks =, steps =, model = {...}, link = {...} }' },
  claims = { type = "table", default = {}, doc = "list of moe.claim" },
}, { model = { type = "any" }, cluster = { type = "any" }, systems = { type = "table" },
  optimizer = { type = "table" } })

local CPU = train.merged(train.RUN_FIELDS, {
  model = { type = "table", doc = "what differs from the point's model on this target" },
  systems = { type = "table", doc = "names of the systems to execute; all" },
})

local function check_targets(list, at)
  local out = {}
  for i, entry in ipairs(list) do
    local path = ("experiment.run[%d]"):format(i)
    local kind = type(entry) == "table" and entry[1] or entry
    if kind == "simulate" and type(entry) == "string" then
      out[i] = { kind = "simulate" }
    elseif kind == "cpu" then
      local fields = {}
      for k, v in pairs(type(entry) == "table" and entry or {}) do
        if k ~= 1 then fields[k] = v end
      end
      local c = schema.check(CPU, fields, path, at)
      if c.link then c.link = schema.check(target.LINK, c.link, path .. ".link", at) end
      c.kind, c.path = "cpu", path
      out[i] = c
    else
      schema.unknown(path, "executor", kind, { "cpu", "simulate" }, at)
    end
  end
  return out
end

function M.experiment(t)
  local at = errors.here()
  local e = schema.check(FIELDS, t, "experiment", at)
  if e.case and (e.model or e.cluster or e.systems) then
    errors.user("experiment: give case, or model, cluster and systems, not both", "case", at)
  end
  if not e.case then
    if not e.model then errors.user("experiment: model is missing", nil, at) end
    if next(e.over) then
      errors.user("experiment.over: needs case = function(point) to make use of it", "over", at)
    end
    local fixed = { model = e.model, cluster = e.cluster, systems = e.systems,
      optimizer = e.optimizer }
    e.case = function() return fixed end
  end
  for name, list in pairs(e.over) do
    if type(list) ~= "table" or #list == 0 then
      errors.user(("experiment.over.%s: give a list of values"):format(name), name, at)
    end
  end
  e.targets = check_targets(e.run, at)
  e.at = at
  return setmetatable(e, mt)
end

-- --set narrows lists of over and replaces params; a name that is in neither is an error.
local function apply_set(e)
  local over, params = {}, {}
  for k, v in pairs(e.over) do over[k] = v end
  for k, v in pairs(e.params) do params[k] = v end
  for key, text in pairs(core.args.set or {}) do
    if over[key] then
      local kept = {}
      for _, v in ipairs(over[key]) do
        if tostring(v) == text then kept[#kept + 1] = v end
      end
      if #kept == 0 then
        local have = {}
        for i, v in ipairs(over[key]) do have[i] = tostring(v) end
        errors.user(("--set %s=%s: not in experiment.over.%s, have: %s"):format(key, text, key,
          table.concat(have, ", ")), nil, e.at)
      end
      over[key] = kept
    elseif params[key] ~= nil then
      local value = type(params[key]) == "number" and tonumber(text)
      if type(params[key]) == "number" and not value then
        errors.user(("--set %s=%s: give a number"):format(key, text), nil, e.at)
      end
      if type(params[key]) == "boolean" then value = text == "true" end
      params[key] = type(params[key]) == "string" and text or value
    else
      local names = schema.keys_of(train.merged(over, params))
      schema.unknown("--set", "name", key, names, e.at)
    end
  end
  return over, params
end

local function points_of(over)
  local points = { {} }
  for _, name in ipairs(schema.keys_of(over)) do
    local more = {}
    for _, p in ipairs(points) do
      for _, v in ipairs(over[name]) do more[#more + 1] = train.merged(p, { [name] = v }) end
    end
    points = more
  end
  return points
end

local function resolve_case(e, point, params)
  local c = e.case(train.merged(params, point))
  local case = schema.check(CASE, c, "experiment.case", e.at)
  train.check_model(case.model, "experiment.model", e.at)
  if case.cluster then train.check_cluster(case.cluster, "experiment.cluster", e.at) end
  if #case.systems == 0 then
    errors.user("experiment.systems: the list is empty", "systems", e.at)
  end
  local seen = {}
  for i, s in ipairs(case.systems) do
    train.check_system(s, ("experiment.systems[%d]"):format(i), e.at)
    if seen[s.name] then
      errors.user(("experiment.systems: '%s' stands there twice; names must differ"):format(s.name),
        "systems", e.at)
    end
    seen[s.name] = true
  end
  case.optimizer = target.optimizer(case.optimizer, "experiment.optimizer", e.at)
  return case
end

local function base_record(system, spec, plan, sim, choice, tried)
  local info = plan:info()
  return {
    system = system.name, model = spec.model.name, cluster = spec.cluster.name,
    devices = spec.ranks, parameters = spec.model, fill = spec.fill, choice = choice,
    candidates = #tried > 1 and tried or nil, lower_bound_ms = sim.lower_bound_ms,
    peak_bytes = info.peak_bytes, liveness_bytes = info.liveness_bytes, plan_ms = info.plan_ms,
    plan_hash = info.hash, num_ops = info.num_ops, simulate_ms = sim.sim_ms,
    all_reduce = system.all_reduce,
  }
end

local TIMES = { "iteration_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "hidden_comm_ms",
  "wait_ms" }

local function simulate_point(state, e, point, case)
  if not case.cluster then
    errors.user("experiment.cluster: is missing; \"simulate\" needs it", nil, e.at)
  end
  for _, system in ipairs(case.systems) do
    local spec = target.cluster_spec(case.model, case.cluster, system, case.optimizer)
    local plan, sim, choice, tried = target.plan(spec, system)
    local run = base_record(system, spec, plan, sim, choice, tried)
    run.point, run.executor, run.provenance = point, "simulate", "simulated"
    for _, k in ipairs(TIMES) do run[k] = sim[k] end
    run.samples_ms = core.array { sim.iteration_ms }
    local memory = spec.cluster.device.memory_bytes
    run.out_of_memory = memory > 0 and run.peak_bytes > memory or nil
    run.assumed = case.cluster.assumed
    state.runs[#state.runs + 1] = run
    if #state.runs <= state.max_traces then
      core.write_output(("trace-%03d-%s-simulated.json"):format(#state.runs, system.name),
        plan:trace {})
    end
    core.progress(("simulated %s on %d %s devices"):format(system.name, spec.ranks,
      spec.cluster.name))
  end
end

local function median_of(metrics, key)
  local list = results.values {}
  -- The first step touches every page and fills the caches; it is kept as a sample, not in medians.
  for i, m in ipairs(metrics) do
    if i > 1 or #metrics == 1 then list[#list + 1] = m[key] end
  end
  return list:median()
end

local function executed_record(run, r)
  run.provenance = r.provenance
  for _, k in ipairs(TIMES) do run[k] = median_of(r.metrics, k) end
  run.samples_ms, run.losses, run.digest = r.samples_ms, r.losses, r.digest
  run.executed_peak_bytes, run.stopped = r.peak_bytes, r.stopped or nil
  run.eval_loss, run.unigram_entropy = r.eval_loss, r.unigram_entropy
  run.drops = core.array {}
  run.metrics = r.metrics
  for s, layers in ipairs(r.moe) do
    local sum = 0
    for _, l in ipairs(layers) do sum = sum + l.dropped end
    run.drops[s] = sum
  end
  local p = run.prediction
  p.error = run.iteration_ms / p.iteration_ms - 1
end

local function wanted(list, name)
  if not list then return true end
  for _, n in ipairs(list) do
    if n == name then return true end
  end
  return false
end

local function execute_point(state, e, entry, point, case)
  local model = model_lib.override(case.model, entry.model, entry.path .. ".model", e.at)
  local ranks = core.args.ranks or entry.ranks
  for _, system in ipairs(case.systems) do
    if wanted(entry.systems, system.name) then
      local spec = target.cpu_spec(model, ranks, entry.link, case.optimizer, entry.precision)
      local key = core.json_encode { spec.model, system.name, ranks, entry.link or {},
        entry.path, system.all_reduce }
      if not state.done[key] then
        state.done[key] = true
        core.progress(("profiling and planning %s on %d ranks"):format(system.name, ranks))
        local options = train.run_options(entry, spec.model, e.at)
        local plan, sim, choice, tried = target.plan(spec, system)
        local run = base_record(system, spec, plan, sim, choice, tried)
        run.point, run.executor, run.link = nil, "cpu", entry.link
        run.prediction = { frozen = true, profile_ms = plan:info().profile_ms }
        for _, k in ipairs(TIMES) do run.prediction[k] = sim[k] end
        options.on_step = function(step, loss)
          core.progress(("%s: step %d of %d, loss %.4f"):format(system.name, step, entry.steps,
            loss))
        end
        local r = errors.call(system.at, nil, plan.run, plan, options)
        executed_record(run, r)
        state.runs[#state.runs + 1] = run
        core.write_output(("trace-%03d-%s-executed.json"):format(#state.runs, system.name),
          plan:trace { result = r, step = #r.losses })
        state.flush()
      end
    end
  end
end

local function document(e, state, over, params)
  return { schema = results.SCHEMA, experiment = e.name, title = e.title,
    recipe = core.recipe, machine = core.machine(), version = core.version,
    seed = core.args.seed or 1,
    over = over, params = params, runs = core.array(state.runs), claims = core.array(state.claims) }
end

local function run_all(e, state, over, params)
  local points = points_of(over)
  local cases = {}
  for i, point in ipairs(points) do cases[i] = resolve_case(e, point, params) end
  for _, entry in ipairs(e.targets) do
    local only = core.args.executor
    if not only or only == entry.kind then
      for i, point in ipairs(points) do
        if entry.kind == "simulate" then
          simulate_point(state, e, point, cases[i])
        else
          execute_point(state, e, entry, point, cases[i])
        end
      end
      state.flush()
    end
  end
end

--- Runs an experiment; writes results.json and traces, prints the tables, returns the results.
function M.run(e)
  train.stop_in_policy_mode()
  if getmetatable(e) ~= mt then
    errors.user("moe.run: give an experiment, as moe.experiment {...}")
  end
  local over, params = apply_set(e)
  local state = { runs = {}, claims = {}, done = {}, max_traces = 8 }
  function state.flush()
    core.write_output("results.json", core.json_encode(document(e, state, over, params), 1) .. "\n")
  end
  local ok, err = pcall(run_all, e, state, over, params)
  if #state.runs > 0 or ok then
    local R = results.new(state.runs)
    if ok then
      for i, claim in ipairs(e.claims) do state.claims[i] = claim(R) end
    end
    state.flush()
    report.print(e, R, state.claims)
    if ok then return R end
  end
  error(err, 0)
end

--- Everything but running: every point is resolved and every system planned for every target.
function M.check(e)
  local over, params = apply_set(e)
  local planned = 0
  for _, point in ipairs(points_of(over)) do
    local case = resolve_case(e, point, params)
    for _, entry in ipairs(e.targets) do
      for _, system in ipairs(case.systems) do
        if entry.kind == "simulate" then
          target.plan(target.cluster_spec(case.model, case.cluster, system, case.optimizer), system)
        else
          local model = model_lib.override(case.model, entry.model, entry.path .. ".model", e.at)
          local spec = target.cpu_spec(model, entry.ranks, entry.link, case.optimizer, "f32")
          spec.cost = { kind = "roofline" }
          target.plan(spec, system)
        end
        planned = planned + 1
      end
    end
  end
  return planned
end

return M
