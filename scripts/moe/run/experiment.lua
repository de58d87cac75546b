-- moe.experiment{...}: checks an experiment (points, systems, targets and claims). M.run executes
-- it: it writes results.json and traces, and prints tables.
local band_lib = require "moe.results.band"
local claims = require "moe.results.claims"
local core = require "moe.core"
local errors = require "moe.base.errors"
local executed = require "moe.run.executed"
local jobs_lib = require "moe.run.jobs"
local parts = require "moe.run.parts"
local points = require "moe.run.points"
local progress = require "moe.run.progress"
local report = require "moe.results.report"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local sensitivity = require "moe.results.sensitivity"
local session = require "moe.run.session"
local simulated = require "moe.run.simulated"
local simulations = require "moe.run.simulations"
local settings = require "moe.run.settings"
local target = require "moe.spec.target"
local train = require "moe.run.train"

local M = {}

local made = {}  -- by the recipe
local all_refused, num_runs = {}, 0  -- of all experiments

local mt = schema.class("experiment", "an experiment, for example moe.experiment {...}")

M.FIELDS = {
  name = { type = "string", required = true, doc = "the experiment's name in results" },
  title = { type = "string", default = "", doc = "title of the experiment's tables and page" },
  over = { type = "table", default = {},
    doc = "name -> list of values; all combinations are the points" },
  params = { type = "table", default = {}, doc = "name -> value, which --set may replace" },
  case = { type = "function", as = "fun(point: table): moe.Case|false",
    doc = "returns the model, cluster and systems of a point, or false if there is no such point" },
  run = { type = "list", of = { type = "any" }, default = { "simulate" },
    least = 'entry, as "simulate" or { "cpu", ... }',
    as = "(string|moe.SimulateEntryFields|moe.CpuRunFields|moe.CudaRunFields)[]",
    doc = 'a list of "simulate" or { "simulate", steps = }, { "cpu", ranks =, steps =, '
      .. 'model = {...}, link = {...} }, { "cuda", fields as for cpu }' },
  claims = { type = "list", of = { type = "claim" }, default = {}, doc = "list of moe.claim" },
  show = { type = "function", as = "fun(R: moe.Results)",
    doc = "prints tables in place of the usual ones for simulated runs" },
  sensitivity = { type = "list", of = { type = "any" }, default = {},
    as = "(string|moe.SensitivityNumberFields)[]",
    doc = "numbers of which to show how they move with each assumed constant: a field of "
      .. "simulated runs, of which each system's median over the points is taken, or a table with "
      .. "name, unit and value" },
  band = { type = "string", enum = band_lib.KINDS, default = "each",
    doc = "where claims and sensitivities are evaluated: each, at both ends of each assumed "
      .. "constant; corners, also at all combinations of ends; none, only at their values" },
}
for name in pairs(jobs_lib.CASE) do
  M.FIELDS[name] = { type = "any", doc = "in place of case, for an experiment with one point",
    as = name == "systems" and "moe.System[]" or "moe." .. name:gsub("^%l", string.upper) }
end

M.CUDA = schema.merged(train.REAL_RUN, {
  model = { type = "table", doc = "fields that replace those of the point's model on this target" },
  optimizer = target.OTHER_OPTIMIZER,
  systems = { type = "list", of = { type = "string" },
    doc = "names of the systems to execute; default: all" },
})

M.CPU = schema.merged(M.CUDA, {
  rehearse = { type = "integer", lo = 0, hi = 1000, default = 8,
    doc = "steps of the program without overlap that are run first and from which predictions "
      .. "learn; 0: predict from the times of single ops only" },
})

M.SIMULATE = {
  steps = { type = "integer", lo = 1, hi = 1e6,
    doc = "number of steps to simulate, whose mean is reported (steps differ under a routing "
      .. "model). Default: 1, or 8 if a system places experts" },
  edits = { type = train.EDITS,
    doc = "changes of the plans' graphs, as for the executor cuda; default: none" },
}

local ENTRIES = {}  -- fields of an entry, indexed by executor
for _, row in ipairs(core.table "executors") do
  ENTRIES[row.name] = not train.is_real(row.name) and M.SIMULATE or row.gpu and M.CUDA or M.CPU
end

local function check_entry(entry, i, at)
  local path, kind = ("experiment.run[%d]"):format(i), entry
  if type(entry) == "table" and not getmetatable(entry) then kind = entry[1] end
  if type(kind) ~= "string" then
    schema.refuse(path, entry, 'the name of an executor, or a table that begins with it, as '
      .. '{ "cpu", ... }; executors: ' .. table.concat(schema.keys_of(ENTRIES), ", "), at)
  end
  if not ENTRIES[kind] then schema.unknown(path, "executor", kind, schema.keys_of(ENTRIES), at) end
  local given = type(entry) == "table" and schema.merged(entry, {}) or {}
  given[1] = nil
  return schema.merged(schema.check(ENTRIES[kind], given, path, at), { kind = kind, path = path,
    index = i, fields = ENTRIES[kind] })
end

local run_as = {}  -- the experiments that were run, indexed by name

-- Raises a user error unless the experiment is run for the first time and no other has its name,
-- by which tables, page and results.json tell experiments apart.
local function claim_name(e)
  local other = run_as[e.name]
  run_as[e.name] = e
  if not other then return end
  errors.user(other == e and ("experiment '%s': is run a second time; moe.run runs it, and so does "
    .. "returning it from the recipe: do one of the two"):format(e.name)
    or ("experiment.name: '%s' is the name of another experiment that this recipe runs (line %s); "
    .. "give each a name of its own"):format(e.name, other.at and other.at.line or "?"), e.at)
end

--- Makes an experiment of a table of fields.
M.new = schema.taking(M.FIELDS, "experiment", function(e, at)
  points.check(e.over, e.params, at)
  e.entries = {}
  for i, entry in ipairs(e.run) do
    e.entries[i] = check_entry(entry, i, at)
  end
  local direct = {}
  for name in pairs(jobs_lib.CASE) do
    if e.case and e[name] ~= nil then
      errors.user(("experiment.case: give either case or %s, not both"):format(name), at)
    end
    direct[name] = e[name]
  end
  if not e.case and next(e.over) then
    errors.user("experiment.over: has no effect without case = function(point); give `case` too",
      at)
  end
  e.case_path = e.case and "experiment.case" or "experiment"
  e.case = e.case or function() return direct end
  e.at = at
  return schema.object(e, mt)
end)

--- moe.experiment{...}: an experiment that the recipe is to run or return (M.check_run).
function M.experiment(t)
  made[#made + 1] = M.new(t)
  return made[#made]
end

--- Returns the experiments in a value, one or a list, as recipes return it; nil for another value.
function M.returned(value)
  if schema.is_a("experiment", value) then return { value } end
  local is_list = type(value) == "table" and getmetatable(value) == nil and #value > 0
  for _, e in ipairs(is_list and value or {}) do
    is_list = is_list and schema.is_a("experiment", e)
  end
  return is_list and value or nil
end

--- Forgets all experiments: another text of the session begins.
function M.forget() made, run_as, all_refused, num_runs = {}, {}, {}, 0 end

--- Raises a user error for an experiment that the recipe made and neither ran nor returned.
--- returned: a list of experiments.
function M.check_run(returned)
  local known = {}
  for _, e in ipairs(returned) do known[e] = true end
  for _, e in ipairs(made) do
    if not known[e] and run_as[e.name] ~= e then
      errors.user(("experiment '%s': was made but neither run nor returned; return it from the "
        .. "recipe, in a list if there are several: return { a, b }"):format(e.name), e.at)
    end
  end
end

-- Checks what sensitivities are asked for. Raises a user error for a field of simulated runs if no
-- entry of `run` is simulated.
local function check_sensitivity(e)
  sensitivity.asked(e)
  local any, only = false, core.args.executor
  for _, entry in ipairs(e.entries) do
    local real = train.is_real(entry.kind)
    any = any or not real
    if not real and (not only or only == entry.kind) then settings.reach "sensitivity" end
  end
  for i, field in ipairs(any and {} or e.sensitivity) do
    if type(field) == "string" then
      errors.user(("experiment.sensitivity[%d]: '%s' is of simulated runs, but no entry of "
        .. "experiment.run is simulated; add \"simulate\" to it, or omit the field"):format(i,
        field), e.at)
    end
  end
end

-- Returns the experiment after the settings of the command line: { e, over, params }; with_jobs()
-- adds `jobs`.
local function prepared(e, at)
  schema.field({ type = "experiment", required = true }, e,
    schema.is_a("experiment", e) and "experiment" or "moe.run", at)
  settings.reach "executor"
  check_sensitivity(e)  -- its errors come before earlier results are moved
  local p = { e = e }
  p.over, p.params = points.after_set(e)
  return p
end

local function with_jobs(p)
  local refused = {}
  local jobs = jobs_lib.all(p.e, p.over, p.params, refused)
  p.jobs = parts.kept(jobs, p.over, function(job) return job.points[1] end)
  p.refused = parts.kept(refused, p.over, function(r) return r.point end)
  return p
end

-- Returns experiments as prepared() does. Raises a user error for an option of the command line
-- that has no effect on any of them.
local function all_prepared(experiments)
  local all, at = {}, errors.here()
  for i, e in ipairs(experiments) do all[i] = prepared(e, at) end
  settings.check "names"
  for _, p in ipairs(all) do with_jobs(p) end
  jobs_lib.check_executor()
  settings.check()
  return all
end

local function plan_all(p)
  if p.refused[1] then jobs_lib.refuse(p.refused) end
  band_lib.new(p.e, p.jobs)
  for _, job in ipairs(p.jobs) do
    if job.entry then job.spec.cost = { kind = "roofline" } end
    jobs_lib.within(job, target.plan, job.spec, job.system)
  end
end

--- Returns why a system of the experiment cannot be planned, a user error; nil: all can be.
function M.refusal(e)
  local ok, err = errors.try(plan_all, with_jobs(prepared(e, errors.here())))
  return not ok and err or nil
end

--- Checks experiments without running them: calls `case` for every point and plans every system for
--- every target. Says the number of plans.
function M.check_all(experiments)
  for _, p in ipairs(all_prepared(experiments)) do
    claim_name(p.e)
    plan_all(p)
    core.say(("ok: %s, %d plans"):format(p.e.name, #p.jobs))
  end
end

-- Evaluates the sensitivities that are asked for; appends them to `moved` as they are complete.
local function run_sensitivity(e, R, band, moved)
  local numbers, kinds = sensitivity.numbers(sensitivity.asked(e), R), {}
  for i in ipairs(numbers) do kinds[i] = "sensitivity" end
  progress.begin(kinds)
  for _, number in ipairs(numbers) do
    progress.job("sensitivity of " .. number.name)
    local record = sensitivity.evaluate(e, number, band)
    if record then
      moved[#moved + 1] = record
      session.add("sensitivity", record)
    end
    progress.done()
  end
end

-- Runs all jobs, then evaluates the claims and sensitivities. Appends runs to R.runs, verdicts to
-- `verdicts`, sensitivities to `moved` and refused jobs to `refused` as they are complete, so that
-- after an error these hold all complete ones. Calls simulated_done() as soon as only executed runs
-- are left, which take the most time.
local function run_all(e, jobs, R, verdicts, moved, refused, simulated_done)
  local band, job_of, kinds = band_lib.new(e, jobs), {}, {}
  local groups, last = jobs_lib.groups(jobs), nil
  for i, group in ipairs(groups) do
    local path = group[1].entry and group[1].entry.path
    for _ = 1, path and 1 or #group do kinds[#kinds + 1] = path or "simulate" end
    if not group[1].entry then last = i end
  end
  progress.begin(kinds)
  for i, group in ipairs(groups) do
    if last and i == last + 1 and not e.show then simulated_done() end  -- a show may ask for all
    if group[1].entry then
      executed.run(e.name, group, R.runs, refused)
    else
      simulated.run(e.name, group, R.runs, refused, function(run, job) job_of[run] = job end)
    end
  end
  if parts.asked() then return end  -- the numbers of claims are of all points
  band:start(R, job_of)
  kinds = {}
  for i in ipairs(e.claims) do kinds[i] = "claim" end
  progress.begin(kinds)
  for i, claim in ipairs(e.claims) do
    progress.job("claim " .. claim.id)
    verdicts[i] = claims.evaluate(claim, band)
    session.add("claim", verdicts[i])
    progress.done()
  end
  run_sensitivity(e, R, band, moved)
end

local function say_found(counts)
  if counts.found == 0 then return end
  core.say(("%d of %d simulations were done before and were taken from the cache"):format(
    counts.found, counts.found + counts.done))
end

--- Raises the first error for which runs were refused, if any were.
function M.check_refused()
  local n = #all_refused
  if n == 0 then return end
  jobs_lib.refuse(all_refused, ("; refused: %d, run: %d"):format(n, num_runs))
end

-- Runs a prepared experiment: writes results.json and traces, prints the tables, returns the
-- results. If a run fails, the complete runs are written and printed, then the error is raised
-- again.
local function run(p)
  local e, R, verdicts, moved = p.e, results.new {}, {}, {}
  if #p.jobs + #p.refused == 0 and not parts.asked() then return R end  -- left out by --executor
  local info = { name = e.name, title = e.title, over = points.list_labels(p.over),
    params = points.labels(p.params), set = core.args.set, planned = #p.jobs,
    points = core.args.points }
  session.add("experiment", info)
  local since, refused, before = simulations.counts(), p.refused, #p.refused
  local said
  local function say_simulated(complete)
    if said then return end
    said = true
    local changed = settings.said(p.params)
    if changed then core.say(changed) end
    report.print_simulated(e, R, complete, refused)
  end
  local ok, err = xpcall(function()
    run_all(e, p.jobs, R, verdicts, moved, refused,
      function() say_simulated(#refused == 0) end)
  end, errors.with_traceback)
  if ok and #R.runs == 0 and refused[1] then ok, err = pcall(jobs_lib.refuse, refused) end
  info.planned, num_runs = #p.jobs - #refused + before, num_runs + #R.runs
  info.refused = #refused > 0 and refused or nil
  for _, r in ipairs(refused) do table.insert(all_refused, r) end
  if ok or #R.runs > 0 then
    core.undisturbed(function()
      info.simulations = simulations.counts(since)
      session.flush()
      say_simulated(ok and #refused == 0)
      report.print(R, verdicts, moved, refused)
      local missing = results.incomplete(#R.runs, info.planned)
      if missing then core.say(missing) end
      say_found(info.simulations)
    end)
  end
  if not ok then error(err, 0) end
  return R
end

--- Runs the experiments that a recipe returned; returns the results of each.
function M.run_all(experiments)
  errors.stop_in "policies"
  local all = all_prepared(experiments)
  for _, p in ipairs(all) do claim_name(p.e) end
  for i, p in ipairs(all) do all[i] = run(p) end
  return all
end

--- Runs an experiment and returns its results (see run()).
function M.run(e)
  local at = errors.here()
  errors.stop_in "policies"
  local p = prepared(e, at)
  claim_name(e)
  settings.check "sure"
  with_jobs(p)
  settings.check "sure"
  if core.mode == "check" then plan_all(p) end
  errors.stop_in "check"
  return run(p)
end

return M
