-- A world to run recipes in without the program: the Lua library, freshly loaded, on a core whose
-- numbers are made up but always the same.
local M = {}

local RECIPE = "recipe.lua"

local raw_pairs = pairs

--- pairs as the host has it: keys in order.
function M.sorted_pairs(t)
  local keys, n, kind, mixed = {}, 0, nil, false
  for k in raw_pairs(t) do
    n = n + 1
    keys[n], kind, mixed = k, kind or type(k), mixed or kind ~= nil and type(k) ~= kind
  end
  -- Without a function that compares, sorting takes a fifth of the time.
  table.sort(keys, mixed and function(a, b)
    if type(a) == type(b) then return a < b end
    return type(a) < type(b)
  end or nil)
  local i = 0
  return function()
    i = i + 1
    return keys[i], keys[i] and rawget(t, keys[i])
  end
end

local array_mt = {}

function M.encode(v)
  local kind = type(v)
  if kind == "string" then return (("%q"):format(v):gsub("\\\n", "\\n")) end
  if kind == "number" then return ("%.17g"):format(v) end
  if kind == "boolean" then return tostring(v) end
  assert(kind == "table", "no place in JSON: " .. kind)
  local parts = {}
  if #v > 0 or getmetatable(v) == array_mt then
    for i, x in ipairs(v) do parts[i] = M.encode(x) end
    for k in raw_pairs(v) do assert(type(k) == "number", "a list with a key: " .. tostring(k)) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for k, x in M.sorted_pairs(v) do
    assert(type(k) == "string", "a key that is no text")
    parts[#parts + 1] = M.encode(k) .. ":" .. M.encode(x)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- A text of all plain values in `parts`, and of nothing else.
local function key_of(parts)
  if type(parts) ~= "table" then return type(parts) == "function" and "" or tostring(parts) end
  local all = {}
  for k, v in M.sorted_pairs(parts) do all[#all + 1] = tostring(k) .. "=" .. key_of(v) end
  return "{" .. table.concat(all, ",") .. "}"
end

--- Reads what encode() writes, by making it Lua.
function M.decode(text)
  local words = {}
  local lua = text:gsub('\\.', function(c) return c == '\\"' and "\\034" or c end)
  lua = lua:gsub('"([^"]*)"', function(word)
    words[#words + 1] = word
    return ("<%d>"):format(#words)
  end)
  lua = lua:gsub("%[", "{"):gsub("%]", "}"):gsub("<(%d+)>:", "[<%1>]=")
  lua = lua:gsub("<(%d+)>", function(n) return '"' .. words[tonumber(n)] .. '"' end)
  return assert(loadstring("return " .. lua))()
end

-- As engine/base/names: a swap of neighbours counts as one.
local function distance(a, b)
  local d = {}
  for i = 0, #a do
    d[i] = { [0] = i }
    for j = 1, #b do
      if i == 0 then
        d[0][j] = j
      else
        local same = a:sub(i, i) == b:sub(j, j)
        d[i][j] = math.min(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same and 0 or 1))
        if i > 1 and j > 1 and a:sub(i, i) == b:sub(j - 1, j - 1)
          and a:sub(i - 1, i - 1) == b:sub(j, j) then
          d[i][j] = math.min(d[i][j], d[i - 2][j - 2] + 1)
        end
      end
    end
  end
  return d[#a][#b]
end

local function nearest(name, names)
  local best, least = "", math.max(1, math.floor(#name / 3)) + 1
  for _, candidate in ipairs(names) do
    local n = distance(name, candidate)
    local short = #name <= 3 and #candidate <= 3
    local plausible = (not short or name:sub(1, 1) == candidate:sub(1, 1))
      and name:gsub("%d", "") ~= candidate:gsub("%d", "")
    if n < least and plausible then best, least = candidate, n end
  end
  return best
end

local TABLES = require "tables"

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
  for _, row in ipairs(TABLES.metrics) do out[row.name] = out[row.name] or 0 end
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
  if world.fails_in == name then error({ kind = "run", message = "rank 1 is gone" }, 0) end
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

local of_recipe = setmetatable({}, { __mode = "k" })  -- function -> whether it is a recipe's

-- The innermost frame of the recipe.
local function caller()
  for level = 2, 200 do
    local info = debug.getinfo(level, "f")
    if not info then return nil end
    local own = of_recipe[info.func]
    if own == nil then
      own = debug.getinfo(level, "S").source == "@" .. RECIPE
      of_recipe[info.func] = own
    end
    local line = own and debug.getinfo(level, "l").currentline or 0
    if line > 0 then return RECIPE, line end
  end
end

local function make_core(world, args)
  return {
    version = "0", scripts_dir = M.scripts_dir, out_dir = "out", mode = "run", null = {},
    recipe = { name = RECIPE, path = "/" .. RECIPE, hash = "00" },
    args = { set = args.set or {}, executor = args.executor, ranks = args.ranks,
      trust = args.trust or false, cache = "cache.sqlite", workers = 1,
      sensitivity = args.sensitivity },
    array = function(t) return setmetatable(t, array_mt) end,
    run_in_turns = in_turns, result_in_turns = result_in_turns,
    too_large_together = function() return world.too_large end,
    clock = os.clock,
    default_corpus = function() return "corpus.txt" end,
    load_on = function() end, end_loading = function() end,
    gpu = function() return "1 x H200" end,
    executor_missing = function(name) return name == "cuda" and world.no_gpu or nil end,
    keep_earlier = function()
      world.kept = (world.kept or 0) + 1
      return world.earlier or ""
    end,
    display_name = function(source) return source end,
    json_decode = M.decode, json_encode = M.encode,
    machine = function() return { cpu = "none", cores = 2, kernel_set = "made up" } end,
    failure = function(kind, message, traceback)
      return setmetatable({ kind = kind, message = message, traceback = traceback },
        { __tostring = function(e) return e.message end })
    end,
    invalid_byte = function() end,
    printable = function(text)
      return (text:gsub("%c", function(c) return ("\\x%02x"):format(c:byte()) end))
    end,
    kind_of = function(e) return type(e) == "table" and e.kind or "" end,
    nearest = nearest,
    now = function() return "2025-01-31T12:00:00Z" end,
    most_others = 0.05,
    session = "made up",
    find_simulation = function(key) return unpack(world.outcomes[key] or {}) end,
    store_simulation = function(key, ...) world.outcomes[key] = { ... } end,
    simulation_key = function(parts) return key_of(parts) end,
    touched = function() return #world.said end,
    status = function(what, own, rest) world.status = { what, own, rest } end,
    row = function(text) world.rows[#world.rows + 1] = text end,
    undisturbed = function(f) f() end,
    warn = function(text) world.warned[#world.warned + 1] = text end,
    append_output = function(name, text, anew)
      local file = "out/" .. name
      world.files[file] = (anew and "" or world.files[file]) .. text
    end,
    say = function(text) world.said[#world.said + 1] = text end,
    table = function(kind) return TABLES[kind] end,
    library_files = function(folder) return TABLES[folder] end,
    check_model = function(model)
      if model.heads == 7 then error("model.heads: 7 is not liked", 0) end
    end,
    model_counts = function() return { parameters = {}, flops = 0 } end,
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
      for k, v in raw_pairs(spec) do copy[k] = v end
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
  }
end

-- The library's files are read and compiled once; a fresh library runs their chunks again.
local chunks = {}
table.insert(package.loaders, 1, function(name)
  if name ~= "moe" and not name:match("^moe%.") then return nil end
  chunks[name] = chunks[name] or assert(loadfile(assert(package.searchpath(name, package.path))))
  return chunks[name]
end)

local function fresh_library(core)
  for name in raw_pairs(package.loaded) do
    if name == "moe" or name:match("^moe%.") then package.loaded[name] = nil end
  end
  package.loaded["moe.core"] = core
  return require "moe"
end

--- A world after the recipe `text` ran in it: what it said, planned, executed and wrote, its
--- globals, and the error (its message, the error itself) if it raised one. args: those of the
--- command line; mode: "run", "check" or "policies"; setup(world, core): before the library is
--- loaded.
function M.run(text, args, mode, setup)
  local world = { text = text, said = {}, plans = {}, executed = {}, files = {},
    simulated = {}, shown = {}, outcomes = {},
    rows = {}, warned = {} }
  local core = make_core(world, args or {})
  core.mode = mode or "run"
  if setup then setup(world, core) end
  core.caller = function() end  -- no recipe runs yet
  world.moe = fresh_library(core)
  core.caller = caller
  world.globals = {}
  for name, value in raw_pairs(_G) do
    if name ~= "package" then world.globals[name] = value end
  end
  world.globals._G = world.globals
  debug.getregistry()["moe.recipe_globals"] = world.globals
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

local left = {}  -- recipe -> what it leaves in a world without a setup

--- The files that a recipe leaves in its output folder, as those of `folder`.
function M.left(text, folder, setup)
  local files = not setup and left[text] or M.run(text, {}, "run", setup).files
  if not setup then left[text] = files end
  local out = {}
  for name, content in raw_pairs(files) do out[name:gsub("^out/", folder .. "/")] = content end
  return out
end

return M
