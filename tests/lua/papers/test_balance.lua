-- The balancing policies in Lua: one case of each by hand, and what holds for all loads.
local balance = require "moe.techniques.balance"
local expect = require "expect"
local layers = require "moe.techniques.balance.layer"
local optimum = require "moe.techniques.balance.optimum"
local test = require "test"

-- Returns a layer with these loads of experts, all from the first source.
local function layer_of(devices, loads, residents, spare)
  local routed = {}
  for e, load in ipairs(loads) do
    routed[e] = { load }
    for d = 2, devices do routed[e][d] = 0 end
  end
  return layers.new(routed, residents, spare)
end

-- Returns the tokens of an expert that each device computes, "none" where it is not held.
local function tokens_of(layer, plan, expert)
  local out = {}
  for d = 1, layer.devices do out[d] = "none" end
  for _, holder in ipairs(plan.holders[expert]) do out[holder.device] = holder.tokens end
  return out
end

-- Returns the tokens that each device computes, checking that no expert is lost or held twice, that
-- slots suffice and that all tokens are computed.
local function computed(layer, plan)
  local load, slots, total = {}, {}, 0
  for d = 1, layer.devices do load[d], slots[d] = 0, 0 end
  for e, holders in ipairs(plan.holders) do
    local seen, owner = {}, plan.moves and holders[1].device or layer.owner[e]
    assert(holders[1].device == owner, "the owner is not the first holder")
    for i, h in ipairs(holders) do
      assert(not seen[h.device], "a device holds an expert twice")
      seen[h.device] = true
      if plan.moves or i > 1 then slots[h.device] = slots[h.device] + 1 end
      if h.tokens then
        assert(h.tokens >= 0, "negative tokens")
        load[h.device] = load[h.device] + h.tokens
      end
    end
    for s = 1, holders[1].weights and layer.devices or 0 do
      local sum = 0
      for _, h in ipairs(holders) do sum = sum + h.weights[s] end
      for _, h in ipairs(holders) do
        load[h.device] = load[h.device] + layer.routed[e][s] * h.weights[s] / sum
      end
    end
  end
  for d = 1, layer.devices do
    assert(slots[d] <= (plan.moves and layer.residents or layer.spare), "too many slots")
    total = total + load[d]
  end
  assert(math.abs(total - layer.total) < 1e-6 * math.max(1, layer.total), "tokens are lost")
  return load
end

local function with_defaults(name, given)
  local o = {}
  for option, field in pairs(balance[name].options) do o[option] = field.default end
  for option, value in pairs(given or {}) do o[option] = value end
  return o
end

local function run(name, layer, given)
  return balance[name].plan(layer, with_defaults(name, given))
end

test("echo with one slot: devices below the mean take the largest spill-over, most room first",
  function()
    -- Mean 32; device 1 keeps expert 2 and 22 of expert 1; rooms 2 and 26.
    local layer = layer_of(3, { 50, 10, 20, 10, 6, 0 }, 2, 1)
    local plan = run("echo", layer)
    expect.equal(tokens_of(layer, plan, 1), { 22, 2, 26 })
    expect.equal(computed(layer, plan), { 32, 32, 32 })
  end)

test("echo with two slots lays spill-overs and rooms side by side", function()
  -- Mean 28; expert 2 spills 10, expert 1 40; device 3 has room for 26 and device 2 for 24.
  local loads = { 40, 38, 2, 2, 1, 1 }
  local layer = layer_of(3, loads, 2, 2)
  local plan = run("echo", layer)
  expect.equal(tokens_of(layer, plan, 1), { 0, 14, 26 })
  expect.equal(tokens_of(layer, plan, 2), { 28, 10, "none" })
  expect.equal(computed(layer, plan), { 28, 28, 28 })
  -- With one slot device 2 takes the rest of expert 1 only.
  layer = layer_of(3, loads, 2, 1)
  expect.equal(computed(layer, run("echo", layer)), { 38, 18, 28 })
end)

test("moonep fills the emptiest device from the fullest, and what gave too much once more",
  function()
    -- Above the share by 5, 4 and -9: device 1 gives 9 to 3, then device 2 gives 4 to 1.
    local layer = layer_of(3, { 15, 14, 1 }, 1, 1)
    local plan = run("moonep", layer)
    expect.equal(tokens_of(layer, plan, 1), { 6, "none", 9 })
    expect.equal(tokens_of(layer, plan, 2), { 4, 10, "none" })
    expect.equal(computed(layer, plan), { 10, 10, 10 })
  end)

test("llep gives to the least-loaded device up to the limit, and leaves even layers", function()
  -- Limit 30: of expert 1 20 go to device 3, then 10 to device 2.
  local layer = layer_of(3, { 60, 20, 10 }, 1, 1)
  local plan = run("llep", layer, { factor = 1, min_tokens = 15, ratio = 1 })
  expect.equal(tokens_of(layer, plan, 1), { 30, 10, 20 })
  expect.equal(computed(layer, run("llep", layer, { min_tokens = 1, ratio = 2.5 })), { 60, 20, 10 })
end)

test("lplb moves tokens along a chain of fixed copies", function()
  -- Device 1 has a copy of expert 2, device 2 of 3, device 3 of 1: 30 of expert 1 go to device 3,
  -- which passes its own 10 on to device 2.
  local layer = layer_of(3, { 60, 20, 10 }, 1, 1)
  local plan = run("lplb", layer)
  expect.equal({ tokens_of(layer, plan, 1), tokens_of(layer, plan, 2), tokens_of(layer, plan, 3) },
    { { 30, "none", 30 }, { 0, 20, "none" }, { "none", 10, 0 } })
end)

test("laer tries replicas by load and as many of each expert, and takes the better layout",
  function()
    -- By load 3, 2 and 1 replicas of 13.3, 5 and 10: 23.3 on the heaviest device; 2 of each: 25.
    local layer = layer_of(3, { 40, 10, 10 }, 2, 0)
    local plan = run("laer", layer)
    expect.equal({ #plan.holders[1], #plan.holders[2], #plan.holders[3] }, { 3, 2, 1 })
    local load = computed(layer, plan)
    expect.equal(math.floor(3 * load[layers.argmax(load)] + 0.5), 70)
  end)

test("laer sends tokens to replicas in the source's own node where there are any", function()
  local layer = layers.new({ { 8, 0, 0, 4 }, { 0, 8, 4, 0 } }, 1, 0)
  local plan = run("laer", layer, { node = 2 })
  for e = 1, 2 do
    expect.equal(#plan.holders[e], 2)
    local near, far = unpack(plan.holders[e])
    expect.equal({ near.weights, far.weights }, { { 1, 1, 0, 0 }, { 0, 0, 1, 1 } })
  end
end)

test("flexmoe expands the hottest expert as long as the heaviest device computes less", function()
  -- 40 10 10 -> 20 30 10 -> 13.3 23.3 23.3; then all devices have expert 1.
  local layer = layer_of(3, { 40, 10, 10 }, 2, 0)
  local plan = run("flexmoe", layer)
  expect.equal({ #plan.holders[1], #plan.holders[2], #plan.holders[3] }, { 3, 1, 1 })
  layer = layer_of(3, { 40, 10, 10 }, 2, 0)
  expect.equal(#run("flexmoe", layer, { steps = 1 }).holders[1], 2)
end)

-- Loads of which few experts are heavy, some empty, from all sources.
local function random_layer(seed, residents, spare)
  math.randomseed(seed)
  local devices, routed = math.random(1, 6), {}
  local experts = devices * residents
  for e = 1, experts do
    local heavy = math.random() ^ 3
    routed[e] = {}
    for d = 1, devices do
      routed[e][d] = math.random() < 0.2 and 0 or math.floor(400 * heavy * math.random())
    end
  end
  return layers.new(routed, residents, spare)
end

test("whatever the loads, plans keep slots and tokens, reach no less than the bound, and those "
  .. "with copies never make the heaviest device heavier", function()
  for seed = 1, 300 do
    local spare = seed % 3
    for _, name in ipairs { "echo", "moonep", "llep", "lplb", "laer", "flexmoe" } do
      local pooled = balance[name].pooled
      local layer = random_layer(seed, pooled and 2 + spare or 2, pooled and 0 or spare)
      local plan = run(name, layer, name == "llep" and { min_tokens = 1 + seed % 50 })
      local load = computed(layer, plan)
      local most = load[layers.argmax(load)]
      assert(most >= optimum.bound(layer, pooled) - 1e-6, name .. " is below the bound")
      if name ~= "laer" then
        assert(most <= layer.computed[layers.argmax(layer.computed)] + 1e-6, name .. " is worse")
      end
    end
  end
end)

test("moonep with a slot for each owned expert computes the mean on every device", function()
  for seed = 1, 100 do
    local layer = random_layer(seed, 3, 3)
    for _, tokens in ipairs(computed(layer, run("moonep", layer))) do
      assert(math.abs(tokens - layer.total / layer.devices) < 1, "not the mean")
    end
  end
end)

test("the bound counts what the slots reach", function()
  -- Without copies the heaviest device; with one, device 3 reaches 1 + 50 and device 2 10 + 50.
  expect.equal(optimum.bound(layer_of(3, { 50, 10, 1 }, 1, 0)), 50)
  expect.equal(optimum.bound(layer_of(3, { 50, 10, 1 }, 1, 1)), 21)
  -- Device 2 reaches one expert of 10, so device 1 keeps 30 of 40.
  expect.equal(optimum.bound(layer_of(2, { 10, 10, 10, 10, 0, 0, 0, 0 }, 4, 1)), 30)
  expect.equal(optimum.bound(layer_of(2, { 10, 10, 10, 10, 0, 0, 0, 0 }, 4, 0), true), 20)
end)

-- The optimum by sharing whole tokens of all experts in all ways.
local function by_hand(layer, e, load, on)
  if e > layer.experts then return load[layers.argmax(load)] end
  local best = math.huge
  local function share(i, left)
    if i == #on[e] then
      load[on[e][i]] = load[on[e][i]] + left
      best = math.min(best, by_hand(layer, e + 1, load, on))
      load[on[e][i]] = load[on[e][i]] - left
      return
    end
    for tokens = 0, left do
      load[on[e][i]] = load[on[e][i]] + tokens
      share(i + 1, left - tokens)
      load[on[e][i]] = load[on[e][i]] - tokens
    end
  end
  share(1, layer.load[e])
  return best
end

test("the optimum is that of trying every copy and every share of tokens", function()
  math.randomseed(7)
  for _ = 1, 20 do
    local loads = { math.random(0, 9), math.random(0, 4), math.random(0, 4) }
    local layer, best = layer_of(3, loads, 1, 1), math.huge
    for a = 1, 2 do for b = 1, 2 do for c = 1, 2 do
      local on = { { 1 }, { 2 }, { 3 } }
      table.insert(on[({ 2, 3 })[a]], 1)
      table.insert(on[({ 1, 3 })[b]], 2)
      table.insert(on[({ 1, 2 })[c]], 3)
      best = math.min(best, by_hand(layer, 1, { 0, 0, 0 }, on))
    end end end
    expect.equal(optimum.optimum(layer), best)
    local pooled = layer_of(3, loads, 2, 0)
    assert(optimum.optimum(pooled, true) <= best, "a layout is worse than copies")
  end
end)

test("no policy computes less than the optimum", function()
  for seed = 1, 60 do
    for _, name in ipairs { "echo", "moonep", "llep", "lplb", "laer", "flexmoe" } do
      local pooled = balance[name].pooled
      math.randomseed(seed)
      local routed = {}
      for e = 1, 6 do routed[e] = { math.random(0, 9 * e), math.random(0, 30), 0 } end
      local layer = layers.new(routed, pooled and 3 or 2, pooled and 0 or 1)
      local load = computed(layer, run(name, layer, name == "llep" and { min_tokens = 1 }))
      assert(load[layers.argmax(load)] >= optimum.optimum(layer, pooled) - 1e-6 - (pooled and 1
        or 0), name .. " is below the optimum")
    end
  end
end)
