-- The exact load of one layer, and a plan for it: which devices hold which experts, and how many
-- tokens each holder computes. What the balancing policies of this folder read and return. Experts
-- and devices count from 1, loads are numbers of tokens (choices).
local schema = require "moe.base.schema"

local M = {}

--- Returns the position of the largest value, the first of equals; nil for an empty list.
function M.argmax(values)
  local most
  for i, value in ipairs(values) do
    if not most or value > values[most] then most = i end
  end
  return most
end

--- Returns 1 .. #values by descending value, equal values in ascending order.
function M.descending(values)
  local order = {}
  for i = 1, #values do order[i] = i end
  return schema.sorted(order, function(i) return -values[i], i end)
end

local function sum(values)
  local all = 0
  for _, value in ipairs(values) do all = all + value end
  return all
end
M.sum = sum

--- Returns the layer of the loads load[expert], with experts owned by the devices in order, equally
--- many by each, or one more by the first: { devices, experts, total, residents, spare = slots of a
--- device for owned and for copied experts, load[expert], owner[expert], owned[device] = its
--- experts, computed[device] = tokens without copies }.
function M.of_loads(load, devices, residents, spare)
  local experts = #load
  local layer = { experts = experts, devices = devices, spare = spare, load = load, owner = {},
    owned = {}, computed = {}, total = sum(load) }
  local e = 0
  for d = 1, devices do
    layer.owned[d], layer.computed[d] = {}, 0
    for i = 1, math.floor(experts / devices) + (d <= experts % devices and 1 or 0) do
      e = e + 1
      layer.owned[d][i], layer.owner[e] = e, d
      layer.computed[d] = layer.computed[d] + load[e]
    end
  end
  layer.residents = residents or #layer.owned[1]
  return layer
end

--- Returns the layer of the counts routed[expert][device], which it also has as `routed`.
function M.new(routed, residents, spare)
  local load = {}
  for e, row in ipairs(routed) do load[e] = sum(row) end
  local layer = M.of_loads(load, #routed[1], residents, spare)
  layer.routed = routed
  return layer
end

-- A plan with copies: owners keep their experts and give tokens away.
local Copies = {}
Copies.__index = Copies

--- Returns the plan of a layer in which owners compute all tokens: { holders[expert] = a list of
--- { device, tokens }, the owner first; computed[device]; free[device] = free slots for copies }.
function M.copies(layer)
  local plan = { holders = {}, computed = {}, free = {}, moves = false }
  for e, owner in ipairs(layer.owner) do
    plan.holders[e] = { { device = owner, tokens = layer.load[e] } }
  end
  for d, tokens in ipairs(layer.computed) do
    plan.computed[d], plan.free[d] = tokens, layer.spare
  end
  return setmetatable(plan, Copies)
end

local function holder_of(plan, expert, device)
  for _, holder in ipairs(plan.holders[expert]) do
    if holder.device == device then return holder end
  end
end

--- Returns whether the device holds the expert or has a free slot for it.
function Copies:can_hold(expert, device)
  return self.free[device] > 0 or holder_of(self, expert, device) ~= nil
end

--- Moves tokens of an expert from its owner to a device that can hold it.
function Copies:give(expert, device, tokens)
  local holder = holder_of(self, expert, device)
  if not holder then
    holder = { device = device, tokens = 0 }
    table.insert(self.holders[expert], holder)
    self.free[device] = self.free[device] - 1
  end
  local owner = self.holders[expert][1]
  owner.tokens, holder.tokens = owner.tokens - tokens, holder.tokens + tokens
  self.computed[owner.device] = self.computed[owner.device] - tokens
  self.computed[device] = self.computed[device] + tokens
end

--- Returns a plan in which every holder is a resident. held[expert]: the devices that hold the
--- expert, the owner first; share(expert, source, device): the weight with which a source sends
--- tokens of the expert to a holder, not all 0.
function M.layout(layer, held, share)
  local plan = { holders = {}, moves = true }
  for e, devices in ipairs(held) do
    plan.holders[e] = {}
    for i, d in ipairs(devices) do
      local weights = {}
      for s = 1, layer.devices do weights[s] = share(e, s, d) end
      plan.holders[e][i] = { device = d, weights = weights }
    end
  end
  return plan
end

return M
