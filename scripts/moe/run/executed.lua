-- Executes jobs (moe.run.jobs) and keeps their records (moe.run.session).
local core = require "moe.core"
local errors = require "moe.base.errors"
local jobs_lib = require "moe.run.jobs"
local progress = require "moe.run.progress"
local record = require "moe.run.record"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local session = require "moe.run.session"
local target = require "moe.spec.target"
local train = require "moe.run.train"
local values = require "moe.base.values"

local M = {}

local METRICS = record.METRICS

-- Returns the median, or another statistic, of a metric over the steps after the first. The first
-- step is slower (it touches every page and fills the caches), so it only counts if it is the only
-- one.
local function median_of(metrics, key, statistic)
  local list = values.new {}
  for i, m in ipairs(metrics) do
    if i > 1 or #metrics == 1 then list[#list + 1] = m[key] end
  end
  return list[statistic or "median"](list)
end

-- Returns, for each rank, the medians over steps of the rank's statistics.
local function ranks_of(steps)
  local out = core.array {}
  for rank in ipairs(steps[1] or {}) do
    local own = {}
    for i, step in ipairs(steps) do own[i] = step[rank] end
    out[rank] = {}
    for k in pairs(own[1]) do out[rank][k] = median_of(own, k) end
  end
  return out
end

-- A run is disturbed where others used more than core.most_others of the cores. The system counts
-- their time in steps of so many milliseconds per core, of which one does not count.
local COUNT_MS = 10

-- Returns whether a share of the cores' time, counted over `ms`, is too large.
local function too_much(others, ms) return others - COUNT_MS / ms > core.most_others end

-- Ranks of a paced run that are later than this share of the step are too late.
local BEHIND = 0.05

-- Returns what disturbed a run, or nil. ms: its duration.
local function disturbance(run, ms)
  local behind = 0
  for _, rank in ipairs(run.ranks) do behind = math.max(behind, rank.behind_ms) end
  if behind > BEHIND * run.iteration_ms then
    return ("ranks fell behind by %.0f%% of the step; give a larger pace than %g"):format(
      100 * behind / run.iteration_ms, run.pace)
  end
  local function taken(others, when)
    return ("other processes or the hypervisor took %.0f%% of the cores' time%s"):format(
      100 * others, when)
  end
  if too_much(run.others, ms) then return taken(run.others, "") end
  local p = run.prediction
  if too_much(p.rehearsal_others, p.rehearsal_ms) then
    return taken(p.rehearsal_others, " in the rehearsal of its prediction")
  end
end

-- Returns a line on a run whose ranks share the cores without a pace, or nil.
local function crowd(run)
  local cores = core.machine().cores
  if run.executor ~= "cpu" or run.processes or run.pace or run.devices <= cores then return end
  return ("%d ranks share %d cores, so that times say little; give a pace of %.2g or more"):format(
    run.devices, cores, 1.1 * run.devices / cores)
end

-- Adds the result r to the record of a run; statistic: over steps, "median" or "mean".
local function executed_record(run, r, statistic)
  for _, k in ipairs(results.OF_RESULT) do run[k] = r[k] end
  run.stopped = r.stopped or nil
  run.samples_ms, run.unigram_entropy = r.samples_ms, r.unigram_entropy
  run.planner_error, run.placements = r.planner_error, record.placements(r.placements)
  for _, k in ipairs(METRICS) do run[k] = median_of(r.metrics, k, statistic) end
  run.statistic, run.median_ms = statistic, median_of(r.metrics, "iteration_ms")
  run.pipeline = record.pipeline(r.pipeline)
  run.executed_peak_bytes, run.ranks = r.peak_bytes, ranks_of(r.ranks)
  run.launches_per_step = (r.launches_per_step or 0) > 0 and r.launches_per_step or nil
  run.drops = core.array {}
  for step, layers in ipairs(r.moe) do
    run.drops[step] = 0
    for _, layer in ipairs(layers) do run.drops[step] = run.drops[step] + layer.dropped end
  end
  if #r.machine_state > 0 then
    run.reference_ms = median_of(r.machine_state, "reference_ms")
    run.others = r.machine_state[#r.machine_state].others
    run.crowded = crowd(run)
    run.disturbed = disturbance(run, #r.samples_ms * values.new(r.samples_ms):mean())
  end
end

-- Steps of a turn. A shared host may change its speed within a second: with more steps per turn
-- the speeds that systems meet would differ by more than the one or two percent that a step takes
-- longer whose caches other runs have filled.
local TURN_STEPS = 1

-- Plans a job that is to be executed, which measures its ops. Returns { job, made, run = its
-- record, statistic = of its times over steps }; predict() adds number and trace as add_run
-- returns them.
local function planned(name, job)
  local entry = job.entry
  local made = target.plan(schema.merged(job.spec, {
    simulate = schema.merged(job.spec.simulate or {}, { links = true }) }), job.system)
  local run = schema.merged(record.of_job(name, job), record.of_plan(made))
  run.points, run.executor = core.array(job.points), entry.kind
  run.device_name = train.on_gpu(entry.kind) and core.gpu() or nil
  run.link, run.comm_priority, run.processes = entry.link, entry.comm_priority, core.processes
  run.simulate_ms = nil  -- not a simulation's time: it includes the profiling of ops
  for _, k in ipairs(results.OF_OPTIONS) do run[k] = entry[k] end
  for _, k in ipairs { "init", "tokens", "text", "attention", "resume_from" } do
    run[k] = entry[k]
  end
  run.parameters_from = entry.parameters
  return { job = job, made = made, run = run, statistic = made.sim.statistic }
end

-- The interval of a prediction holds the run's time in 9 of 10 runs. Its parts: FIT, the standard
-- deviation of the errors of undisturbed predictions (recipes/prediction_error.lua, seeds 1 and 2,
-- two quiet cores; recipes/README.md has the errors and the coverage); the noise of steps, of which
-- the rehearsed steps tell; how much the cores' speed varies: each step of the run is compared with
-- the rehearsal's step beside it; and how much the simulated steps differ, since a gate that learns
-- routes otherwise than in the rehearsal. The median of n samples has MEDIAN / sqrt(n) of their
-- standard deviation, and SERIAL times as much if neighbours are alike, as the steps of a host are
-- that changes its speed over seconds (seeds 61 and 73). The noise of steps is in three medians:
-- the rehearsal's, the run's and that of the rehearsal's steps beside the run. The distance between
-- quartiles is 1.35 standard deviations.
local FIT, QUARTILES, MEDIAN, SERIAL, NINETY = 0.015, 1.35, 1.25, 1.25, 1.645

-- Returns the distance between the quartiles of the samples divided by their median.
local function spread_of(samples)
  local sorted = schema.merged(samples, {})
  table.sort(sorted)
  local n = #sorted
  local quarter = math.floor(n / 4)
  return (sorted[n - quarter] - sorted[1 + quarter]) / sorted[1 + math.floor(n / 2)]
end

-- Returns half the relative width of the interval of a prediction, and what of it remains once the
-- routing is known. info: that of the plan; simulated: times of the simulated steps; spec: of the
-- job, of which `steps` are executed.
local function uncertainty(info, simulated, spec, steps)
  local own, rehearsed = math.max(1, steps - 1), spec.cost.rehearse
  -- The first step does not count; the loads of a routing model are known.
  local routes = spec.routing and 0 or spread_of(simulated) / QUARTILES
  local speed = SERIAL * MEDIAN * info.speed_spread / math.sqrt(own)
  local all_three = SERIAL * MEDIAN / QUARTILES * math.sqrt(2 / own + 1 / rehearsed)
  local known = FIT ^ 2 + speed ^ 2 + (all_three * info.rehearsal_spread) ^ 2
  return NINETY * math.sqrt(known + routes ^ 2), NINETY * math.sqrt(known)
end

-- The widest interval that is given: a wider one, after a rehearsal whose steps took very different
-- times, says nothing.
local WIDEST = math.log(10)

-- Predicts a planned run. since: when the rehearsals began.
local function predict_one(one, since)
  local made, run, at = one.made, one.run, one.job.system.at
  errors.call(at, made.plan.rehearse, made.plan, since)
  if one.job.spec.cost.rehearse > 0 then
    made.sim = errors.call(at, made.plan.simulate, made.plan,
      schema.merged(one.job.spec.simulate or {}, { links = true }))
  end
  local info = made.plan:info()
  run.prediction = { frozen = true, profile_ms = info.profile_ms,
    rehearsal_ms = info.rehearsal_ms, rehearsal_spread = info.rehearsal_spread,
    rehearsal_others = info.rehearsal_others, speed_spread = info.speed_spread,
    basis = info.cost, ops_alone = made.sim.ops_alone,
    disturbed_ops = info.num_disturbed > 0 and info.num_disturbed or nil }
  for _, k in ipairs(METRICS) do run.prediction[k] = made.sim[k] end
  if one.job.spec.cost.rehearse > 0 then
    local half, of_known_routing = uncertainty(info, made.sim.samples_ms, one.job.spec,
      one.job.entry.steps)
    if half <= WIDEST then
      one.of_known_routing = of_known_routing
      run.prediction.lo_ms = made.sim.iteration_ms * math.exp(-half)
      run.prediction.hi_ms = made.sim.iteration_ms * math.exp(half)
    end
  end
end

-- Predicts the planned runs, after a rehearsal just before them, and writes the predictions to
-- disk.
local function predict(all)
  local since = core.clock()
  for _, one in ipairs(all) do jobs_lib.within(one.job, predict_one, one, since) end
  for _, one in ipairs(all) do one.number, one.trace = session.add_run(one.run) end
  session.refresh()
end

-- Returns the options for the run of a planned job, and the name of the file for its routing.
local function options_of(one)
  local file = one.job.entry.record and one.trace .. one.job.entry.record
  return schema.merged(one.job.options, { record = file }), file
end

-- Returns a function of i that returns the result of the i-th run, or raises an error. Ranks that
-- are threads run in turns, which the records then say; others one after the other.
local function started(all)
  local entry, plans, options = all[1].job.entry, {}, {}
  for i, one in ipairs(all) do plans[i], options[i] = one.made.plan, options_of(one) end
  local threads = not train.on_gpu(entry.kind) and not core.processes
  local large = threads and core.too_large_together(plans) or nil
  if threads and not large then
    local turns = errors.call(all[1].job.at, core.run_in_turns, plans, options, TURN_STEPS)
    for _, one in ipairs(all) do one.run.turn_steps = TURN_STEPS end
    return function(i)
      return errors.call(all[i].job.system.at, core.result_in_turns, turns, i)
    end
  end
  return function(i)
    all[i].run.one_by_one = #all > 1 and large or nil
    return errors.call(all[i].job.system.at, plans[i].run, plans[i], options[i])
  end
end

-- The least time of compute that a step beside a run can tell of, relative to the median: cores do
-- not run at twice their middle speed, and what other programs take from transfers is no speed.
local LEAST_COMPUTE = 0.5

-- By how much slower a machine is simulated to learn how a step's time depends on its speed.
local SLOWER = 1.1

-- Returns the used slots of a run's first steps, as plan:simulate takes them; nil where the routing
-- was known before the run, and without MoE layers.
local function routed(spec, steps)
  if spec.routing or not steps[1] or #steps[1] == 0 then return nil end
  local used = {}
  for i = 1, math.min(#steps, target.MOST_PREDICTED) do
    used[i] = {}
    for l, layer in ipairs(steps[i]) do used[i][l] = layer.counts end
  end
  return used
end

-- Adds to the prediction of a run what it is at the speed that the machine had during the run, and
-- with the run's routing if that was not known before. The speed is that of the rehearsal's steps
-- beside the run, by kind of op: steps in turns meet caches that other programs have filled.
-- Compares it with the run's steps, each at the middle speed: the steps beside it say how slow the
-- machine was at the time of each. r: the result.
local function at_same_speed(one, r)
  local run, p, plan, beside = one.run, one.run.prediction, one.made.plan, r.beside
  if not beside then return end
  local executed = routed(one.job.spec, r.moe)
  local as_routed = executed and { executed = executed, steps = #executed }
  local function ms_at(slower, how)
    local asked = schema.merged(one.job.spec.simulate or {}, how or {})
    asked.beside, asked.slower = true, slower
    return errors.call(one.job.system.at, plan.simulate, plan, asked).iteration_ms
  end
  p.slower, p.same_speed_ms = beside.slower, ms_at(1)
  p.same_routing_ms = as_routed and ms_at(1, as_routed)
  local at_speed = p.same_routing_ms or p.same_speed_ms
  local share = (ms_at(SLOWER, as_routed) / at_speed - 1) / (SLOWER - 1)
  local steady = values.new {}
  for i, speed in ipairs(beside.steps) do
    local ms = run.samples_ms[i + 1]
    local compute = math.max(LEAST_COMPUTE, 1 + (speed - 1) / beside.compute_share)
    steady[i] = ms and ms / (1 + share * (compute - 1))
  end
  -- A run that ended after its first step has no other.
  p.steady_ms = #steady > 0 and (one.statistic == "mean" and steady:mean() or steady:middle())
    or run.iteration_ms
  p.error = p.steady_ms / at_speed - 1
  if one.of_known_routing then
    p.inside = math.abs(math.log(1 + p.error)) <= one.of_known_routing
  end
end

-- Completes the record of a run with its result, appends it to `done` if at least one step has run,
-- and writes the traces.
local function finished(one, r, done)
  local run, made = one.run, one.made
  if #r.losses == 0 then return end
  executed_record(run, r, one.statistic)
  run.prediction.frozen_error = run.iteration_ms / run.prediction.iteration_ms - 1
  run.prediction.error = run.prediction.frozen_error
  run.record = select(2, options_of(one))
  done[#done + 1] = run
  session.keep(one.number, run)  -- before anything that may be interrupted
  at_same_speed(one, r)
  core.write_output(one.trace .. "executed.json", made.plan:trace {
    { timelines = made.sim.timelines }, { timelines = r.timelines, step = #r.losses } })
  run.trace = one.trace .. "executed.json"
  session.keep(one.number, run)
end

local function names_of(jobs)
  local names = {}
  for i, job in ipairs(jobs) do names[i] = job.system.name end
  return table.concat(names, ", ")
end

--- Executes jobs of one entry of `run` and one case, in turns where that is possible. Appends their
--- records to `done`, also those of interrupted and of failed runs if at least one step has run.
--- Jobs whose plans are refused are appended to `refused` (jobs_lib.try). Raises the error of the
--- first run that failed at the end.
function M.run(name, jobs, done, refused)
  progress.job(("%s on %d ranks of %s"):format(names_of(jobs), jobs[1].spec.ranks,
    jobs[1].entry.kind))
  local all = {}
  for _, job in ipairs(jobs) do
    all[#all + 1] = jobs_lib.try(refused, job, planned, name, job)
  end
  if #all == 0 then return progress.done() end
  predict(all)
  local result, first_error = started(all), nil
  for i, one in ipairs(all) do
    local ok, r = pcall(jobs_lib.within, one.job, function()
      local r = result(i)
      finished(one, r, done)
      if r.stop_reason then errors.failed(r, one.job.system.at) end
    end)
    if not ok then
      first_error = first_error or r
      if not one.run.turn_steps then break end
    end
  end
  local rows = {}
  for _, one in ipairs(all) do
    if one.run.iteration_ms then rows[#rows + 1] = progress.row(one.run) end
  end
  progress.done(rows)
  if first_error then error(first_error, 0) end
end

return M
