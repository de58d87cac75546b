-- Looks for the mix of a space (moe.search.space) with the smallest value: at all mixes if there
-- are few, else by descents. A descent changes one dimension after the other to the best of its
-- choices until no change helps; where that leads to the best mix so far, it then tries changes of
-- two dimensions at once. Descents begin at the given mixes, then at random ones, until several in
-- a row find nothing better.
local M = {}

--- Spaces of at most so many mixes are searched as a whole, if the time allows.
M.SMALL = 2000

local PAIRS = 20     -- pairs of changes that are tried at the end of a descent to the best so far
local SHARE = 0.8    -- of the time that a search of the whole space may take
local SAMPLE = 20    -- mixes after which the time of the others is known

-- Returns a function of n that returns a random number from 1 to n (Park and Miller, 1988).
local function generator(seed)
  local state = seed % 2147483646 + 1
  for _ = 1, 10 do state = state * 16807 % 2147483647 end
  return function(n)
    state = state * 16807 % 2147483647
    return 1 + math.floor(state / 2147483647 * n)
  end
end

local Search = {}
Search.__index = Search

-- Returns the value of a mix; infinity if it has none or no time is left.
function Search:value(mix)
  local key = self.space:key(mix)
  local known = self.values[key]
  if known then return known end
  if not self.left() then return math.huge end
  local value = self.evaluate(mix) or math.huge
  self.values[key] = value
  self.seen = self.seen + 1
  if value < self.best then
    self.best, self.mix = value, { unpack(mix) }
  end
  return value
end

-- Calls visit(mix) for all mixes, until it returns false; dimensions that only schedule change
-- fastest, so that mixes of one family follow each other.
local function each_mix(space, visit)
  local order = {}
  for _, late in ipairs { false, true } do
    for i, dimension in ipairs(space.dimensions) do
      if (dimension.choices[2].schedules or false) == late then order[#order + 1] = i end
    end
  end
  local mix = space:plain()
  local function from(n)
    if n > #order then return visit(mix) end
    for choice = 1, #space.dimensions[order[n]].choices do
      mix[order[n]] = choice
      if from(n + 1) == false then return false end
    end
  end
  from(1)
end

M.each_mix = each_mix

-- Evaluates all mixes; returns whether it did: it gives up when it would take too long.
function Search:everything()
  local since, n = self.used(), 0
  local done = true
  each_mix(self.space, function(mix)
    self:value(mix)
    n = n + 1
    local expected = n >= SAMPLE and since + (self.used() - since) / n * self.space.size or 0
    if expected > SHARE * self.budget or not self.left() then done = false end
    return done
  end)
  return done
end

-- Sets each dimension in turn, in random order, to its best choice, until no change helps. Changes
-- `mix`; returns its value and the gains: { dimension, choice, value } of the last choices tried.
function Search:descend(mix)
  local value, changed = self:value(mix), true
  local gains
  while changed and self.left() do
    changed, gains = false, {}
    for _, i in ipairs(self:shuffled(#mix)) do
      local before = mix[i]
      local best = before
      for choice = 1, #self.space.dimensions[i].choices do
        mix[i] = choice
        local other = choice == before and value or self:value(mix)
        if choice ~= before then gains[#gains + 1] = { i, choice, other } end
        if other < value then best, value, changed = choice, other, true end
      end
      mix[i] = best
    end
  end
  return value, gains or {}
end

function Search:shuffled(n)
  local list = {}
  for i = 1, n do list[i] = i end
  for i = n, 2, -1 do
    local j = self.random(i)
    list[i], list[j] = list[j], list[i]
  end
  return list
end

-- Tries changes of two dimensions of the mix at once, those first that cost least by themselves.
-- Returns the better mix and its value, or nil.
function Search:pair(mix, value, gains)
  local all = {}
  for a, first in ipairs(gains) do
    for b = a + 1, #gains do
      local second = gains[b]
      if first[1] ~= second[1] then
        all[#all + 1] = { first, second, math.max(first[3], second[3]) }
      end
    end
  end
  table.sort(all, function(x, y)
    if x[3] ~= y[3] then return x[3] < y[3] end
    if x[1] ~= y[1] then return x[1][1] + 1e3 * x[1][2] < y[1][1] + 1e3 * y[1][2] end
    return x[2][1] + 1e3 * x[2][2] < y[2][1] + 1e3 * y[2][2]
  end)
  for n = 1, math.min(PAIRS, #all) do
    local other = { unpack(mix) }
    for k = 1, 2 do other[all[n][k][1]] = all[n][k][2] end
    local found = self:value(other)
    if found < value then return other, found end
  end
end

-- Returns a random mix that has a value; any mix if none is found soon.
function Search:random_mix()
  local mix = {}
  for _ = 1, SAMPLE do
    for i, dimension in ipairs(self.space.dimensions) do
      mix[i] = self.random(#dimension.choices)
    end
    if self:value(mix) < math.huge then break end
  end
  return mix
end

function Search:descent(mix)
  local value, gains = self:descend(mix)
  while self.left() and value <= self.best do
    local other = self:pair(mix, value, gains)
    if not other then return end
    mix = other
    value, gains = self:descend(mix)
  end
end

--- Searches. o: { evaluate = function(mix) that returns a number, or nil if the mix has no value;
--- starts = mixes where descents begin; used = function() -> seconds used so far; budget = seconds;
--- seed; patience = descents from random mixes in a row that find nothing better, after which the
--- search ends }. Returns { mix = the best or nil, value, seen = number of mixes that were
--- evaluated, exhaustive = whether these are all }.
function M.explore(space, o)
  local search = setmetatable({ space = space, evaluate = o.evaluate, used = o.used,
    budget = o.budget, values = {}, seen = 0, best = math.huge, random = generator(o.seed),
    left = function() return o.used() < o.budget end }, Search)
  local exhaustive = space.size <= M.SMALL and search:everything()
  if not exhaustive then
    for _, mix in ipairs(o.starts) do search:descent({ unpack(mix) }) end
    local without = 0
    while without < o.patience and search.left() and search.seen < space.size do
      local before = search.best
      search:descent(search:random_mix())
      without = search.best < before and 0 or without + 1
    end
  end
  if not exhaustive and space.size <= M.SMALL then  -- what the time allows of the rest
    each_mix(space, function(mix) return search:value(mix) < 0 or search.left() end)
  end
  return { mix = search.mix, value = search.best, seen = search.seen,
    exhaustive = exhaustive or search.seen == space.size }
end

return M
