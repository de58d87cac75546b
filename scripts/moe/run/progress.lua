-- The display on a terminal while an experiment runs: the current job (moe.run.jobs), the expected
-- time of this and the remaining jobs (for each the mean time of the last finished jobs of its
-- kind), and a line for each finished job. core.status and core.row draw it
-- (bindings/host/progress.h).
local core = require "moe.core"
local format = require "moe.results.report.format"

local M = {}

local jobs = { kinds = {}, at = 0, took = {}, left = {} }

--- Starts a sequence of jobs or of evaluations of claims. kinds: for each, in order, a key; entries
--- with equal keys are expected to take equally long.
function M.begin(kinds)
  jobs = { kinds = kinds, at = 0, took = {}, left = {} }
  for _, kind in ipairs(kinds) do jobs.left[kind] = (jobs.left[kind] or 0) + 1 end
end

local function expected(kind)
  local took = jobs.took[kind]
  return took and took.mean
end

local LAST = 50  -- about so many of the last jobs count: those found in the cache take no time

--- Shows that the next job begins, and the expected times. what: text that describes the job.
function M.job(what)
  jobs.at, jobs.since = jobs.at + 1, core.clock()
  local left = jobs.left[jobs.kinds[jobs.at]] - 1
  jobs.left[jobs.kinds[jobs.at]] = left > 0 and left or nil
  local rest = 0
  for kind, n in pairs(jobs.left) do
    local one = expected(kind)
    rest = rest and one and rest + n * one
  end
  core.status(("[%d/%d] %s"):format(jobs.at, #jobs.kinds, what), expected(jobs.kinds[jobs.at]),
    rest)
end

--- Records the time of the current job, which is done. rows: lines to show for the job, or nil.
function M.done(rows)
  local kind = jobs.kinds[jobs.at]
  local took = jobs.took[kind] or { mean = 0, n = 0 }
  local n = math.min(took.n + 1, LAST)
  jobs.took[kind] = { mean = took.mean + (core.clock() - jobs.since - took.mean) / n, n = n }
  for _, row in ipairs(rows or {}) do core.row(row) end
end

function M.row(run)
  local parts = { ("%s on %s, %d %s"):format(format.system_text(run),
    run.provenance == "simulated" and run.cluster or run.executor, run.devices,
    run.provenance == "simulated" and "devices" or "ranks") }
  for name, value in pairs(run.point or {}) do
    parts[#parts + 1] = ("%s = %s"):format(name, tostring(value))
  end
  local times = ("%s %s ms"):format(run.provenance, format.ms(run.iteration_ms))
  if run.oom then times = "out of memory" end
  if run.prediction then times = ("%s, predicted %s ms"):format(times,
    format.ms(run.prediction.iteration_ms)) end
  return table.concat(parts, ", ") .. ": " .. times
end

return M
