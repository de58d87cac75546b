-- FlexMoE: dynamic device placement (Nie et al., SIGMOD 2023, arXiv 2304.03946, algorithms 1 and 2,
-- as flexmoe_method in github.com/PKU-DAIR/Hetu-Galvatron restates them). A slot is a virtual
-- expert; the virtual experts of one expert share its tokens evenly. Step by step, the expert with
-- the most tokens per virtual expert gets one more (expand), in a free slot or in that of the
-- expert with the fewest, which loses one (shrink); where that does not help, two virtual experts
-- of the heaviest and the lightest device change places (migrate). A step is kept if the heaviest
-- device then computes less; the first that is not ends the search.
-- Choices: it begins with the layout in force, in bare counts with one virtual expert per expert on
-- the devices in order, so that slots for more are free; the new one goes to the least-loaded
-- device that can take it; a device has one virtual expert of an expert at most; the cost of a step
-- is the load of the heaviest device, since bare counts have no links; all steps are made at once,
-- while the method makes some per iteration.
local layers = require "moe.techniques.balance.layer"

local State = {}
State.__index = State

local function copy_of(held)
  local out = {}
  for e, devices in ipairs(held) do out[e] = { unpack(devices) } end
  return out
end

local function new_state(layer, held)
  local state = { layer = layer, held = held, each = {}, load = {}, free = {} }
  for d = 1, layer.devices do state.load[d], state.free[d] = 0, layer.residents end
  for e, devices in ipairs(held) do
    state.each[e] = layer.load[e] / #devices
    for _, d in ipairs(devices) do
      state.load[d], state.free[d] = state.load[d] + state.each[e], state.free[d] - 1
    end
  end
  state.most = state.load[layers.argmax(state.load)]
  return setmetatable(state, State)
end

function State:position(e, d)
  for i, device in ipairs(self.held[e]) do if device == d then return i end end
end

-- Returns the least-loaded device that does not hold expert e and fits(device); nil if none does.
function State:lightest(e, fits)
  local best
  for d, load in ipairs(self.load) do
    if fits(d) and not self:position(e, d) and not (best and self.load[best] <= load) then
      best = d
    end
  end
  return best
end

-- Returns held with one more virtual expert for the expert with most tokens per virtual expert.
function State:expanded()
  local hot = layers.argmax(self.each)
  local held = copy_of(self.held)
  local d = self:lightest(hot, function(device) return self.free[device] > 0 end)
  if d then
    table.insert(held[hot], d)
    return held
  end
  local cold
  for e, each in ipairs(self.each) do
    if #held[e] > 1 and e ~= hot and not (cold and self.each[cold] <= each) then cold = e end
  end
  d = cold and self:lightest(hot, function(device) return self:position(cold, device) ~= nil end)
  if not d then return nil end
  table.remove(held[cold], self:position(cold, d))
  table.insert(held[hot], d)
  return held
end

-- Returns held with the best exchange, or move into a free slot, between the heaviest and the
-- lightest device; nil if no such pair exists.
function State:migrated()
  local heavy, light = layers.argmax(self.load), layers.descending(self.load)[#self.load]
  local least, give, take = self.load[heavy], nil, nil
  for e, each in ipairs(self.each) do
    if self:position(e, heavy) and not self:position(e, light) then
      for other = 0, #self.each do
        local back = other == 0 and 0 or self.each[other]
        local fits = other == 0 and self.free[light] > 0 or other > 0
          and self:position(other, light) and not self:position(other, heavy)
        local most = math.max(self.load[heavy] - each + back, self.load[light] + each - back)
        if fits and most < least then least, give, take = most, e, other end
      end
    end
  end
  if not give then return nil end
  local best = copy_of(self.held)
  best[give][self:position(give, heavy)] = light
  if take > 0 then best[take][self:position(take, light)] = heavy end
  return best
end

return {
  doc = "FlexMoE: expands hot experts, shrinks cold ones and migrates, one step after another",
  pooled = true,
  options = {
    steps = { type = "integer", lo = 0, hi = 1e6, default = 1000, doc = "largest number of steps" },
  },
  plan = function(layer, o)
    local held = layer.held or {}
    for e, owner in ipairs(layer.owner) do held[e] = held[e] or { owner } end
    local state = new_state(layer, held)
    for _ = 1, o.steps do
      local better
      for _, change in ipairs { "expanded", "migrated" } do
        local next_held = state[change](state)
        local next_state = next_held and new_state(layer, next_held)
        if not better and next_state and next_state.most < state.most then better = next_state end
      end
      if not better then break end
      state = better
    end
    return layers.layout(layer, state.held, function() return 1 end)
  end,
}
