-- The band of a claim's value: what it is when the assumed constants of an experiment are not at
-- their values but anywhere in their bands. The simulated runs are done again with constants at the
-- ends of their bands; executed runs stay what they are. Constants of one name (the same field of
-- two clusters) move together, each to the end of its own band.
local core = require "moe.core"
local errors = require "moe.base.errors"
local jobs_lib = require "moe.run.jobs"
local results = require "moe.results.results"
local runs_lib = require "moe.run.runs"
local schema = require "moe.base.schema"

local M = {}

--- What the experiment's field `band` may be. "each": every constant alone at both its ends, and
--- the two corners that these point to, a claim's most and least (2 n + 2 simulations of every
--- run that a claim reads). "corners": all 2^n corners as well. "none": the values alone.
M.KINDS = { "each", "corners", "none" }

local MAX_CORNERS = 8  -- constants; 256 simulations of every run

local ENDS = { "lo", "hi" }

-- Fields of a simulated run that no constant moves, whether it has them or not.
local UNMOVED = { "experiment", "system", "model", "cluster", "devices", "executor", "provenance",
  "device_name", "point", "points", "link", "optimizer", "gate_options", "routing" }

-- name -> the constant where it stands first, over all jobs that are simulated.
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

--- The band of an experiment over its jobs. What the model or the cluster cannot be at an end of a
--- constant's band is an error here, before anything runs.
function M.new(e, jobs)
  local constants = e.band ~= "none" and #e.claims > 0 and constants_of(jobs) or {}
  local names = schema.keys_of(constants)
  if e.band == "corners" and #names > MAX_CORNERS then
    errors.user(("experiment.band: 'corners' of %d assumed constants are %d simulations of every "
      .. "run; give 'each'"):format(#names, 2 ^ #names), e.at)
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

--- The results that bands start from; job_of: run -> its job, for runs that were simulated.
function Band:start(R, job_of) self.R, self.job_of = R, job_of end

-- The run with constants at those ends. It is simulated when something is read that they may move,
-- so that claims pay for what they look at.
local function run_at(e, job, run, ends)
  local spec = jobs_lib.simulated_spec(job.case, ends, job.spec.edits)
  local lazy = { parameters = spec.model, cluster_parameters = spec.cluster, fill = spec.fill }
  local known = {}
  for _, key in ipairs(UNMOVED) do lazy[key], known[key] = run[key], true end
  return setmetatable(lazy, { __index = function(t, key)
    if known[key] or not results.FIELDS[key] then return nil end
    setmetatable(t, nil)
    for k, v in pairs(runs_lib.simulated(e.name, job, ends)) do t[k] = v end
    return t[key]
  end })
end

-- The results with some constants at an end of their bands.
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

-- All choices of an end for every one of the names.
local function corners_of(names)
  local all = { {} }
  for _, name in ipairs(names) do
    local more = {}
    for _, ends in ipairs(all) do
      for _, part in ipairs(ENDS) do more[#more + 1] = schema.merged(ends, { [name] = part }) end
    end
    all = more
  end
  return all
end

-- Of each constant that moves the value: it, its band, the value at its ends.
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
  table.sort(all, function(a, b)
    if a.moves ~= b.moves then return a.moves > b.moves end
    return a.constant < b.constant
  end)
  return all
end

-- The two corners where each constant is at the end that raises, or lowers, the value.
local function extremes_of(sensitivity)
  local most, least = {}, {}
  for _, s in ipairs(sensitivity) do
    local up = (s.at_hi or -math.huge) >= (s.at_lo or -math.huge)
    most[s.constant], least[s.constant] = up and "hi" or "lo", up and "lo" or "hi"
  end
  return { most, least }
end

--- ours: value(results) at the values of all constants; lo and hi: its least and most over the
--- band; sensitivity: { constant, lo, hi, at_lo, at_hi, moves }, what moves it most first; a
--- constant of several clusters with the band that it has in the first. Where value gives nil there
--- is none.
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
  local corners = self.e.band == "corners" and corners_of(self.names) or extremes_of(sensitivity)
  for _, ends in ipairs(corners) do
    if next(ends) then all[#all + 1] = value(self:results(ends)) end
  end
  return { ours = ours, lo = math.min(unpack(all)), hi = math.max(unpack(all)),
    sensitivity = sensitivity }
end

return M
