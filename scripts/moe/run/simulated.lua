-- Simulates jobs (moe.run.jobs) and keeps their records (moe.run.session).
local core = require "moe.core"
local errors = require "moe.base.errors"
local jobs_lib = require "moe.run.jobs"
local progress = require "moe.run.progress"
local rates = require "moe.results.rates"
local record = require "moe.run.record"
local schema = require "moe.base.schema"
local session = require "moe.run.session"
local simulations = require "moe.run.simulations"
local sweep = require "moe.run.sweep"

local M = {}

M.MAX_TRACES = 8  -- number of simulated runs with a trace file

--- Returns the record of a job of the experiment `name`. outcome: what simulations.outcome returns.
function M.record(name, job, outcome)
  local run = schema.merged(record.of_job(name, job), outcome)
  run.point, run.provenance, run.assumed = job.case.point, "simulated", job.assumed
  run.executor = job.spec.simulate.executor or "simulate"
  return schema.merged(run, rates.of(job.case.model, job.spec, job.case.cluster, run.iteration_ms))
end

--- Simulates a job with constants at the ends of their bands, and returns its record. ends: name of
--- an assumed constant -> "lo" or "hi".
function M.at_ends(name, job, ends)
  local spec = jobs_lib.simulated_spec(job.case, ends, job.spec.edits)
  spec.simulate = job.spec.simulate
  return M.record(name, schema.merged(job, { spec = spec }),
    simulations.outcome(spec, job.system, {}))
end

--- Simulates the jobs; writes the record of each to disk as soon as the jobs before it are done,
--- and appends it to `done`, or the job to `refused` (jobs_lib.try). Calls each(run, job). A record
--- that the library cannot write is left out, and its error raised after the other jobs.
function M.run(name, jobs, done, refused, each)
  local all, first, failed = {}, session.num_runs(), nil
  for i, job in ipairs(jobs) do
    all[i] = schema.merged(job,
      { options = { overlap = true, traced = first + i <= M.MAX_TRACES } })
  end
  local function begin(i)
    progress.job(("simulating %s on %d %s devices"):format(jobs[i].system.name, jobs[i].spec.ranks,
      jobs[i].spec.cluster.name))
  end
  local function keep(i, outcome, trace)
    local run = M.record(name, jobs[i], outcome)
    done[#done + 1] = run
    local number, file = session.add_run(run)
    if all[i].options.traced then
      run.trace = file .. "simulated.json"
      core.write_output(run.trace, trace)
      session.keep(number, run)
    end
    each(run, jobs[i])
    progress.done { progress.row(run) }
  end
  sweep.each(all, refused, begin, function(i, outcome, trace)
    if not outcome then return progress.done() end
    local before = #done
    local ok, err = xpcall(keep, errors.with_traceback, i, outcome, trace)
    if ok then return end
    if core.kind_of(err) ~= "lua" then error(err, 0) end
    failed, done[before + 1] = failed or err, nil
    progress.done()
  end)
  if failed then error(failed, 0) end
end

return M
