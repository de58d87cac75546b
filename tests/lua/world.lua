-- A world to run recipes in without the program: the Lua library, freshly loaded, on a core whose
-- numbers are made up but always the same.
local M = {}

local RECIPE = "recipe.lua"

local real = require "moe.core"

M.encode, M.decode, M.scripts_dir = real.json_encode, real.json_decode, real.scripts_dir

-- Made-up times: a plain step takes 100, dW scheduling saves 20, partition 5, a cut at capacity 10
-- at degree 4 and less at the others. A test may change them and the bytes: world.step_ms(spec, ms)
-- and world.peak_bytes(spec) of the plan's specification.
local function step_ms(spec)
  local total = 100
  for _, stage in ipairs(spec.system.stages) do
    if stage.name == "dw_schedule" then total = total - 20 end
    if stage.name == "partition" then total = total - 5 end
    if stage.name == "capacity_pipeline" then
      total = total - 10 + math.abs(4 - stage.options.degree)
    end
  end
  return total * 16 / spec.ranks
end

local function times(total)
  return { iteration_ms = total, compute_ms = 0.6 * total, comm_ms = 0.5 * total,
    exposed_comm_ms = 0.4 * total, hidden_comm_ms = 0.1 * total, wait_ms = 0 }
end

local Plan = {}
Plan.__index = Plan

function Plan:peak_bytes()
  return self.world.peak_bytes and self.world.peak_bytes(self.spec) or 2 ^ 30
end

-- What was made of a plan, and then shown: the timelines of each.
local function note(list, timelines)
  list[#list + 1] = timelines
  return timelines
end

function Plan:simulate(options)
  local slower = options and options.slower or 1
  if options and options.beside then slower = slower * (self.world.slower_beside or 1) end
  local total = step_ms(self.spec) * (0.4 + 0.6 * slower)
  if options and options.executed and self.world.routed_ms then
    total = self.world.routed_ms(total, options)
  end
  local out = times(self.world.step_ms and self.world.step_ms(self.spec, total) or total)
  for _, row in ipairs(real.table "metrics") do out[row.name] = out[row.name] or 0 end
  out.samples_ms, out.median_ms = { out.iteration_ms }, out.iteration_ms
  out.statistic = options and options.statistic == "median" and "median" or "mean"
  out.lower_bound_ms, out.sim_ms, out.peak_bytes = 0.5 * out.iteration_ms, 1, self:peak_bytes()
  out.busiest_lane_ms, out.critical_path_ms = out.lower_bound_ms, out.lower_bound_ms
  out.alone_ms, out.measured_share, out.extrapolated_share = { all_to_all = 1 }, 0, 0
  out.timelines = note(self.world.simulated, { options = options })
  return out
end

function Plan:info()
  return { num_ops = 10, plan_ms = 1, hash = "00", peak_bytes = self:peak_bytes(),
    fill = self.spec.fill,
    padded_rows = self.world.padded_rows and self.world.padded_rows(self.spec) or "",
    assumed_routing = { gate = self.spec.model.gate },
    liveness_bytes = 2 ^ 29, arena_bytes = 1, persistent_bytes = 1, holders = { "big 1.0 GiB" },
    peak_parts = self.world.peak_parts or { { what = "parameters", bytes = self:peak_bytes() } },
    profile_ms = 5, num_disturbed = self.world.num_disturbed or 0, stages = {},
    rehearsal_ms = 600, rehearsal_spread = 0.02, rehearsal_others = 0.01,
    speed_spread = self.world.speed_spread or 0,
    without_effect = self.world.without_effect and self.world.without_effect(self.spec) or {},
    log = self.world.log or { { op = "a", stage = "s", why = "because" } } }
end

function Plan:micro_ops() return self.world.micro_ops(self.spec) end

function Plan:exchange_ms() return self.spec.ranks / (self.spec.model.ep or self.spec.ranks) end

function Plan:explain(t)
  note(self.world.shown, t.timelines)
  return { iteration_ms = 90, exposed_ms = 5, causes = { { cause = "data edge", ms = 5 } },
    bound = { ms = 80, by = "the critical path", distance_ms = 10 }, collectives = {},
    findings = { { op = "a", why = "'b' needs it", advice = "c", worth_ms = 2, gain_ms = 2 } },
    idle = { { stage = "t", why = "no MoE layer" } }, exposures = {} }
end
function Plan:overlap()
  return { num_a2a = 2, num_dw = 1, a2a_ms = 2, dw_ms = 1, greedy_ms = 1, bound_ms = 2 }
end

function Plan:order(lane)
  if lane ~= "compute" then error("unknown lane '" .. lane .. "'", 0) end
  return { "a", "b" }
end

function Plan:text() return "graph " .. self.spec.model.name end
function Plan:trace(list)
  for _, one in ipairs(list) do note(self.world.shown, one.timelines) end
  return '{"traceEvents":[]}'
end
function Plan:spans(t)
  note(self.world.shown, t.timelines)
  return { { op = "a", step = t.step } }
end

function Plan:run(options)
  local world, name = self.world, self.spec.system.name
  world.executed[#world.executed + 1] = { spec = self.spec, options = options }
  if world.fails_in == name then error(real.failure("run", "rank 1 is gone"), 0) end
  local out = { provenance = options.emulate_link and "emulated" or "measured", losses = {},
    samples_ms = {}, metrics = {}, moe = {}, ranks = {}, machine_state = {},
    digest = "0011223344556677", peak_bytes = 2 ^ 20, stop_reason = world.stop_reason,
    wrong_input = world.wrong_input, timelines = {} }
  for step = 1, options.steps do
    out.losses[step] = 5 - 0.1 * step
    out.metrics[step] = times(1.1 * step_ms(self.spec) + (step == 1 and 50 or 0))
    out.samples_ms[step] = out.metrics[step].iteration_ms
    out.moe[step] = { { dropped = 3, counts = { step, 8 } }, { dropped = 4, counts = { 2, 6 } } }
    out.machine_state[step] = { reference_ms = 0.5, others = 0.01 * step }
    out.ranks[step] = { { loss = 2, cpu_ms = 3 + step, behind_ms = 0 },
      { loss = 3, cpu_ms = 5, behind_ms = world.behind_ms or 0 } }
  end
  return out
end

function Plan:rehearse() self.world.rehearsed = (self.world.rehearsed or 0) + 1 end

-- The plans of run_in_turns run when their results are fetched.
local function in_turns(plans, options) return { plans = plans, options = options } end
local function result_in_turns(turns, i) return turns.plans[i]:run(turns.options[i]) end

--- The values of a text of lines.
function M.lines(text)
  local all = {}
  for line in text:gmatch "[^\n]+" do all[#all + 1] = M.decode(line) end
  return all
end

-- The program's core, except for what a test is to control: files, times, the machine and runs.
local function fill(core, world, args)
  for name, value in pairs(real) do core[name] = value end
  for name, value in pairs {
    out_dir = "out", version = "0", session = "made up",
    recipe = { name = RECIPE, path = "/" .. RECIPE, hash = "00" },
    args = { set = args.set or {}, executor = args.executor, ranks = args.ranks,
      trust = args.trust or false, cache = "cache.sqlite", workers = 1,
      sensitivity = args.sensitivity },
    run_in_turns = in_turns, result_in_turns = result_in_turns,
    too_large_together = function() return world.too_large end,
    gpu = function() return "1 x H200" end,
    executor_missing = function(name) return name == "cuda" and world.no_gpu or nil end,
    keep_earlier = function()
      world.kept = (world.kept or 0) + 1
      return world.earlier or ""
    end,
    machine = function() return { cpu = "none", cores = 2, kernel_set = "made up" } end,
    now = function() return "2025-01-31T12:00:00Z" end,
    find_simulation = function(key) return unpack(world.outcomes[key] or {}) end,
    store_simulation = function(key, ...) world.outcomes[key] = { ... } end,
    touched = function() return #world.said end,
    status = function(what, own, rest) world.status = { what, own, rest } end,
    row = function(text) world.rows[#world.rows + 1] = text end,
    warn = function(text) world.warned[#world.warned + 1] = text end,
    append_output = function(name, text, anew)
      local file = "out/" .. name
      world.files[file] = (anew and "" or world.files[file]) .. text
    end,
    say = function(text) world.said[#world.said + 1] = text end,
    workload = function(name, options, seed)
      world.workload = { name = name, options = options, seed = seed }
      return "handle", ("%s(seed=%d)"):format(name, seed)
    end,
    trace_routing = function(file, cycle) return "replay", file .. (cycle and ", cycle" or "") end,
    trace_info = function()
      return { steps = 1, layers = 2, ranks = 1, tokens = 1, experts = 2, k = 1, blocks = { 1, 2 },
        choices = true }
    end,
    trace_write = function(t, lists)
      world.imported = { t, { unpack(lists[1]) } }
      return "out/" .. t.to
    end,
    choices = function() return { 0 } end,
    loads = function(handle, query)
      world.loads = { handle = handle, query = query }
      if query.k > query.experts then error("k is too large", 0) end
      return { { 1, 2 } }
    end,
    plan = function(spec)
      world.plans[#world.plans + 1] = spec
      local copy = {}
      for k, v in pairs(spec) do copy[k] = v end
      return setmetatable({ spec = copy, world = world }, Plan)
    end,
    read_file = function(name)
      if name == RECIPE then return world.text end
      return world.files[name] or error("cannot read " .. name .. ": no such file", 0)
    end,
    write_output = function(name, text)
      world.files["out/" .. name] = text
      return "out/" .. name
    end,
  } do core[name] = value end
end

local function fresh_globals()
  local globals = {}
  for name, value in pairs(_G) do
    if name ~= "package" then globals[name] = value end
  end
  globals._G = globals
  debug.getregistry()["moe.recipe_globals"] = globals
  return globals
end

-- The library is loaded once, since that takes longer than most recipes. Before each recipe its
-- tables and the variables of its functions get the values that they had when it was loaded.
local core = {}
local modules, tables, variables  -- by name, table and function: the values

-- Notes what `value` and all that it reaches hold.
local function keep(value)
  local kind = type(value)
  if kind == "table" and not tables[value] then
    local held = {}
    tables[value] = held
    for k, v in next, value do
      held[k] = v
      keep(k)
      keep(v)
    end
    keep(getmetatable(value))
  elseif kind == "function" and not variables[value] then
    local held = {}
    variables[value] = held
    for i = 1, debug.getinfo(value, "u").nups do
      local name, v = debug.getupvalue(value, i)
      if name ~= "" then held[i] = { v } end
      keep(v)
    end
  end
end

local function is_own(name) return name == "moe" or name:match "^moe%." end

local function unload()
  for name in pairs(package.loaded) do
    if is_own(name) then package.loaded[name] = nil end
  end
end

local function load_library()
  modules, tables, variables = {}, { [core] = {} }, {}
  for name in pairs(core) do core[name] = nil end
  for name, value in pairs(real) do
    core[name] = value
    variables[value] = {}
  end
  core.recipe = nil
  unload()
  package.loaded["moe.core"] = core
  fresh_globals()
  local reached = require "moe.run.reached"
  reached.begin(require "moe")
  reached.begin = function() end
  for name, module in pairs(package.loaded) do
    if is_own(name) then
      modules[name] = module
      keep(module)
    end
  end
end

local function reset_library()
  unload()
  for name, module in pairs(modules) do package.loaded[name] = module end
  for t, held in next, tables do
    for k in next, t do
      if held[k] == nil then t[k] = nil end
    end
    for k, v in next, held do
      if rawget(t, k) ~= v then rawset(t, k, v) end
    end
  end
  for f, values in next, variables do
    for i, v in next, values do debug.setupvalue(f, i, v[1]) end
  end
end

load_library()

--- Calls f() on a library that finds these rows too in the core's table `kind`.
function M.with_rows(kind, rows, f)
  local given = real.table
  function real.table(name)
    local all = { unpack(given(name)) }
    for _, row in ipairs(name == kind and rows or {}) do all[#all + 1] = row end
    return all
  end
  load_library()
  local ok, why = pcall(f)
  real.table = given
  load_library()
  if not ok then error(why, 0) end
end

--- A world after the recipe `text` ran in it: what it said, planned, executed and wrote, its
--- globals, and the error (its message, the error itself) if it raised one. args: those of the
--- command line; mode: "run", "check" or "policies"; setup(world, core): before the library is
--- loaded.
function M.run(text, args, mode, setup)
  local world = { text = text, said = {}, plans = {}, executed = {}, files = {},
    simulated = {}, shown = {}, outcomes = {},
    rows = {}, warned = {} }
  reset_library()  -- which empties core
  fill(core, world, args or {})
  core.mode = mode or "run"
  if setup then setup(world, core) end
  world.globals = fresh_globals()
  world.moe = modules.moe
  local chunk = setfenv(assert(loadstring(text, "@" .. RECIPE)), world.globals)
  local ok, err = pcall(world.moe._main, core.mode, chunk)
  if not ok then
    world.error = err
    world.message = type(err) == "table" and err.message or tostring(err)
  end
  world.output = table.concat(world.said, "\n")
  if world.files["out/results.json"] then
    world.results = M.decode(world.files["out/results.json"])
  end
  return world
end

--- A setup: the engine plans, simulates and routes.
function M.on_engine()
  for _, name in ipairs { "choices", "loads", "plan", "result_in_turns", "run_in_turns",
    "too_large_together", "trace_info", "trace_routing", "workload" } do
    core[name] = real[name]
  end
end

local left = {}  -- recipe -> what it leaves in a world without a setup

--- The files that a recipe leaves in its output folder, as those of `folder`.
function M.left(text, folder, setup)
  local files = not setup and left[text] or M.run(text, {}, "run", setup).files
  if not setup then left[text] = files end
  local out = {}
  for name, content in pairs(files) do out[name:gsub("^out/", folder .. "/")] = content end
  return out
end

return M
