-- moe.search{...}: which mix of techniques is best for a model on a cluster, and why. The mixes are
-- those of moe.search.space; moe.search.explore chooses which of them are planned and simulated.
local core = require "moe.core"
local errors = require "moe.base.errors"
local explore = require "moe.search.explore"
local grid_lib = require "moe.spec.grid"
local jobs_lib = require "moe.run.jobs"
local mixes = require "moe.search.mixes"
local model_lib = require "moe.spec.model"
local order = require "moe.search.order"
local parts = require "moe.run.parts"
local policy = require "moe.spec.policy"
local real = require "moe.search.real"
local schema = require "moe.base.schema"
local session = require "moe.run.session"
local settings = require "moe.run.settings"
local simulations = require "moe.run.simulations"
local space_lib = require "moe.search.space"
local target = require "moe.spec.target"
local text = require "moe.search.text"

local M = {}

local OBJECTIVES = { "iteration_ms", "peak_bytes" }

M.FIELDS = {
  name = { type = "string", default = "search",
    doc = "the search's name in results, which no other search of the recipe has" },
  model = { type = "model", required = true, doc = "moe.model" },
  cluster = { type = "cluster", required = true, doc = "moe.cluster" },
  optimizer = target.OPTIMIZER_FIELD,
  grid = grid_lib.FIELD,
  techniques = { type = "any", default = "all", as = '"all"|string[]',
    doc = 'the techniques that mixes may have: "all" (without placements where the model has no '
      .. "routing, since none is made then), or a list of names of passes and of fields of a "
      .. "system; prophet_split is prophet with split = true: "
      .. table.concat(space_lib.TECHNIQUES, ", ") },
  with = { type = "list", of = { type = "pass" }, default = {},
    doc = "policies of the recipe, or passes with options of their own that no listed technique "
      .. "has, which a mix has or has not; of placements, which techniques may have too, a mix has "
      .. "at most one" },
  grids = { type = "table", default = {}, as = "table<string, any[]>",
    doc = "fields of the grid -> lists of the values to try, beside that of `grid`: pp, ep, "
      .. "micro_batches, global_batch, layout" },
  pipelines = { type = "list", of = { type = "pipeline" }, default = {},
    doc = "pipeline schedules to try beside 1f1b; a mix has hide_a2a only where there are some" },
  dispatchers = { type = "list", of = { type = "dispatcher" }, default = {},
    doc = "dispatchers to try beside all-to-alls of every choice; a mix has at most one" },
  options = { type = "table", default = {}, as = "table<string, table<string, any[]>>",
    doc = "pass -> option -> list of the values to try, in place of the built-in lists; for passes "
      .. "of the techniques" },
  allowed = { type = "function", as = "fun(has: table<string, boolean>): boolean",
    doc = "whether a mix is allowed: has[name] is true for its techniques and policies; default: "
      .. "all are" },
  objective = { type = "any", default = "iteration_ms", as = "string|string[]",
    doc = '"iteration_ms", "peak_bytes", or a list of both: the first is that of the best mix, and '
      .. "mixes are looked for that are good in one or in between" },
  memory_bytes = { type = "number", lo = 1, hi = 1e15,
    doc = "memory of a device, which no mix may exceed; default: that of the cluster" },
  budget_s = { type = "number", lo = 0.1, hi = 1e6, default = 60,
    doc = "seconds for the known systems, which have half of them, and for mixes" },
  contributions = { type = "boolean", default = true,
    doc = "whether to find out, after the budget, what each technique of the best mix contributes "
      .. "and how its order depends on the assumed constants, for as long as the budget again" },
  steps = { type = "integer", lo = 1, hi = 1e6,
    doc = "number of steps to simulate; their mean counts. Default: 1, or 8 for a model with "
      .. "a routing and for mixes that place experts" },
  top = { type = "integer", lo = 1, hi = 1e4, default = 10,
    doc = "how many of the best mixes are listed" },
  execute = { type = "any", as = "integer|moe.SearchExecute",
    doc = "runs the best mixes, as many as this number says, and the plain one on CPU ranks, and "
      .. "says whether they are in the order that was predicted; or a table of fields" },
  patience = { type = "integer", lo = 0, hi = 1e6, default = 3,
    doc = "number of descents from random mixes in a row that find nothing better, after which a "
      .. "search of a large space ends before its budget; with more it sees more of the space" },
  seed = { type = "integer", lo = 0, hi = 2 ^ 31, default = 1,
    doc = "seed of the random mixes at which a search of a large space begins again" },
}
M.EXECUTE = real.FIELDS

local function techniques_of(given, at)
  local set, names = {}, space_lib.TECHNIQUES
  if type(given) ~= "table" and given ~= "all" then
    schema.refuse("moe.search.techniques", given, '"all" or a list of names', at)
  end
  local list = { type = "list", of = { type = "string", enum = names }, distinct = true }
  for _, name in ipairs(given == "all" and names
    or schema.field(list, given, "moe.search.techniques", at)) do
    set[name] = true
  end
  return set
end

local function objectives_of(given, at)
  local list = type(given) == "table" and given or { given }
  if #list < 1 or #list > #OBJECTIVES or list[1] == list[2] then
    errors.user("moe.search.objective: give iteration_ms, peak_bytes or a list of both", at)
  end
  for i, name in ipairs(list) do
    schema.field({ type = "string", enum = OBJECTIVES }, name,
      type(given) == "table" and ("moe.search.objective[%d]"):format(i) or "moe.search.objective",
      at)
  end
  return list
end

-- Raises a user error unless each list of `options` is of values of an option of a pass that the
-- techniques, a set, have.
local function check_options(options, techniques, at)
  local passes, searched = {}, space_lib.passes_of(techniques)
  for _, row in ipairs(policy.pass_rows) do passes[row.name] = row end
  for pass, lists in pairs(options) do
    local path = "moe.search.options." .. tostring(pass)
    if not passes[pass] then
      schema.unknown("moe.search.options", "pass", pass, schema.keys_of(passes), at)
    end
    if not searched[pass] then
      errors.user(("%s: '%s' is not searched, so its options have no effect; searched are: %s")
        :format(path, pass, next(techniques) and table.concat(schema.keys_of(techniques), ", ")
        or "none"), at)
    end
    schema.field({ type = "table" }, lists, path, at)
    for option, list in pairs(lists) do
      local place = path .. "." .. tostring(option)
      schema.field({ type = "list", of = { type = "any" }, distinct = true, least = "value" }, list,
        place, at)
    end
  end
end

-- Raises a user error if a mix could have a pass twice, from `with` and from a list of techniques.
-- Of placements a mix has one at most.
local function check_with(with, techniques, at)
  local searched = space_lib.passes_of(techniques)
  for i, pass in ipairs(with) do
    local technique = not pass.own and pass.stage ~= "placement" and searched[pass.name]
    if technique then
      errors.user(("moe.search.with[%d]: '%s' is also among the passes of `techniques` (%s), so a "
        .. "mix would have it twice; give the values to try in `options`, or list the techniques "
        .. "without %s"):format(i, pass.name, technique, technique), at)
    end
  end
end

-- Raises a user error unless `grids` has lists of values of fields of a grid, and nothing is asked
-- beside it that knows one grid alone.
local function check_grids(c, at)
  for key, list in pairs(c.grids) do
    local path = "moe.search.grids." .. tostring(key)
    if not grid_lib.FIELDS[key] then
      schema.unknown("moe.search.grids", "field", key, schema.keys_of(grid_lib.FIELDS), at)
    end
    schema.field({ type = "list", of = grid_lib.FIELDS[key], distinct = true, least = "value" },
      list, path, at)
  end
  if c.execute and (next(c.grids) or #c.pipelines + #c.dispatchers > 0) then
    errors.user("moe.search.execute: mixes with grids, pipelines or dispatchers of their own are "
      .. "only simulated so far; omit execute, and run best.lua with --executor cpu", at)
  end
end

local lines = {}  -- name of a search that was begun -> line of the recipe

--- Forgets the names of searches: another text of the session begins.
function M.forget() lines = {} end

-- Raises a user error if the recipe has another search of this name: the name identifies a search
-- in results.json and begins the name of the recipe that it writes.
local function claim_name(name, at)
  if #name > 100 or not name:match "^[^/%c]+$" then
    schema.refuse("moe.search.name", name, "1 to 100 characters other than / and control "
      .. "characters, since it begins the name of a file", at)
  end
  if lines[name] then
    errors.user(("moe.search.name: '%s' is the name of another search that this recipe runs (line "
      .. "%s); give each a name of its own"):format(name, lines[name]), at)
  end
  lines[name] = at and at.line or "?"
end

-- Returns the specification of the plans, for `steps` or for as many steps as a system needs.
-- changes: fields of the grid; ends: as in schema.collector, or nil.
local function spec_of(c, changes, ends)
  local model = c.model
  if changes and next(changes) then
    model = model_lib.on(model, grid_lib.with(c.grid, changes, c.at))
  end
  local spec = jobs_lib.simulated_spec({ model = model, cluster = c.cluster,
    optimizer = c.optimizer }, ends)
  if c.memory_bytes then
    spec.cluster = schema.merged(spec.cluster, { device = schema.merged(spec.cluster.device,
      { memory_bytes = c.memory_bytes }) })
  end
  return spec
end

-- Returns the weights of log(time) in the sums that are minimized, one after the other.
local function weights_of(objectives)
  local fast = objectives[1] == "iteration_ms"
  if #objectives == 2 then return fast and { 1, 0.5, 0 } or { 0, 0.5, 1 } end
  return { fast and 1 or 0 }
end

-- Sees the mix `base`, and each policy of `with` in it, however short the budget is.
local function see_given(space, tried, weight, base)
  tried:exact(base, weight)
  for _, given in ipairs(space:given()) do
    local mix = { unpack(base) }
    mix[given.dimension] = given.choice
    tried:exact(mix, weight)
  end
end

-- Explores the space once for each weight, with the time since `begin` in the budget; returns
-- whether all mixes were seen.
local function explore_all(space, tried, c, weights, begin)
  local exhaustive = false
  for i, weight in ipairs(weights) do
    local found = explore.explore(space, {
      evaluate = function(mix)
        core.status(("searching, %d mixes simulated"):format(tried.simulated),
          c.budget_s - (core.clock() - begin))
        return tried:value(mix, weight)
      end,
      starts = tried:starts(weight), seed = c.seed + i, patience = c.patience,
      used = function() return core.clock() - begin end,
      budget = c.budget_s * i / #weights })
    exhaustive = exhaustive or found.exhaustive
    if exhaustive then break end
  end
  return exhaustive
end

-- Sees those mixes that belong to this part of the search (--points), as explore_all() does; they
-- are kept for the search without --points.
local function explore_part(space, tried, c, weights, begin)
  local part, all = parts.asked()
  local n = 0
  explore.each_mix(space, function(mix)
    n = n + 1
    if (n - part) % all == 0 then tried:value(mix, weights[1]) end
    return core.clock() - begin < c.budget_s
  end)
  return false
end

local mt = schema.class("search", "what moe.search returns")

schema.record("search", "search", "what moe.search found", {
  { "model", "string", "name of the model" }, { "cluster", "string", "name of the cluster" },
  { "devices", "integer", "number of devices" },
  { "memory_bytes", "integer", "memory of a device, which no mix may exceed" },
  { "steps", "integer", "simulated steps of the best mix, of which the mean counts" },
  { "objective", "string[]", "what was minimized" },
  { "best", "moe.Run", "the best mix, as in results.json" },
  { "plain", "moe.Run", "the mix without any technique" },
  { "top", "moe.Run[]", "the best mixes; mixes with equal plans once" },
  { "front", "moe.Run[]", "the mixes and known systems to which no other is better in both time "
    .. "and memory, the fastest first" },
  { "named", "moe.Run[]", "the known systems, the best first" },
  { "known", "string?", "the known system that is better than all mixes, which `best` is then" },
  { "beyond", "string?", "what the best known system has that no mix has, as far as it has any" },
  { "contributions", "{ technique: string, without_ms: number?, best_ms: number, without_bytes: "
    .. "integer?, best_bytes: integer, oom: boolean?, why: string? }[]",
    "for each technique of the best mix its time and memory without that technique; oom: it does "
      .. "not fit then; why: it is refused then" },
  { "refused", "{ techniques: string, why: string, n: integer }[]",
    "why mixes were refused, the first mix, and how many" },
  { "policies", "{ policy: string, n: integer, refused: integer, why: string?, best_ms: "
    .. "number?, techniques: string? }[]", "for each pass in `with`: in how many mixes it was "
    .. "tried, how many of them were refused, the first reason, and the time and the techniques of "
    .. "the fastest of the others that fits" },
  { "not_allowed", "integer", "mixes that the search came to and `allowed` forbids" },
  { "too_large", "integer", "mixes that were simulated and do not fit in a device's memory" },
  { "no_rows", "integer", "those of them in which a device gets more rows than model.rows_bound "
    .. "allows" },
  { "no_room", "string?", "which device of the first of these, and how many rows" },
  { "order", "{ second: string, holds: boolean, changes: string[], not_seen: integer? }[]",
    "whether the best mix stays faster than the plain one and than the best known system at both "
      .. "ends of each assumed constant, or at which not; not_seen: constants without the time" },
  { "bound_ms", "number?", "a time below which no schedule of the best mix's ops is; nil under a "
    .. "routing or with placed experts, whose ops take other times in each step" },
  { "least_bound_ms", "number?", "the smallest such time of all mixes seen" },
  { "simulated", "integer", "mixes that were planned, and simulated unless they are refused" },
  { "not_simulated", "integer?", "known systems for which half of the budget was too short" },
  { "cached", "integer", "simulations, of known systems too, that were found in the cache" },
  { "excluded", "integer", "mixes that were not simulated since a bound says that they are slower, "
    .. "or since mixes with the same two techniques were refused" },
  { "space", "integer", "number of mixes" },
  { "exhaustive", "boolean", "whether all mixes were seen" },
  { "patience", "integer?", "the field `patience`, if the search ended by it" },
  { "budget_s", "number", "the field `budget_s`: seconds after which no further mix is begun" },
  { "points", "string?", "the part of the mixes that was seen, with --points" },
  { "interrupted", "boolean?", "true after an interruption: the other fields say what was seen "
    .. "until then, without contributions and order" },
  { "searched_s", "number", "seconds in which mixes were looked for" },
  { "took_s", "number", "seconds of the whole search, contributions and order included" },
  { "executed", "moe.SearchExecuted?", "what the executed runs say, with execute" },
  { "system", "string", "the best mix as Lua text, a moe.system" },
  { "recipe", "string?", "name of the recipe of the best mix, in the output folder; nil if model, "
    .. "cluster or policies cannot be written" },
})

-- Returns the best mix without the techniques that do not make it better.
local function simplest(space, tried, mix, weight)
  local value, again = tried:value(mix, weight), true
  while again do
    again = false
    for _, choice in ipairs(space:chosen(mix)) do
      local less = { unpack(mix) }
      less[choice.dimension] = 1
      local other = tried:exact(less, weight)
      if other and other <= value * (1 + 1e-9) then
        mix, value, again = less, other, true
        break
      end
    end
  end
  return mix
end

local function contributions(space, tried, mix)
  local list, best = core.array {}, tried:record(mix, "best")
  for _, choice in ipairs(space:chosen(mix)) do
    local less = { unpack(mix) }
    less[choice.dimension] = 1
    tried:exact(less, 1)
    local one = tried.of[space:key(less)]
    list[#list + 1] = { technique = choice.label, best_ms = best.iteration_ms,
      best_bytes = best.peak_bytes, without_ms = one and one.iteration_ms or nil,
      without_bytes = one and one.peak_bytes or nil, oom = one and one.oom or nil,
      why = one and one.why or not one and "`allowed` forbids it" or nil }
  end
  table.sort(list, function(a, b) return (a.without_ms or 1e300) > (b.without_ms or 1e300) end)
  return list
end

-- Returns { iteration_ms, peak_bytes, label, known } of all mixes and known systems that were seen.
local function seen_of(tried)
  local seen = {}
  for i, p in ipairs(tried:points()) do
    seen[i] = { iteration_ms = p.iteration_ms, peak_bytes = p.peak_bytes, label = p.label,
      known = p.named ~= nil }
  end
  return seen
end

-- Checks a search without searching (`moebench check`): simulates the mix without any technique and
-- those with one of the passes in `with` alone, and says which of these are refused.
local function check(c, space, at)
  local tried = mixes.new(space, spec_of, c, at)
  tried:record(space:plain(), "plain")
  core.say(("ok: %s, %d mixes; simulated: the plain one%s"):format(c.name, space.size,
    #c.with > 0 and " and each of `with` alone" or ""))
  for _, given in ipairs(space:given()) do
    local mix = space:plain()
    mix[given.dimension] = given.choice
    local why = tried:entry(mix).why
    core.say(why and ("%s alone is refused: %s"):format(given.label, why)
      or ("%s alone: planned"):format(given.label))
  end
end

-- Returns what the tried mixes say of the best one: most fields of the type "search".
local function found(search, best, weight)
  local c, space, tried = search.c, search.space, search.tried
  local known = weight == 1 and tried:better_known(best)
  local explains = c.contributions and not tried:entry(best).oom and not known
  local s = { best = tried:record(best, "best"), plain = tried:record(space:plain(), "plain"),
    contributions = explains and contributions(space, tried, best) or core.array {},
    order = core.array {}, top = tried:top(best, weight, c.top),
    front = tried:front(best, weight), named = tried:named(), refused = tried:refusals(),
    policies = tried:policies(), not_allowed = tried.not_allowed,
    simulated = tried.simulated, not_simulated = tried.not_simulated, excluded = tried.excluded,
    space = space.size, name = c.name, model = c.model.name, cluster = c.cluster.name,
    devices = c.cluster.devices,
    memory_bytes = tried.spec.cluster.device.memory_bytes, steps = tried:steps_of(best) }
  s.beyond = tried.systems[1] and tried.systems[1].beyond
  s.too_large, s.no_rows, s.no_room = tried:too_large()
  s.bound_ms = tried:entry(best).bound_ms
  s.least_bound_ms = s.bound_ms and tried.least_bound
  if explains then
    s.order = order.of(c, tried, best, s.named[1], function()
      return core.clock() - search.begin < search.searched_s + c.budget_s
    end)
  end
  s.system = text.system(space, best)
  if known then
    s.best, s.known = s.named[1], known
    s.system = ("moe.system %q {}"):format(known)
  end
  return s
end

-- Looks for mixes. search: { c, space, tried, objectives, weights, begin, before }; sets its
-- `exhaustive` and `searched_s`.
local function look(search)
  see_given(search.space, search.tried, search.weights[1], search.space:plain())
  search.tried:known_systems(function()
    return core.clock() - search.begin < search.c.budget_s / 2
  end)
  local look_at = parts.asked() and explore_part or explore_all
  search.exhaustive = look_at(search.space, search.tried, search.c, search.weights, search.begin)
  search.searched_s = core.clock() - search.begin
end

-- Evaluates what was seen, with `best` or a simpler mix as the best one; prints it, adds it to the
-- results and returns it and the best mix.
local function conclude(search, best)
  local c, space, tried, weight = search.c, search.space, search.tried, search.weights[1]
  best = simplest(space, tried, best, weight)
  see_given(space, tried, weight, best)
  best = simplest(space, tried, tried:best(weight), weight)
  local s = found(search, best, weight)
  s.exhaustive, s.objective, s.searched_s = search.exhaustive, search.objectives, search.searched_s
  s.budget_s, s.interrupted, s.points = c.budget_s, search.interrupted, core.args.points
  local by_patience = not s.exhaustive and not s.points and s.searched_s < c.budget_s
  s.patience = by_patience and not s.interrupted and c.patience or nil
  s.took_s = core.clock() - search.begin
  s.cached = simulations.counts(search.before).found
  local why
  if not s.best.oom then s.recipe, why = text.write_recipe(c, space, best, s.known) end
  search.printed = true
  text.print(s, why)
  session.add_search(c.name, s, seen_of(tried))
  return s, best
end

-- Evaluates what was seen before an interruption, from what is kept of simulations that are done.
local function conclude_early(search)
  local best = search.tried:best(search.weights[1])
  if not best then return end
  search.tried:stop()
  search.interrupted, search.c = true, schema.merged(search.c, { contributions = false })
  search.exhaustive = search.exhaustive or false
  search.searched_s = search.searched_s or core.clock() - search.begin
  local ok, err = xpcall(function() conclude(search, best) end, errors.with_traceback)
  if not ok and not errors.is_interrupt(err) then error(err, 0) end
end

-- Looks for mixes, and returns what conclude() returns. After an interruption it concludes from
-- what was seen, and raises the interruption again.
local function look_and_conclude(search, at)
  local s, best
  local ok, err = xpcall(function()
    look(search)
    best = search.tried:best(search.weights[1])
    if not best then
      local why = search.tried:first_reason()
      errors.user(why and "moe.search: no mix can be planned; the first was refused: " .. why
        or "moe.search.allowed: allows no mix of those seen; return true for some", at)
    end
    s, best = conclude(search, best)
  end, errors.with_traceback)
  if ok then return s, best end
  if errors.is_interrupt(err) and not search.printed then
    core.undisturbed(function() conclude_early(search) end)
  end
  error(err, 0)
end

--- moe.search{...}: returns { best, front, contributions, ... }, as the type "search" documents,
--- prints it, and adds it to results.json.
M.search = schema.taking(M.FIELDS, "moe.search", function(c, at)
  local objectives = objectives_of(c.objective, at)
  local techniques = techniques_of(c.techniques, at)
  check_options(c.options, techniques, at)
  if c.techniques ~= "all" then check_with(c.with, techniques, at) end
  c = settings.call(c, M.FIELDS, "moe.search", at)
  local execute = c.execute and real.check(c.execute, at)
  check_grids(c, at)
  c.at = at
  if #c.pipelines == 0 then techniques.hide_a2a = nil end
  if c.techniques == "all" and not c.model.routing then
    space_lib.leave_placements_out(techniques, c.options)
  end
  local space = space_lib.new(techniques, c.options, c.with, c)
  if space.size == 1 then
    errors.user("moe.search.techniques: the list is empty; give at least one technique, or `with`",
      at)
  end
  errors.stop_in "policies"
  claim_name(c.name, at)
  if core.mode == "check" then check(c, space, at) end
  errors.stop_in "check"
  local begin, before = core.clock(), simulations.counts()
  session.add("experiment", { name = c.name, title = "", over = {}, params = {},
    set = core.args.set })
  local tried, weights = mixes.new(space, spec_of, c, at), weights_of(objectives)
  local s, best = look_and_conclude({ c = c, space = space, tried = tried, weights = weights,
    objectives = objectives, begin = begin, before = before }, at)
  if execute then
    s.executed = real.run(c, execute, space, tried, best, weights[1])
    text.print_executed(s)
    session.change_search(s)
  end
  return schema.object(s, mt)
end)

return M
