-- The band of a number, such as a claim's value: the range that it takes when the assumed constants
-- of an experiment vary over their bands. The simulated runs are repeated with constants at the
-- ends of their bands; executed runs do not change. Constants of the same name (the same field of
-- two clusters) are changed together, each to the end of its own band.
local cluster_lib = require "moe.spec.cluster"
local core = require "moe.core"
local errors = require "moe.base.errors"
local jobs_lib = require "moe.run.jobs"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local sensitivity_lib = require "moe.results.sensitivity"
local simulated = require "moe.run.simulated"

local M = {}

--- Values of the experiment's field `band`. "each": every constant by itself at both its ends, and
--- the two combinations of ends that should give a claim's largest and smallest value (2 n + 2
--- simulations of every run that a claim reads). "corners": all 2^n combinations of ends as well.
--- "none": only the constants' values.
M.KINDS = { "each", "corners", "none" }

local MAX_CORNERS = 8  -- largest number of constants for "corners": 256 simulations of every run

local ENDS = { "lo", "hi" }

-- Fields of a simulated run that do not depend on the assumed constants.
local UNMOVED = { "experiment", "system", "model", "cluster", "devices", "executor", "provenance",
  "device_name", "point", "points", "link", "optimizer", "gate_options", "routing" }

-- Returns the assumed constants of all simulated jobs (moe.run.jobs) whose band is not a single
-- value: name -> the first constant of that name.
local function constants_of(jobs)
  local constants = {}
  for _, job in ipairs(jobs) do
    for _, c in pairs(job.assumed or {}) do
      if c.lo < c.hi then constants[c.name] = constants[c.name] or c end
    end
  end
  return constants
end

local function touches(job, ends)
  for _, c in pairs(job.assumed or {}) do
    if ends[c.name] then return true end
  end
  return false
end

local Band = {}
Band.__index = Band

--- Makes the band of an experiment with these jobs. Raises a user error before anything runs if the
--- model or the cluster is not valid with a constant at an end of its band.
function M.new(e, jobs)
  local needed = #e.claims > 0 or #sensitivity_lib.asked(e) > 0
  local constants = e.band ~= "none" and needed and constants_of(jobs) or {}
  local names = schema.keys_of(constants)
  if e.band == "corners" and #names > MAX_CORNERS then
    errors.user(("experiment.band: 'corners' with %d assumed constants needs %d simulations of "
      .. "every run; at most %d constants are allowed; give 'each'"):format(#names, 2 ^ #names,
      MAX_CORNERS), e.at)
  end
  for _, name in ipairs(names) do
    for _, part in ipairs(ENDS) do
      local ends = { [name] = part }
      for _, job in ipairs(jobs) do
        if touches(job, ends) then jobs_lib.simulated_spec(job.case, ends) end
      end
    end
  end
  return setmetatable({ e = e, constants = constants, names = names, by_ends = {} }, Band)
end

--- Sets the results at the constants' values, from which the band starts. job_of: simulated run ->
--- its job (moe.run.jobs).
function Band:start(R, job_of) self.R, self.job_of = R, job_of end

-- Returns the run with constants at these ends. The simulation is done only when a field is read
-- that the constants may change, so that runs that no claim reads cost nothing.
local function run_at(e, job, run, ends)
  local spec = jobs_lib.simulated_spec(job.case, ends, job.spec.edits)
  local lazy = { parameters = spec.model, cluster_parameters = cluster_lib.shown(spec.cluster) }
  local known = {}
  for _, key in ipairs(UNMOVED) do lazy[key], known[key] = run[key], true end
  return setmetatable(lazy, { __index = function(t, key)
    if known[key] or not results.FIELDS[key] then return nil end
    setmetatable(t, nil)
    for k, v in pairs(simulated.at_ends(e.name, job, ends)) do t[k] = v end
    return t[key]
  end })
end

-- Returns the results with some constants at ends of their bands; ends: name -> "lo" or "hi".
function Band:results(ends)
  local key = core.json_encode(ends)
  if self.by_ends[key] then return self.by_ends[key] end
  local runs = {}
  for i, run in ipairs(self.R.runs) do
    local job = self.job_of[run]
    runs[i] = job and touches(job, ends) and run_at(self.e, job, run, ends) or run
  end
  self.by_ends[key] = results.new(runs)
  return self.by_ends[key]
end

-- Returns { constant, lo, hi, at_lo, at_hi, moves } for each constant that changes the value: its
-- name, its band, the value at both ends, and the largest difference among these and `ours`; the
-- largest first.
local function sensitivity_of(self, value, ours)
  local all = core.array {}
  for _, name in ipairs(self.names) do
    local c = self.constants[name]
    local s = { constant = name, lo = c.lo, hi = c.hi,
      at_lo = value(self:results { [name] = "lo" }),
      at_hi = value(self:results { [name] = "hi" }) }
    local low = math.min(s.at_lo or ours, s.at_hi or ours, ours)
    s.moves = math.max(s.at_lo or ours, s.at_hi or ours, ours) - low
    if s.moves > 0 then all[#all + 1] = s end
  end
  return schema.sorted(all, function(s) return -s.moves, s.constant end)
end

-- Returns two combinations of ends: each constant at the end that raises the value, and each at the
-- end that lowers it.
local function extremes_of(sensitivity)
  local most, least = {}, {}
  for _, s in ipairs(sensitivity) do
    local up = (s.at_hi or -math.huge) >= (s.at_lo or -math.huge)
    most[s.constant], least[s.constant] = up and "hi" or "lo", up and "lo" or "hi"
  end
  return { most, least }
end

--- Returns { ours, lo, hi, sensitivity } of the function value(results): ours is its value at the
--- values of all constants (nil if it returns nil), lo and hi its smallest and largest value over
--- the band, sensitivity as sensitivity_of returns it. A constant of several clusters is listed
--- with the band that it has in the first cluster.
function Band:of(value)
  local ours = value(self.R)
  if ours == nil or #self.names == 0 then
    return { ours = ours, lo = ours, hi = ours, sensitivity = core.array {} }
  end
  local sensitivity = sensitivity_of(self, value, ours)
  local all = { ours }
  for _, s in ipairs(sensitivity) do
    all[#all + 1] = s.at_lo
    all[#all + 1] = s.at_hi
  end
  local both = {}
  for _, name in ipairs(self.names) do both[name] = ENDS end
  for _, ends in ipairs(self.e.band == "corners" and schema.product(both)
    or extremes_of(sensitivity)) do
    if next(ends) then all[#all + 1] = value(self:results(ends)) end
  end
  return { ours = ours, lo = math.min(unpack(all)), hi = math.max(unpack(all)),
    sensitivity = sensitivity }
end

return M
