-- The mixes of a space that moe.search has tried, with what is known of each: its time and memory,
-- or the reason for which it was refused.
local core = require "moe.core"
local errors = require "moe.base.errors"
local lua_text = require "moe.base.lua_text"
local schema = require "moe.base.schema"
local simulated = require "moe.run.simulated"
local simulations = require "moe.run.simulations"
local space_lib = require "moe.search.space"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"

local M = {}

-- One of so many mixes that a refused pair of techniques excludes is planned all the same: the
-- others do not prove that no further technique lifts the refusal.
local TRIED_ALL_THE_SAME = 20

-- So many times the mixes with one reason are looked at for the pair of techniques at fault.
local LOOKS = 3

-- What a known system has that `allowed` refuses, as its `beyond` says it.
local FORBIDDEN = "what `allowed` forbids"

-- The value of a mix that does not fit is this times by how much, so that descents leave it.
local TOO_LARGE = 1e15

local Tried = {}
Tried.__index = Tried

--- make_spec(c, changes, ends): returns the specification of the plans with these changes of the
--- grid; c: the fields of moe.search; errors are raised at `at`.
function M.new(space, make_spec, c, at)
  local techniques = {}
  for _, dimension in ipairs(space.dimensions) do
    for _, choice in ipairs(dimension.choices) do
      if choice.technique then techniques[choice.technique] = true end
    end
  end
  return setmetatable({ techniques = techniques, space = space, spec = make_spec(c),
    make_spec = make_spec, specs = {}, c = c, at = at,
    of = {}, list = {}, systems = {}, bounds = {}, refused_pairs = {}, looks = {}, simulated = 0,
    excluded = 0, forbidden = {}, not_allowed = 0 }, Tried)
end

-- Returns how many steps of a system are simulated; nil: the default of the plan, one.
function Tried:steps_for(system)
  return self.c.steps or (self.c.model.routing or target.places(system)) and target.PLACED_STEPS
    or nil
end

--- Returns how many steps of a mix are simulated.
function Tried:steps_of(mix)
  return self:steps_for(self.space:system(mix, "mix", self.at)) or 1
end

-- Returns the specification for a system, with the number of steps that it takes.
function Tried:spec_for(system, spec)
  local steps = self:steps_for(system)
  return schema.merged(spec or self.spec, { simulate = { steps = steps } })
end

--- Returns the specification of a mix, or nil and why its grid is refused. ends: as in
--- schema.collector, or nil.
function Tried:spec_of(mix, ends)
  local changes = self.space:grid(mix)
  if not next(changes) and not ends then return self.spec end
  local key = core.json_encode { changes, ends or false }
  if not self.specs[key] then
    local ok, made = errors.try(self.make_spec, self.c, changes, ends)
    self.specs[key] = ok and { spec = made } or { why = made }
  end
  local found = self.specs[key]
  return found.spec, found.why and self:reason(found.why)
end

--- Returns the reason of a refusal, an error, as refusals() has them: without the line of the
--- search, the numbers in names of ops, which differ from mix to mix, the stages before, and the
--- system.
function Tried:reason(err)
  local text = tostring(err.message or err):gsub(" %(after stage.*", "")
    :gsub(" %(system '[^']*'%)$", "")
  local here = ("%s:%d: "):format(self.at.name, self.at.line)
  if text:sub(1, #here) == here then text = text:sub(#here + 1) end
  return (text:gsub("'b%d[^']*'", function(op)
    return (op:gsub("^'b%d+", "'b*"):gsub("_%d+", "_*"))
  end):gsub("system 'mix'", "the mix"))
end

-- Simulates a system; returns its outcome, or nil and the reason for which it is refused.
function Tried:outcome(system, spec)
  local ok, result = pcall(simulations.outcome, self:spec_for(system, spec), system, {})
  if ok then return result end
  local kind = core.kind_of(result)
  if kind ~= "user" and kind ~= "run" or errors.is_interrupt(result) then error(result, 0) end
  return nil, self:reason(result)
end

--- Returns the time of a system with another specification (order.lua), or nil if it is refused.
function Tried:ms_of(system, spec)
  local outcome = self:outcome(system, spec)
  return outcome and outcome.iteration_ms
end

-- Returns a time below which no schedule of the ops of a system is, or nil if it is not known:
-- under a routing or with placed experts each step has a bound of its own, and a placement that
-- reads times may place otherwise in another mix.
function Tried:bound_of(system, outcome)
  if self.c.model.routing or target.places(system) then return nil end
  return outcome.lower_bound_ms
end

-- Returns { key, mix, label, iteration_ms, peak_bytes, bound_ms, oom, why } of a mix, which is
-- simulated now unless it was before. known: the outcome of a system with the same passes, or nil.
function Tried:entry(mix, known)
  local key = self.space:key(mix)
  if self.of[key] then return self.of[key] end
  local system, why = self.space:system(mix, "mix", self.at), nil
  local outcome, spec = known
  if not known then
    spec, why = self:spec_of(mix)
    if spec then outcome, why = self:outcome(system, spec) end
  end
  self.simulated = self.simulated + 1
  local entry = { key = key, mix = { unpack(mix) }, why = why, label = self.space:label(mix),
    known = known }
  if outcome then
    entry.iteration_ms, entry.peak_bytes = outcome.iteration_ms, outcome.peak_bytes
    entry.oom, entry.no_room, entry.hash = outcome.oom, outcome.no_room, outcome.plan_hash
    entry.bound_ms = self:bound_of(system, outcome)
    self.bounds[self.space:family(mix)] = entry.bound_ms
    self.least_bound = math.min(self.least_bound or math.huge, entry.bound_ms or math.huge)
  end
  self.of[key] = entry
  self.list[#self.list + 1] = entry
  return entry
end

-- Returns the value that is minimized: the weighted product of time and memory; nil if refused.
-- weight: of the logarithm of the time; the rest is that of the memory.
function Tried:score(entry, weight)
  if entry.why then return nil end
  if entry.oom then
    local memory = self.spec.cluster.device.memory_bytes
    return TOO_LARGE * math.max(1, memory > 0 and entry.peak_bytes / memory or 1)
  end
  return entry.iteration_ms ^ weight * entry.peak_bytes ^ (1 - weight)
end

local function pair_key(a, b) return a.label .. " + " .. b.label end

-- Calls f(a, b) for each two techniques of a mix.
local function each_pair(chosen, f)
  for i, a in ipairs(chosen) do
    for j = i + 1, #chosen do f(a, chosen[j]) end
  end
end

-- Returns whether two of the techniques were refused together, apart from the mixes that are tried
-- all the same.
function Tried:has_refused_pair(chosen)
  local found = false
  each_pair(chosen, function(a, b)
    local pair = self.refused_pairs[pair_key(a, b)]
    if pair then
      pair.n = pair.n + 1
      found = found or pair.n % TRIED_ALL_THE_SAME ~= 0
    end
  end)
  return found
end

-- Looks for two techniques that are refused for the same reason as the mix also without the others.
function Tried:learn(chosen, why)
  self.looks[why] = (self.looks[why] or 0) + 1
  if #chosen < 3 or self.looks[why] > LOOKS then return end
  each_pair(chosen, function(a, b)
    local two = self.space:plain()
    two[a.dimension], two[b.dimension] = a.choice, b.choice
    if self:entry(two).why == why then self.refused_pairs[pair_key(a, b)] = { n = 0 } end
  end)
end

-- Removes what an accepted mix contradicts.
function Tried:unlearn(chosen)
  each_pair(chosen, function(a, b) self.refused_pairs[pair_key(a, b)] = nil end)
end

-- Returns whether the recipe allows a mix of these techniques.
function Tried:is_allowed(chosen)
  local has = {}
  for _, choice in ipairs(chosen) do has[choice.technique] = true end
  return self:allows(has)
end

function Tried:allows(has)
  if not self.c.allowed then return true end
  for _, name in ipairs(space_lib.TECHNIQUES) do has[name] = has[name] or false end
  for _, pass in ipairs(self.c.with) do has[pass.name] = has[pass.name] or false end
  return self.c.allowed(schema.namespace("has", "technique or policy", has)) and true or false
end

--- Lets exact() simulate nothing from now on: mixes that were not tried have no value.
function Tried:stop() self.ended = true end

--- Returns the value of a mix, simulating it if it was not tried before; nil if it is refused.
function Tried:exact(mix, weight)
  local chosen, key = self.space:chosen(mix), self.space:key(mix)
  if not self:is_allowed(chosen) then
    if not self.forbidden[key] then self.not_allowed = self.not_allowed + 1 end
    self.forbidden[key] = true
    return nil
  end
  local known = self.of[key]
  if self.ended and not known then return nil end
  local entry = known or self:entry(mix)
  if not known and entry.why then self:learn(chosen, entry.why) end
  if not known and not entry.why then self:unlearn(chosen) end
  return self:score(entry, weight)
end

--- Like exact(), but a mix is not simulated, and has no value, if a bound says that it is slower
--- than the best one so far, or if two of its techniques are known to be refused together.
function Tried:value(mix, weight)
  if not self.of[self.space:key(mix)] then
    local bound = weight == 1 and self.bounds[self.space:family(mix)]
    local slower = bound and self.best_ms and bound > self.best_ms
    if slower or self:has_refused_pair(self.space:chosen(mix)) then
      self.excluded = self.excluded + 1
      return nil
    end
  end
  local value = self:exact(mix, weight)
  if weight == 1 and value and value < TOO_LARGE then
    self.best_ms = math.min(self.best_ms or math.huge, value)
  end
  return value
end

-- Returns by what known systems are in order, the best first: their times; of those that do not fit
-- in memory what they take of it.
local function key_of_known(s)
  local o = s.outcome
  return o.oom and math.huge or o.iteration_ms, o.oom and o.peak_bytes or 0, s.name
end

-- Returns what a known system has that no mix has, as text, or nil if it is a mix, which is tried
-- then. outcome: the system's.
function Tried:beyond(outcome)
  local mix = self.space:nearest(outcome)
  local ours = system_lib.expand(self.space:system(mix, "mix", self.at))[1][1]
  ours.stages = system_lib.describe(ours)
  local have, lacks, in_order = {}, {}, true
  for _, stage in ipairs(ours.stages) do have[core.json_encode(stage)] = true end
  for i, stage in ipairs(outcome.stages) do
    local text = core.json_encode(stage)
    in_order = in_order and text == core.json_encode(ours.stages[i] or {})
    if not have[text] then
      lacks[#lacks + 1] = self.techniques[stage.name]
        and ("%s %s"):format(stage.name, lua_text.text(stage.options)) or stage.name
    end
  end
  if core.json_encode(ours.all_reduce) ~= core.json_encode(outcome.all_reduce) then
    lacks[#lacks + 1] = ("all_reduce = %s"):format(lua_text.text(outcome.all_reduce))
  end
  if outcome.packing then lacks[#lacks + 1] = "packing" end
  if #lacks > 0 then return table.concat(lacks, ", ") end
  if not self:is_allowed(self.space:chosen(mix)) then return FORBIDDEN end
  local entry = self:entry(mix, in_order and outcome or nil)
  return entry.hash ~= outcome.plan_hash and "its passes in another order" or nil
end

--- Simulates the known systems that train while left() is true, and tries those that are mixes as
--- mixes. After an error those before it are known.
function Tried:known_systems(left)
  local all = space_lib.known_systems(self.at)
  for i, one in ipairs(all) do
    self.not_simulated = #all + 1 - i
    if not left() then return end
    self.not_simulated = #all - i
    local name, system = one.name, one.system
    local outcome = self:outcome(system)
    if outcome then
      self.systems[#self.systems + 1] = { name = name, system = system, outcome = outcome,
        beyond = self:beyond(outcome) }
      schema.sorted(self.systems, key_of_known)
    end
  end
end

local STARTS = 3  -- known systems from which descents begin

--- Returns the mixes where descents begin: the plain one, those that are most like the best known
--- systems, and the best one for an earlier weight.
function Tried:starts(weight)
  local starts = { self.space:plain() }
  for i = 1, math.min(STARTS, #self.systems) do
    starts[#starts + 1] = self.space:nearest(self.systems[i].outcome)
  end
  starts[#starts + 1] = self:best(weight)
  return starts
end

-- Returns the tried mixes that are allowed and were not refused, the best first; of equal ones
-- those of fewer techniques first.
function Tried:sorted(weight)
  local all = {}
  for _, entry in ipairs(self.list) do
    local chosen = self.space:chosen(entry.mix)
    if not entry.why and self:is_allowed(chosen) then
      all[#all + 1] = { entry = entry, value = self:score(entry, weight), n = #chosen }
    end
  end
  return schema.sorted(all, function(one) return one.value, one.n, one.entry.key end)
end

--- Returns the best mix so far, or nil.
function Tried:best(weight)
  local first = self:sorted(weight)[1]
  return first and first.entry.mix
end

--- Returns the reason of the first refusal.
function Tried:first_reason()
  for _, entry in ipairs(self.list) do
    if entry.why then return entry.why end
  end
end

-- Returns the record of a system, under this name.
function Tried:record_of(system, name, outcome, label, spec)
  local job = { system = { name = name }, index = 1,
    case = { point = {}, model = self.c.model, cluster = self.c.cluster },
    spec = self:spec_for(system, spec), assumed = schema.merged(self.c.model.assumed,
      self.c.cluster.assumed) }
  local run = simulated.record(self.c.name, job, outcome)
  run.choice = label or run.choice
  return run
end

--- Returns the record of a mix, whose system gets this name. What is known of a tried mix is found
--- under the name that entry() gives it.
function Tried:record(mix, name)
  local system = self.space:system(mix, "mix", self.at)
  local outcome, spec, why = self:entry(mix).known, self:spec_of(mix)
  if not outcome and spec then outcome, why = self:outcome(system, spec) end
  if not outcome then errors.user("moe.search: the mix is refused: " .. why, self.at) end
  return self:record_of(system, name, outcome, self.space:label(mix), spec)
end

--- Returns the records of the known systems, the best first.
function Tried:named()
  local list = core.array {}
  for i, s in ipairs(self.systems) do list[i] = self:record_of(s.system, s.name, s.outcome) end
  return list
end

--- Returns the name of the best known system if it is faster than the mix, fits, and has nothing
--- that the recipe leaves out: it searches all techniques and allows those of the system.
function Tried:better_known(mix)
  local first, entry = self.systems[1], self:entry(mix)
  if not first or first.outcome.oom or self.c.techniques ~= "all" then return nil end
  if first.beyond == FORBIDDEN then return nil end
  local faster = entry.oom or first.outcome.iteration_ms < entry.iteration_ms * (1 - 1e-9)
  return faster and first.name or nil
end

--- Returns the best mixes, at most n, `best` first; of mixes with equal plans only one.
function Tried:best_mixes(best, weight, n)
  local list, seen = { best }, { [self:entry(best).hash] = true }
  for _, one in ipairs(self:sorted(weight)) do
    if #list >= n then break end
    if not seen[one.entry.hash] and not one.entry.oom then
      seen[one.entry.hash] = true
      list[#list + 1] = one.entry.mix
    end
  end
  return list
end

--- Returns the records of the best mixes.
function Tried:top(best, weight, n)
  local list = core.array {}
  for i, mix in ipairs(self:best_mixes(best, weight, n)) do
    list[i] = self:record(mix, i == 1 and "best" or "mix_" .. i)
  end
  return list
end

--- Returns { iteration_ms, peak_bytes, label, named } of all mixes and known systems that fit, the
--- fastest first.
function Tried:points()
  local all = {}
  for _, one in ipairs(self:sorted(1)) do
    local e = one.entry
    if not e.oom then
      all[#all + 1] = { iteration_ms = e.iteration_ms, peak_bytes = e.peak_bytes, label = e.label,
        mix = e.mix }
    end
  end
  for _, s in ipairs(self.systems) do
    if not s.outcome.oom and not s.beyond then
      all[#all + 1] = { iteration_ms = s.outcome.iteration_ms, peak_bytes = s.outcome.peak_bytes,
        label = s.name, named = s }
    end
  end
  return schema.sorted(all, function(p)
    return p.iteration_ms, p.peak_bytes, #p.label, p.label
  end)
end

--- Returns the records of those to which no other is better in both time and memory. Of mixes with
--- equal plans it names that of best_mixes().
function Tried:front(best, weight)
  local front, least, named = core.array {}, math.huge, {}
  for _, mix in ipairs(self:best_mixes(best, weight, math.huge)) do
    named[self:entry(mix).hash] = mix
  end
  for _, p in ipairs(self:points()) do
    if p.peak_bytes < least then
      least = p.peak_bytes
      front[#front + 1] = p.named and self:record_of(p.named.system, p.named.name, p.named.outcome)
        or self:record(named[self:entry(p.mix).hash] or p.mix, ("front_%d"):format(#front + 1))
    end
  end
  return front
end

--- Returns the number of mixes that were simulated and do not fit in a device's memory; how many of
--- them only lack rows on a device (model.rows_bound); and the first reason of these.
function Tried:too_large()
  local n, no_rows, why = 0, 0, nil
  for _, entry in ipairs(self.list) do
    n, no_rows = n + (entry.oom and 1 or 0), no_rows + (entry.no_room and 1 or 0)
    why = why or entry.no_room
  end
  return n, no_rows, why
end

--- Returns { policy, n, refused, best_ms, techniques } for each pass that the recipe gives: in how
--- many mixes it was tried, how many of them were refused, and the fastest of the others that fits.
function Tried:policies()
  local list = core.array {}
  for i, given in ipairs(self.space:given()) do
    local one = { policy = given.label, n = 0, refused = 0 }
    for _, entry in ipairs(self.list) do
      if entry.mix[given.dimension] == given.choice then
        one.n, one.refused = one.n + 1, one.refused + (entry.why and 1 or 0)
        one.why = one.why or entry.why
        local fits = not entry.why and not entry.oom
        if fits and entry.iteration_ms < (one.best_ms or math.huge) then
          one.best_ms, one.techniques = entry.iteration_ms, entry.label
        end
      end
    end
    list[i] = one
  end
  return list
end

--- Returns { techniques, why, n } for each reason of refusals: the first mix with it and how many.
function Tried:refusals()
  local list = core.array {}
  for i, same in ipairs(schema.grouped(self.list, function(entry) return entry.why end)) do
    list[i] = { why = same[1].why, techniques = same[1].label, n = #same }
  end
  return schema.sorted(list, function(one) return -one.n, one.why end)
end

return M
