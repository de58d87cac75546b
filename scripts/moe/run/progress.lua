-- What a terminal shows while an experiment runs: the job that runs, how long it and those after it
-- take if they take what those of their kind took so far, and a line for each one that is done.
-- core.status and core.row draw it (bindings/host/progress.h), where there is a terminal.
local core = require "moe.core"
local report = require "moe.results.report"

local M = {}

local jobs = { kinds = {}, at = 0, took = {} }

--- Jobs of these kinds, in this order, are to be done.
function M.begin(kinds) jobs = { kinds = kinds, at = 0, took = {} } end

-- Mean time of the jobs of a kind so far, s; nil before the first one.
local function expected(kind)
  local took = jobs.took[kind]
  return took and took.sum / took.n
end

--- The next job begins.
function M.job(what)
  jobs.at, jobs.since = jobs.at + 1, core.clock()
  local rest = 0
  for i = jobs.at + 1, #jobs.kinds do
    local one = expected(jobs.kinds[i])
    rest = rest and one and rest + one
  end
  core.status(("[%d/%d] %s"):format(jobs.at, #jobs.kinds, what), expected(jobs.kinds[jobs.at]),
    rest)
end

--- It is done; row: what to say of it, or nil.
function M.done(row)
  local kind = jobs.kinds[jobs.at]
  local took = jobs.took[kind] or { sum = 0, n = 0 }
  jobs.took[kind] = { sum = took.sum + core.clock() - jobs.since, n = took.n + 1 }
  if row then core.row(row) end
end

--- A finished run in a line.
function M.row(run)
  local parts = { ("%s on %s, %d %s"):format(report.system_text(run),
    run.provenance == "simulated" and run.cluster or run.executor, run.devices,
    run.provenance == "simulated" and "devices" or "ranks") }
  for name, value in pairs(run.point or {}) do
    parts[#parts + 1] = ("%s = %s"):format(name, tostring(value))
  end
  local times = ("%s %s ms"):format(run.provenance, report.ms(run.iteration_ms))
  if run.oom then times = "out of memory" end
  if run.prediction then times = ("%s, predicted %s ms"):format(times,
    report.ms(run.prediction.iteration_ms)) end
  return table.concat(parts, ", ") .. ": " .. times
end

return M
