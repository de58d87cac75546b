-- Jobs: the simulations and executions of an experiment. Here a job is one system at one point (or
-- at several points that need the same execution) on one target, not a set of processes.
local core = require "moe.core"
local errors = require "moe.base.errors"
local grid_lib = require "moe.spec.grid"
local model_lib = require "moe.spec.model"
local outputs = require "moe.run.outputs"
local points = require "moe.run.points"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"
local settings = require "moe.run.settings"
local simulations = require "moe.run.simulations"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"
local train = require "moe.run.train"

local M = {}

--- The fields that `case` returns for a point.
M.CASE = {
  model = { type = "model", required = true, doc = "moe.model" },
  cluster = { type = "cluster", doc = "moe.cluster; required for simulation" },
  grid = grid_lib.FIELD,
  systems = { type = "list", of = { type = "system" }, distinct = true, required = true,
    least = "system", doc = "list of moe.system" },
  optimizer = target.OPTIMIZER_FIELD,
  link = { type = train.LINK, doc = "in place of the link of executed entries of `run`" },
}

-- Raises a user error if a case's link is not used, or replaces one.
local function check_link(e, case)
  local used = false
  for _, entry in ipairs(case.link and e.entries or {}) do
    used = used or train.is_real(entry.kind)
    if entry.link then
      errors.user(("%s.link: %s gives a link too; omit one of the two"):format(e.case_path,
        entry.path), e.at)
    end
  end
  if case.link and not used then
    errors.user(e.case_path .. ".link: no entry of experiment.run is executed, so the link has no "
      .. "effect; omit it", e.at)
  end
end

-- Returns what f(...) returns. Errors that f raises have the texts `where` and name the coordinates
-- that are equal in all of the points.
local function within(all, where, f, ...)
  for _, name in ipairs(schema.keys_of(all[1])) do
    local common = true
    for _, point in ipairs(all) do common = common and point[name] == all[1][name] end
    if common then where[#where + 1] = ("%s = %s"):format(name, tostring(all[1][name])) end
  end
  return errors.within(where, f, ...)
end

-- Returns what f(...) returns. If f raises a user error, appends { point, system = its name,
-- entry = its number in `run` and its executor, reason } to the list `refused` and returns nil.
local function allowed(refused, point, system, entry, executor, f, ...)
  local ok, result = errors.try(f, ...)
  if ok then return result end
  refused[#refused + 1] = { point = point, system = system, entry = entry,
    executor = executor, reason = result.message }
end

--- Raises the error for which the first of `refused` was refused, with `more` appended.
function M.refuse(refused, more)
  error(core.failure("user", refused[1].reason .. (more or "")), 0)
end

-- Returns the checked case of a point, or nil if the recipe's `case` returns false, which means
-- that there is no such point.
local function resolve_case(e, point, params)
  local given = schema.namespace("case", "coordinate", schema.merged(params, point))
  local made = policy.without_definitions(function() return e.case(given) end)
  if made == false then return nil end
  if made == nil then
    errors.user(("%s: returned nothing; return a table of the point's case, or false where there "
      .. "is no such point"):format(e.case_path), e.at)
  end
  local case = schema.check(M.CASE, made, e.case_path, e.at)
  case.point = points.labels(point)
  settings.case(case, case.point, true)
  check_link(e, case)
  return case
end

--- Returns the plan specification of a simulated job. ends: name of an assumed constant -> "lo" or
--- "hi", or nil; edits: changes of the graph (moe.train's field `edits`), or nil.
function M.simulated_spec(case, ends, edits)
  local spec = target.cluster_spec(case.model, case.cluster, case.optimizer, ends)
  spec.edits = edits
  return spec
end

-- Returns the options of a case's simulations. All systems of the case simulate the same number of
-- steps. A run under a routing model is predicted step by step, since its loads are known: a
-- placement may begin to move experts in any of them. Predictions are of the statistic over steps
-- that the executed run reports: the median, since single steps of a machine say little, or the
-- mean if a system of the case places experts, which takes time in few of the steps.
local function simulation_of(entry, case)
  local real = train.is_real(entry.kind)
  local steps = not real and entry.steps
    or real and case.model.routing and math.min(entry.steps, target.MOST_PREDICTED)
  local statistic = real and "median" or nil
  for _, system in ipairs(case.systems) do
    if target.places(system) then
      steps, statistic = steps or target.PLACED_STEPS, real and "mean_after_first" or nil
    end
  end
  return { steps = steps or nil, executor = not real and entry.kind or nil, statistic = statistic }
end

local function simulate_jobs(e, entry, case)
  if not case.cluster then
    errors.user(e.case_path .. (': cluster is missing; the executor "%s" needs it'):format(
      entry.kind), e.at)
  end
  entry = settings.entry(entry, case.point, entry, e.at)
  for _, head in ipairs { "cluster", "grid", "model", "system" } do settings.used(head) end
  local jobs = {}
  for i, system in ipairs(case.systems) do
    local own = schema.merged(case, { cluster = system_lib.cluster_of(system, case.cluster) })
    jobs[i] = { system = system, case = own, spec = M.simulated_spec(own, nil, entry.edits),
      assumed = schema.merged(own.model.assumed, own.cluster.assumed) }
    jobs[i].spec.simulate = simulation_of(entry, case)
  end
  return jobs
end

local function wanted(list, name)
  for _, n in ipairs(list or { name }) do
    if n == name then return true end
  end
  return false
end

local function real_jobs(e, entry, case)
  entry = schema.merged(entry, { link = case.link })
  entry = settings.entry(entry, case.point, schema.merged({ optimizer = case.optimizer }, entry),
    e.at)
  local model = model_lib.override(case.model, entry.model, entry.path .. ".model", e.at)
  local own = ("run.%s.model"):format(entry.kind)
  settings.used("model", function(key)
    return settings.gives(own .. "." .. key)
      or entry.model and (entry.model[key] ~= nil or model.given[key] == nil)
  end)
  model = settings.model(model, case.point, own)
  local ranks = settings.ranks(entry.ranks)
  local jobs, names = {}, {}
  for i, system in ipairs(case.systems) do
    names[i] = system.name
    if wanted(entry.systems, system.name) then
      settings.used "system"
      settings.used "grid"
      local spec = target.real_spec(entry.kind, model, ranks, entry.link,
        entry.optimizer or case.optimizer, entry.precision)
      -- A rehearsal runs on threads of this process, so its times would be wrong for a run on
      -- several processes or on a GPU.
      local threads = not train.on_gpu(entry.kind) and not core.processes
      spec.cost.rehearse = threads and entry.rehearse or 0
      spec.cost.check_finite, spec.cost.pace = entry.check_finite, entry.pace
      spec.own_attention = train.own_attention(entry.kind, entry, entry.path, e.at)
      spec.edits = train.edits(entry.kind, entry, entry.path, e.at)
      spec.cost.blocks = train.blocks(entry.kind, entry)
      spec.simulate = simulation_of(entry, case)
      local options = train.run_options(entry.kind, entry, spec, entry.path, e.at)
      spec.cost.data = options.data
      jobs[#jobs + 1] = { system = system, case = case, entry = entry, spec = spec,
        options = options }
    end
  end
  for i, name in ipairs(entry.systems or {}) do
    if not wanted(names, name) then
      schema.unknown(("%s.systems[%d]"):format(entry.path, i), "system", name, names, e.at)
    end
  end
  return jobs
end

-- Returns, as a JSON string, everything that an executed job depends on; points for which this is
-- equal share one execution. The names of the model and of the cluster are not in the string.
local function key_of(job)
  local alternatives = {}
  for i, candidates in ipairs(system_lib.expand(job.system)) do
    alternatives[i] = {}
    for j, c in ipairs(candidates) do
      alternatives[i][j] = { all_reduce = c.all_reduce, packing = c.packing, choice = c.choice,
        pipeline = c.pipeline,
        stages = core.array(system_lib.describe(c)) }
    end
  end
  local spec = job.spec
  return core.json_encode { entry = job.entry.path, set = settings.labels("run", job.case.point),
    link = job.entry.link, system = job.system.name,
    alternatives = core.array(alternatives), model = schema.merged(spec.model, { name = "" }),
    architecture = spec.architecture,
    gate = spec.gate and spec.gate.options, routing = spec.routing and spec.routing.name,
    fill = spec.fill, optimizer = spec.optimizer, simulate = spec.simulate }
end

-- Raises a user error if two executed runs would write the same checkpoint or parameters. (Recorded
-- traces cannot collide: their names contain the run's number.)
local function claim_checkpoints(jobs)
  for i, job in ipairs(jobs) do
    local entry = job.entry
    if entry then
      local who, at = ("system '%s' of %s"):format(job.system.name, entry.path), {}
      for _, name in ipairs(schema.keys_of(job.case.point)) do
        at[#at + 1] = ("%s = %s"):format(name, tostring(job.case.point[name]))
      end
      if #at > 0 then who = ("%s at %s"):format(who, table.concat(at, ", ")) end
      outputs.claim(entry.checkpoint_to, who, entry.path .. ".checkpoint_to", job.at,
        i == 1 and entry.checkpoint_to == entry.resume_from)
      outputs.claim(entry.parameters_to, who, entry.path .. ".parameters_to", job.at)
    end
  end
end

-- Returns the jobs of an entry over all cases. Points that lead to the same executed run share one
-- job. Cases that are refused are appended to `refused`; if all are, the first error is raised.
local function jobs_of(e, entry, cases, refused)
  local all, by_key, here = {}, {}, {}
  for _, case in ipairs(cases) do
    core.load_on()
    local real = train.is_real(entry.kind)
    local names = {}
    for i, system in ipairs(case.systems) do names[i] = system.name end
    local jobs = allowed(here, case.point, table.concat(names, ", "), entry.index,
      entry.kind, within, { case.point }, {}, real and real_jobs or simulate_jobs, e, entry, case)
    for _, job in ipairs(jobs or {}) do
      local key = real and key_of(job) or #all
      if not by_key[key] then
        job.points, job.index, job.at = {}, entry.index, e.at
        by_key[key], all[#all + 1] = job, job
      end
      table.insert(by_key[key].points, case.point)
    end
  end
  if #all == 0 and here[1] then M.refuse(here) end
  for _, r in ipairs(here) do refused[#refused + 1] = r end
  return all
end

--- As within(), but a user error is appended to `refused`, and then nil is returned.
function M.try(refused, job, f, ...)
  return allowed(refused, job.points[1], job.system.name, job.index,
    job.entry and job.entry.kind or "simulate", M.within, job, f, ...)
end

--- Returns what f(...) returns. Errors that f raises name the job's system and point.
function M.within(job, f, ...)
  return within(job.points, { ("system '%s'"):format(job.system.name) }, f, ...)
end

local unselected  -- the first experiment of which --executor selected nothing; false: it selected

--- Raises a user error if --executor selected no entry of any experiment.
function M.check_executor()
  if not unselected then return end
  schema.unknown("--executor", "executor for this recipe", core.args.executor, unselected.have,
    unselected.at)
end

-- Notes that --executor selects none of an experiment's entries, which are for the executors
-- `have`; says so if other experiments of the recipe may have such entries.
local function left_out(e, have)
  local only = core.args.executor
  if unselected == nil then unselected = { have = have, at = e.at } end
  local named = errors.mentions(only) or train.on_gpu(only) and errors.mentions "cpu"
  if train.is_real(only) and not named then M.check_executor() end
  core.say(("%s is left out by --executor %s, which selects none of its entries of run: %s"):format(
    e.name, only, table.concat(have, ", ")))
end

-- Returns the entries of `run` that --executor selects. With --executor cuda, entries for the CPU
-- executor are run on the GPU if the recipe has no entry for cuda.
local function entries_of(e)
  local only, kept, have = core.args.executor, {}, {}
  for _, entry in ipairs(e.entries) do have[entry.kind] = true end
  for _, entry in ipairs(e.entries) do
    local on_cpu = train.is_real(entry.kind) and not train.on_gpu(entry.kind)
    if only and train.on_gpu(only) and not have[only] and on_cpu then
      entry = schema.merged(entry, { kind = only })
    end
    if not only or only == entry.kind then kept[#kept + 1] = entry end
  end
  for _, entry in ipairs(kept) do
    train.check_executor(entry.kind, only and "--executor " .. only or entry.path, e.at)
  end
  if #kept == 0 then left_out(e, schema.keys_of(have)) else unselected = false end
  return kept
end

-- Returns the jobs in lists of those whose points differ in the coordinate `name` alone.
local function across(name, jobs)
  local lists, by_rest = {}, {}
  for _, job in ipairs(jobs) do
    for _, point in ipairs(job.points) do
      local rest = { job.index, job.system.name }
      for _, other in ipairs(schema.keys_of(point)) do
        if other ~= name then rest[#rest + 1] = ("%s=%s"):format(other, tostring(point[other])) end
      end
      local key = table.concat(rest, "\n")
      if not by_rest[key] then
        by_rest[key] = {}
        lists[#lists + 1] = by_rest[key]
      end
      table.insert(by_rest[key], job)
    end
  end
  return lists
end

local function equal(a, b)
  if a.entry then return a == b end
  local first = simulations.key(a.spec, a.system, {})
  return first ~= nil and first == simulations.key(b.spec, b.system, {})
end

-- Raises a user error for a coordinate of the recipe on which no job depends, if there are
-- simulations: executions alone may share what they run over many points.
local function check_coordinates(e, over, jobs)
  if core.args.executor then return end  -- it may matter to entries that are left out
  local set = settings.replacing()
  for _, name in ipairs(schema.keys_of(e.over)) do
    local simulated, differ = false, false
    for _, list in ipairs(#over[name] > 1 and across(name, jobs) or {}) do
      for i = 2, differ and 0 or #list do
        simulated = simulated or not list[1].entry
        differ = differ or not equal(list[1], list[i])
      end
    end
    if simulated and not differ then
      local by, advice = "", "let `case` read it, or omit it"
      if set ~= "" then
        by = " with " .. set
        advice = ("omit the setting, or give one value by --set %s=<value>"):format(name)
      end
      errors.user(("experiment.over.%s: has no effect%s, since the runs at its %d values are "
        .. "equal; %s"):format(name, by, #over[name], advice), e.at, "experiment.over." .. name)
    end
  end
end

--- Returns all jobs of an experiment at the points of `over`. A job is { system, case, spec,
--- points, index = number of its entry in run, at = the recipe's line }; a simulated job also has
--- `assumed`, an executed job `entry` and `options`. Appends to `refused` what cannot be run, {
--- point, system, entry, reason } each; raises the first such error if nothing is left.
function M.all(e, over, params, refused)
  local cases, all = {}, {}
  settings.replacing()  -- those of another experiment
  for _, point in ipairs(schema.product(over)) do
    core.load_on()
    local label = points.labels(point)
    cases[#cases + 1] = allowed(refused, label, "-", nil, nil, within, { label }, {}, resolve_case,
      e, point, params)
  end
  if #cases == 0 and refused[1] then M.refuse(refused) end
  if #cases == 0 then
    errors.user(e.case_path .. ": returned false for every point, so there is nothing to run", e.at)
  end
  for _, entry in ipairs(entries_of(e)) do
    local jobs = jobs_of(e, entry, cases, refused)
    claim_checkpoints(jobs)
    for _, job in ipairs(jobs) do all[#all + 1] = job end
  end
  check_coordinates(e, over, all)
  return all
end

--- Returns the jobs as lists of those that belong together, in order: the executed jobs of one
--- entry and one case; the simulated jobs of one entry.
function M.groups(jobs)
  local groups, last = {}, nil
  for _, job in ipairs(jobs) do
    local first = last and last[1]
    if first and first.index == job.index and (not job.entry or first.case == job.case) then
      last[#last + 1] = job
    else
      last = { job }
      groups[#groups + 1] = last
    end
  end
  return groups
end

return M
