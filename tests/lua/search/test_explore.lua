local expect = require "expect"
local test = require "test"

local explore = require "moe.search.explore"

-- A space of dimensions with these numbers of choices; the dimensions after the first `ops` only
-- schedule.
local function space_of(sizes, ops)
  local space = { dimensions = {}, size = 1 }
  for i, n in ipairs(sizes) do
    space.dimensions[i] = { choices = {} }
    for j = 1, n do
      space.dimensions[i].choices[j] = { schedules = j == 1 or i > (ops or #sizes) }
    end
    space.size = space.size * n
  end
  function space:plain()
    local mix = {}
    for i in ipairs(self.dimensions) do mix[i] = 1 end
    return mix
  end
  function space.key(_, mix) return table.concat(mix, ".") end
  return space
end

-- Explores; returns what was found, and how often each mix was evaluated.
local function explored(space, evaluate, o)
  local count, clock = {}, 0
  o = o or {}
  local found = explore.explore(space, { starts = { space:plain() }, seed = o.seed or 1,
    patience = o.patience or 3,
    budget = o.budget or 1e9, used = function() return clock end,
    evaluate = function(mix)
      clock = clock + 1
      local key = space:key(mix)
      count[key] = (count[key] or 0) + 1
      return evaluate(mix)
    end })
  local most, n = 0, 0
  for _, times in pairs(count) do most, n = math.max(most, times), n + 1 end
  return found, n, most
end

-- A value that is made up and always the same for a mix, from 0 to 1.
local function noise(mix, seed)
  local x = seed
  for _, c in ipairs(mix) do x = (x * 31 + c * 7919 + 17) % 2147483647 end
  for _ = 1, 5 do x = x * 16807 % 2147483647 end
  return x / 2147483647
end

test("a small space is seen as a whole, and its best mix found wherever it is", function()
  for seed = 1, 10 do
    local space = space_of { 3, 4, 2, 5 }
    local least = math.huge
    local found, n, most = explored(space, function(mix)
      local value = noise(mix, seed)
      least = math.min(least, value)
      return value
    end, { seed = seed })
    expect.equal(found.exhaustive, true)
    expect.equal(n, space.size)
    expect.equal(found.seen, space.size)
    expect.equal(most, 1)
    expect.equal(found.value, least)
    expect.equal(noise(found.mix, seed), least)
  end
end)

test("a large space is searched by descents, which find the best of dimensions that add up, see "
  .. "each mix once, and a small part of the space", function()
  for seed = 1, 10 do
    local space = space_of { 3, 7, 2, 2, 4, 6, 2, 6, 3 }
    local function value(mix)
      local sum = 0
      for i, c in ipairs(mix) do sum = sum + noise({ i, c }, seed) end
      return sum
    end
    local least = 0
    for i, d in ipairs(space.dimensions) do
      local best = math.huge
      for c in ipairs(d.choices) do best = math.min(best, noise({ i, c }, seed)) end
      least = least + best
    end
    local found, n, most = explored(space, value, { seed = seed })
    expect.equal(found.exhaustive, false)
    expect.equal(math.abs(found.value - least) < 1e-9, true)
    expect.equal(most, 1)
    expect.equal(n < space.size / 20, true)
  end
end)

test("two changes that only help together are found", function()
  local space = space_of { 5, 5, 5, 5, 5, 5 }
  local found = explored(space, function(mix)
    local value = 100 + mix[1] + mix[2] + mix[3] + mix[4] + mix[5] + mix[6]
    return mix[2] == 2 and mix[5] == 2 and value - 20 or value
  end)
  expect.equal(table.concat(found.mix, "."), "1.2.1.1.2.1")
end)

test("no mix is evaluated after the time is used, and mixes without a value are passed over",
  function()
    local space = space_of { 6, 6, 6, 6, 6 }
    local found, n = explored(space, function(mix) return noise(mix, 3) end, { budget = 50 })
    expect.equal(n, 50)
    expect.equal(found.seen, 50)
    found = explored(space, function(mix) return mix[1] == 2 and noise(mix, 3) or nil end)
    expect.equal(found.mix[1], 2)
    found = explored(space, function() return nil end)
    expect.equal(found.mix, nil)
  end)

test("with more patience a search sees more", function()
  local space, seen = space_of { 6, 6, 6, 6, 6 }, {}
  for i, patience in ipairs { 0, 3, 12 } do
    seen[i] = explored(space, function(mix) return noise(mix, 3) end, { patience = patience }).seen
  end
  expect.equal(seen[1] < seen[2] and seen[2] < seen[3], true)
end)

test("a seed leads to the same mixes again", function()
  local space = space_of { 6, 6, 6, 6, 6 }
  local function run(seed)
    local order = {}
    explored(space, function(mix)
      order[#order + 1] = table.concat(mix)
      return noise(mix, 5)
    end, { seed = seed, budget = 300 })
    return table.concat(order, " ")
  end
  expect.equal(run(4), run(4))
  expect.equal(run(4) ~= run(5), true)
end)
