-- Simulations, each done once: what one found is kept in a file beside the profile cache, under a
-- key of all that it depends on: the plan's specification (model, gate, routing with its seed,
-- optimizer, cluster and its measured times), the system's passes and options, the simulated steps,
-- the seed, this program with its library, and the recipe where it has policies in Lua.
--
-- A policy may read tables and variables of the recipe; their values are in the key. If it also
-- changes them, or prints, its simulations have effects: they are done one after the other in the
-- recipe's process, and are not kept.
local core = require "moe.core"
local errors = require "moe.base.errors"
local record = require "moe.run.record"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"
local typed = require "moe.base.typed"

local M = {}

local count = { done = 0, found = 0 }

--- Returns how many simulations of this process were done, and how many were found in the cache,
--- after `since`, an earlier result of this function.
function M.counts(since)
  since = since or { done = 0, found = 0 }
  return { done = count.done - since.done, found = count.found - since.found }
end

local MOST_VALUES = 20000  -- of a policy's tables; with more, its simulations are not kept

local LIBRARY = "@" .. core.scripts_dir .. "/"

local function is_library(f)
  local info = debug.getinfo(f, "S")
  return info.what == "C" or info.source:sub(1, #LIBRARY) == LIBRARY
end

local add_value

-- Adds the variables and globals that a function of the recipe can reach.
local function add_function(f, state)
  if is_library(f) then return end
  for i = 1, math.huge do
    local name, value = debug.getupvalue(f, i)
    if not name then break end
    add_value(value, state)
  end
  add_value(getfenv(f), state)
end

local function add_table(t, state)
  for key, value in pairs(t) do
    add_value(key, state)
    add_value(value, state)
  end
end

-- Adds a value to the list of texts `state`, and all that can be reached from it; tables and
-- functions are added once.
function add_value(value, state)
  local kind = type(value)
  if #state >= MOST_VALUES then return end
  if kind == "table" or kind == "function" then
    local before = state.seen[value]
    state[#state + 1] = kind .. (before or "")
    if before then return end
    state.n = state.n + 1
    state.seen[value] = state.n
    if kind == "table" then add_table(value, state) else add_function(value, state) end
  else
    state[#state + 1] = (kind == "number" and "%s%.17g" or "%s%s"):format(kind,
      kind == "number" and value or kind == "userdata" and "" or tostring(value))
  end
end

-- Returns whether a value has a function of the recipe in it, which most have not.
local function has_function(value, seen)
  if type(value) == "function" then return not is_library(value) end
  if type(value) ~= "table" or seen[value] then return false end
  seen[value] = true
  for _, v in next, value do
    if has_function(v, seen) then return true end
  end
  return false
end

-- Returns the functions of the recipe in a specification and in the alternatives of a system.
local function functions_of(spec, alternatives)
  local list, seen = {}, {}
  if not has_function({ spec, alternatives }, {}) then return list end
  local function find(value)
    if type(value) == "function" and not is_library(value) then list[#list + 1] = value end
    if type(value) ~= "table" or seen[value] then return end
    seen[value] = true
    for _, v in pairs(value) do find(v) end
  end
  find { spec, alternatives }
  return list
end

-- Returns a text of all values that the functions can reach, or nil if there are too many.
local function state_of(functions)
  if #functions == 0 then return "" end
  local state = { seen = {}, n = 0 }
  for _, module in pairs(package.loaded) do
    if type(module) == "table" then state.seen[module] = 0 end
  end
  for _, f in ipairs(functions) do add_value(f, state) end
  return #state < MOST_VALUES and table.concat(state, ",") or nil
end

-- Returns whether a list of alternatives has a placement of the recipe, which is evaluated apart,
-- in states of the ranks: only the text of the recipe can change it.
local function places_in_lua(alternatives)
  for _, candidates in ipairs(alternatives) do
    for _, candidate in ipairs(candidates) do
      for _, stage in ipairs(candidate.stages) do
        if stage.placement then return true end
      end
    end
  end
  return false
end

-- Returns the texts of files with op times of the user, which the cluster names.
local function texts_of(cluster)
  local texts = {}
  for _, path in ipairs { cluster.collective_times or false, cluster.device.op_times or false } do
    if path and path:sub(1, #core.scripts_dir) ~= core.scripts_dir then
      texts[#texts + 1] = core.read_file(path)
    end
  end
  return core.array(texts)
end

-- The options of the command line on which a simulation may depend.
local function arguments()
  local args = schema.merged(core.args, {})
  args.cache, args.executor, args.ranks, args.workers = nil, nil, nil, nil
  return args
end

-- Simulates; returns the outcome, and the text of the trace or "".
local function simulate(spec, system, options)
  local made = target.plan(schema.merged(spec, { simulate = schema.merged(spec.simulate or {},
    options.traced and { keep = "last", links = true } or {}) }), system)
  local outcome, sim = record.of_plan(made), made.sim
  for _, k in ipairs(record.METRICS) do outcome[k] = sim[k] end
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
  local before, printed = state_of(functions), core.printed()
  local outcome, trace = simulate(spec, system, options)
  local effects = not before or before ~= state_of(functions) or printed ~= core.printed()
  return core.json_encode(outcome), trace, effects
end

--- Returns the key of a simulation, or nil if it cannot be kept.
function M.key(spec, system, options)
  local alternatives = system_lib.expand(system)
  local functions = functions_of(spec, alternatives)
  local in_lua = #functions > 0 or places_in_lua(alternatives)
  local state = state_of(functions)
  return state and errors.call(system.at, core.simulation_key, { spec = spec,
    alternatives = alternatives, state = state, overlap = options.overlap,
    files = texts_of(spec.cluster), seed = core.args.seed,
    arguments = in_lua and arguments() or nil }, in_lua)
end

-- The members of a run that no simulation determines.
local OF_JOB = { experiment = true, entry = true, system = true, model = true, cluster = true,
  cluster_parameters = true, devices = true, executor = true, parameters = true, optimizer = true,
  provenance = true }

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
  if trace == "" then return true end
  local read, file = pcall(core.json_decode, trace)
  return read and type(file) == "table" and type(file.traceEvents) == "table"
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

--- Keeps what anew() returned.
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

--- Like outcome_text(), with the outcome as a table.
function M.outcome(spec, system, options)
  return core.json_decode((M.outcome_text(spec, system, options)))
end

return M
