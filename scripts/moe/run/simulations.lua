-- Simulations, each done once: what one found is kept in a file beside the profile cache, under a
-- key of all that it depends on: the plan's specification (model, gate, routing with its seed,
-- optimizer, cluster and its measured times), the system's passes and options, the simulated steps,
-- the seed, this program with its library, and the recipe where it has policies in Lua.
--
-- A policy may read tables and variables of the recipe; their values are in the key. If it also
-- changes them, prints, or reads a file, its simulations have effects: they are done one after the
-- other in the recipe's process, and are not kept. Neither are they if it reads what has no text
-- (moe.run.reached).
local core = require "moe.core"
local errors = require "moe.base.errors"
local pipeline = require "moe.spec.pipeline"
local policy = require "moe.spec.policy"
local reached = require "moe.run.reached"
local record = require "moe.run.record"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"
local typed = require "moe.base.typed"

local M = {}

local LIBRARY = core.scripts_dir .. "/"

local count = { done = 0, found = 0 }

--- Returns how many simulations of this process were done, and how many were found in the cache,
--- after `since`, an earlier result of this function.
function M.counts(since)
  since = since or { done = 0, found = 0 }
  return { done = count.done - since.done, found = count.found - since.found }
end

-- Returns whether a value has a function of the recipe in it, which most have not.
local function has_function(value, seen)
  if reached.is_own(value) then return true end
  if type(value) ~= "table" or seen[value] or reached.is_fixed(value) then return false end
  seen[value] = true
  for _, v in next, value do
    if has_function(v, seen) then return true end
  end
  return has_function(debug.getmetatable(value), seen)
end

-- Returns the definitions of the placements and pipeline schedules in a list of alternatives, which
-- have only their names.
local function definitions_of(alternatives)
  local list = {}
  for _, candidates in ipairs(alternatives) do
    for _, candidate in ipairs(candidates) do
      list[#list + 1] = candidate.pipeline and pipeline.known[candidate.pipeline.name]
      for _, stage in ipairs(candidate.stages) do
        local own = stage.placement and not stage.placement.library
        if own then list[#list + 1] = policy.registry.placement[stage.name] end
      end
    end
  end
  return list
end

-- Returns the functions of the recipe in a specification and in the alternatives of a system.
local function functions_of(spec, alternatives)
  local list, seen, all = {}, {}, { spec, alternatives, definitions_of(alternatives) }
  if not has_function(all, {}) then return list end
  local function find(value)
    if reached.is_own(value) then list[#list + 1] = value end
    if type(value) ~= "table" or seen[value] or reached.is_fixed(value) then return end
    seen[value] = true
    for _, v in pairs(value) do find(v) end
    find(debug.getmetatable(value))
  end
  find(all)
  return list
end

-- Returns the texts of files with op times of the user, which the cluster names.
local function texts_of(cluster)
  local texts = {}
  local device = cluster.device
  for _, path in ipairs { cluster.collective_times or false, device.op_times or false,
    device.step_times or false } do
    if path and (path:sub(1, #LIBRARY) ~= LIBRARY or path:find("/../", #LIBRARY, true)) then
      texts[#texts + 1] = core.read_file(path)
    end
  end
  return core.array(texts)
end

-- The options of the command line on which a simulation may depend.
local function arguments()
  local args = schema.merged(core.args, {})
  for _, name in ipairs { "cache", "executor", "ranks", "workers", "points", "temporary",
    "history" } do
    args[name] = nil
  end
  return args
end

local function simulate(spec, system, options)
  local made = target.plan(schema.merged(spec, { simulate = schema.merged(spec.simulate or {},
    options.traced and { keep = "last", links = true } or {}) }), system)
  local outcome, sim = record.of_plan(made), made.sim
  for _, k in ipairs(record.METRICS) do outcome[k] = sim[k] end
  outcome.statistic, outcome.median_ms = sim.statistic, sim.median_ms
  outcome.load_imbalance = sim.load_imbalance
  outcome.forward_ms = sim.forward_ms
  if options.overlap then
    outcome.overlap = errors.call(system.at, made.plan.overlap, made.plan)
  end
  outcome.samples_ms = core.array(sim.samples_ms or { sim.iteration_ms })
  outcome.placements = record.placements(sim.placements)
  return outcome, options.traced and made.plan:trace { { timelines = sim.timelines } } or ""
end

--- Plans and simulates a system without looking for an earlier simulation. Returns the outcome as
--- JSON text, the text of its trace or "", and whether the simulation had effects.
function M.anew(spec, system, options)
  local functions = functions_of(spec, system_lib.expand(system))
  local before, touched = reached.text(functions), core.touched()
  local outcome, trace = simulate(spec, system, options)
  local effects = not before or before ~= reached.text(functions) or touched ~= core.touched()
  return core.json_encode(outcome), trace, effects
end

--- Returns the key of a simulation, or nil if it cannot be kept.
function M.key(spec, system, options)
  local alternatives = system_lib.expand(system)
  local functions = functions_of(spec, alternatives)
  local state, in_lua = reached.text(functions), #functions > 0
  return state and errors.call(system.at, core.simulation_key, { spec = spec,
    alternatives = alternatives, state = state, overlap = options.overlap,
    files = texts_of(spec.cluster), seed = core.args.seed,
    arguments = in_lua and arguments() or nil }, in_lua)
end

-- The members of a run that no simulation determines.
local OF_JOB = { experiment = true, entry = true, system = true, model = true, cluster = true,
  cluster_parameters = true, devices = true, executor = true, parameters = true, optimizer = true,
  provenance = true, stack = true }

local function is_size(x) return x >= 0 and x < math.huge end

-- Returns whether a kept outcome and trace can be those of a simulation: the cache is a file, which
-- others may have changed.
local function is_sound(outcome, trace)
  local ok, value = pcall(core.json_decode, outcome)
  if not ok or type(value) ~= "table" or typed.wrong(value, "moe.Run", OF_JOB) then return false end
  for name, x in pairs(value) do
    if not results.FIELDS[name] or type(x) == "number" and not is_size(x) then return false end
  end
  for _, x in ipairs(value.samples_ms) do
    if not is_size(x) then return false end
  end
  local r = value.assumed_routing
  local counted = r.choices and r.dropped
  if not (r.choices_of or r.gate) or (r.scores or r.choices) and not counted then return false end
  -- A trace may have many megabytes; who reads it checks each of its fields.
  return trace == "" or trace:find '^{.*"traceEvents"' ~= nil
end

--- Returns what a kept simulation found, as anew() does, or nil if there is none with this key that
--- is sound, or options.traced asks for a trace that it lacks.
function M.find(key, options)
  if not key then return nil end
  local outcome, trace = core.find_simulation(key)
  if not outcome or options.traced and trace == "" then return nil end
  if not options.traced then trace = "" end
  if not is_sound(outcome, trace) then return nil end
  count.found = count.found + 1
  return outcome, trace
end

function M.store(key, outcome, trace, effects)
  count.done = count.done + 1
  if key and not effects then core.store_simulation(key, outcome, trace) end
end

--- Plans and simulates a system, or finds that this was done before. spec: as target.plan takes it;
--- options: { overlap = whether the outcome has the overlap of weight gradients, traced = whether a
--- trace is made }. Returns as JSON text the part of a record that plan and simulation determine
--- (record.of_plan, the metrics, samples and placements), and the text of the trace or "".
function M.outcome_text(spec, system, options)
  local key = M.key(spec, system, options)
  local outcome, trace = M.find(key, options)
  if outcome then return outcome, trace end
  local effects
  outcome, trace, effects = M.anew(spec, system, options)
  M.store(key, outcome, trace, effects)
  return outcome, trace
end

function M.outcome(spec, system, options)
  return core.json_decode((M.outcome_text(spec, system, options)))
end

return M
