-- ECHO: elastic cloning of hot experts (Megatron-Core's technical report, arXiv 2603.07685, section
-- 4.3.7, and the planner of the public prototype, Megatron-LM pull request 2368,
-- offloading_planner.py). Each device computes up to the mean load, of its lightest experts first;
-- what its other experts have above that spills over into the room of devices below the mean.
--  * One slot per device (the prototype's bin packing): the devices with room, most room first,
--    each take the expert with the largest rest of its spill-over, as much of it as fits.
--  * More slots (its greedy assignment): spill-overs and rooms, both in descending order, are laid
--    side by side; each device keeps those of the pieces beside its room that are the largest, one
--    per slot.
-- Choices: the prototype orders spill-overs by eight classes of size, here the order is exact. Its
-- threshold that gives unneeded copies back is off by default and left out.
local layers = require "moe.techniques.balance.layer"
local schema = require "moe.base.schema"

-- Returns the tokens that each expert has above what its device keeps.
local function spill_over(layer, mean)
  local spilled = {}
  for d = 1, layer.devices do
    local order, kept = layers.descending(layer.load), 0
    for i = #order, 1, -1 do
      local e = order[i]
      if layer.owner[e] == d then
        local keeps = math.min(layer.load[e], mean - kept)
        spilled[e], kept = layer.load[e] - keeps, kept + keeps
      end
    end
  end
  return spilled
end

local function pack(plan, spilled, room, takers)
  for _, d in ipairs(takers) do
    local e = layers.argmax(spilled)
    local tokens = math.min(spilled[e], room[d])
    if tokens <= 0 then return end
    plan:give(e, d, tokens)
    spilled[e] = spilled[e] - tokens
  end
end

local function lay_side_by_side(plan, spilled, room, takers, slots)
  local order, i = layers.descending(spilled), 1
  local rest = spilled[order[1]]
  for _, d in ipairs(takers) do
    local left, pieces = room[d], {}
    while left > 0 and i <= #order do
      local tokens = math.min(rest, left)
      if tokens > 0 then pieces[#pieces + 1] = { expert = order[i], tokens = tokens } end
      left, rest = left - tokens, rest - tokens
      if rest == 0 then i = i + 1; rest = spilled[order[i]] or 0 end
    end
    schema.sorted(pieces, function(one) return -one.tokens, one.expert end)
    for slot = 1, math.min(slots, #pieces) do
      plan:give(pieces[slot].expert, d, pieces[slot].tokens)
    end
  end
end

return {
  doc = "ECHO: what devices have above the mean goes to copies on devices below it",
  options = {},
  plan = function(layer)
    local plan, mean = layers.copies(layer), math.floor(layer.total / layer.devices)
    local room = {}
    for d, tokens in ipairs(layer.computed) do room[d] = math.max(0, mean - tokens) end
    local spilled, takers = spill_over(layer, mean), layers.descending(room)
    if layer.spare == 1 then
      pack(plan, spilled, room, takers)
    elseif layer.spare > 1 then
      lay_side_by_side(plan, spilled, room, takers, layer.spare)
    end
    return plan
  end,
}
