-- Simulates many systems, side by side in as many processes as there are cores (--workers). The
-- results and their order do not depend on that number. What is finished is kept at once
-- (moe.run.simulations), so that a sweep that was interrupted or killed goes on where it ended.
local core = require "moe.core"
local errors = require "moe.base.errors"
local jobs_lib = require "moe.run.jobs"
local simulations = require "moe.run.simulations"

local M = {}

-- Seconds for which a sweep runs in this process alone before it starts others: most recipes are
-- done by then, and the others begin with the tables that this one has read.
local ALONE_S = 0.5

function M.num_workers()
  if core.processes then return 1 end
  return core.args.workers or core.machine().cores
end

-- Returns what a worker process answers to the number of a job, as JSON text.
local function answer(jobs, number)
  local job = jobs[tonumber(number)]
  local reply
  local ok, err = xpcall(function()
    local outcome, trace, effects = simulations.anew(job.spec, job.system, job.options)
    reply = { outcome = outcome, trace = trace, effects = effects }
  end, errors.with_traceback)
  if not ok then
    reply = { error = { kind = core.kind_of(err), message = tostring(err.message),
      traceback = err.traceback } }
  end
  return core.json_encode(reply)
end

local Sweep = {}
Sweep.__index = Sweep

-- Hands over the results that are complete, in the order of the jobs.
function Sweep:hand_over()
  while self.ready[self.at] do
    local r, job = self.ready[self.at], self.jobs[self.at]
    if r.error then
      jobs_lib.try(self.refused, job, error,
        core.failure(r.error.kind, r.error.message, r.error.traceback), 0)
    end
    self.ready[self.at] = nil
    self.finished(self.at, r.outcome and core.json_decode(r.outcome), r.trace)
    self.at = self.at + 1
    if self.jobs[self.at] then self.begin(self.at) end
  end
end

-- Simulates the jobs up to number `last` in this process, for at most `seconds`.
function Sweep:alone(last, seconds)
  local since = core.clock()
  while self.at <= last and core.clock() - since < seconds do
    local job = self.jobs[self.at]
    self.ready[self.at] = jobs_lib.try(self.refused, job, function()
      local outcome, trace = simulations.outcome_text(job.spec, job.system, job.options)
      return { outcome = outcome, trace = trace }
    end) or {}
    self:hand_over()
  end
end

-- Takes the result of job i from the cache if it is there. Returns true if it was, or if the same
-- simulation runs already, whose end the job then waits for.
function Sweep:known(i)
  local job = self.jobs[i]
  local key = self.keys[i]
  local outcome, trace = simulations.find(key, job.options)
  if outcome then
    self.ready[i] = { outcome = outcome, trace = trace }
    return true
  end
  local running = key and self.running[key]
  if running and not job.options.traced then
    running[#running + 1] = i
    return true
  end
  return false
end

-- Returns the next job of the group that a worker is at, or the first one of the next group; nil
-- if there is none.
function Sweep:next_job(worker)
  local group = self.group_of[worker]
  while not group or group.at > #group do
    self.next_group = self.next_group + 1
    group = self.groups[self.next_group]
    if not group then return nil end
    self.group_of[worker] = group
  end
  group.at = group.at + 1
  return group[group.at - 1]
end

-- Gives the worker a job that is not known yet; returns whether there was one.
function Sweep:give(worker)
  for i in function() return self:next_job(worker) end do
    local job = self.jobs[i]
    if i > self.last then return false end
    self.keys[i] = simulations.key(job.spec, job.system, job.options)
    if not self:known(i) then
      self.job_of[worker] = i
      if self.keys[i] then self.running[self.keys[i]] = {} end
      self.workers:ask(worker, tostring(i))
      return true
    end
  end
  return false
end

-- Sets the groups: lists of the jobs from number self.at on that follow each other and have the
-- same case. What a worker computes for one of them, such as a sample of the gate, serves the
-- others.
function Sweep:make_groups()
  self.groups, self.next_group, self.group_of = {}, 0, {}
  for i = self.at, #self.jobs do
    local last = self.groups[#self.groups]
    if not last or self.jobs[last[1]].case ~= self.jobs[i].case then
      last = { at = 1 }
      self.groups[#self.groups + 1] = last
    end
    last[#last + 1] = i
  end
end

-- Takes the reply of a worker to job i.
function Sweep:take(i, reply)
  local key = self.keys[i]
  local waiting = key and self.running[key] or {}
  if key then self.running[key] = nil end
  if reply.error or reply.effects then
    -- Jobs after an error that ends the sweep are not done; after effects they are done here.
    local kind = reply.error and reply.error.kind
    if kind ~= "user" then self.last = math.min(self.last, kind and i or i - 1) end
    if reply.effects then return end
  else
    simulations.store(key, reply.outcome, reply.trace)
  end
  for _, j in ipairs { i, unpack(waiting) } do self.ready[j] = reply end
end

-- Simulates the jobs by workers until all are done, or up to the first that has effects.
function Sweep:side_by_side(count)
  self.workers = core.workers(count, function(number) return answer(self.jobs, number) end)
  self.job_of, self.keys, self.running, self.last = {}, {}, {}, #self.jobs
  self:make_groups()
  local ok, err = pcall(function()
    for worker = 1, self.workers:count() do self:give(worker) end
    self:hand_over()
    while self.at <= self.last do
      local worker, reply = self.workers:next()
      if not worker then errors.run "interrupted" end
      self:take(self.job_of[worker], core.json_decode(reply))
      self:give(worker)
      self:hand_over()
    end
  end)
  self.workers:close()
  self.ready = {}
  if not ok then error(err, 0) end
end

--- Simulates all jobs (moe.run.jobs), each with `options` as simulations.outcome takes them. Calls
--- begin(i) when the first i - 1 jobs are complete, and finished(i, outcome, trace) when job i is:
--- without an outcome if it was refused, and is in the list `refused` (jobs_lib.try). Raises the
--- error of the first job that fails, after the jobs before it are complete.
function M.each(jobs, refused, begin, finished)
  if #jobs == 0 then return end
  local self = setmetatable({ jobs = jobs, refused = refused, begin = begin, finished = finished,
    at = 1, ready = {} }, Sweep)
  begin(1)
  local count = M.num_workers()
  self:alone(#jobs, count > 1 and ALONE_S or math.huge)
  if #jobs - self.at >= 1 then self:side_by_side(math.min(count, #jobs - self.at + 1)) end
  self:alone(#jobs, math.huge)
end

return M
