-- How well a layer can be balanced at best: a bound for layers of any size, and the optimum of
-- small ones by trying everything. They measure policies; no policy uses them.
local bit = require "bit"
local layers = require "moe.techniques.balance.layer"

local M = {}

-- Returns for each device the most tokens that it can compute: of all experts that it owns and of
-- the heaviest others that fit into its slots for copies, or, with `pooled`, of the heaviest
-- experts that fit into its slots.
local function reach(layer, pooled)
  local most = {}
  for d = 1, layer.devices do
    local left = pooled and layer.residents or layer.spare
    most[d] = pooled and 0 or layer.computed[d]
    for _, e in ipairs(layers.descending(layer.load)) do
      if left > 0 and (pooled or layer.owner[e] ~= d) then
        most[d], left = most[d] + layer.load[e], left - 1
      end
    end
  end
  return most
end

--- Returns a load that the heaviest device has at least, whatever is copied (with `pooled`: laid
--- out) where: the least L with which the devices can compute all tokens if each computes L at most
--- and what its slots can reach. At least the mean rounded up.
function M.bound(layer, pooled)
  local most, fails, least = reach(layer, pooled), -1, layer.total
  while least - fails > 1 do
    local limit, sum = math.floor((least + fails) / 2), 0
    for _, tokens in ipairs(most) do sum = sum + math.min(limit, tokens) end
    if sum >= layer.total then least = limit else fails = limit end
  end
  return least
end

-- Returns the least load of the heaviest device if each expert may be computed by the devices in
-- on[expert], a set of bits, in any whole parts: by Hall's theorem the largest, over sets of
-- devices, of the tokens that only these devices can compute, divided by their number.
local function least_load(layer, on)
  local most = 0
  for set = 1, 2 ^ layer.devices - 1 do
    local tokens, size = 0, 0
    for e, devices in ipairs(on) do
      if bit.band(devices, bit.bnot(set)) == 0 then tokens = tokens + layer.load[e] end
    end
    for d = 0, layer.devices - 1 do size = size + bit.band(bit.rshift(set, d), 1) end
    most = math.max(most, math.ceil(tokens / size))
  end
  return most
end

-- Calls visit(list) for each list of up to `size` of the numbers in `from`, ascending.
local function each_choice(from, size, visit, list, first)
  list = list or {}
  visit(list)
  if #list == size then return end
  for i = first or 1, #from do
    list[#list + 1] = from[i]
    each_choice(from, size, visit, list, i + 1)
    list[#list] = nil
  end
end

-- Returns the sets of experts that a device may hold beside those that it owns (with `pooled`: at
-- all). Only full slots, since a further holder never makes the optimum worse.
local function choices_of(layer, d, pooled)
  local from, lists = {}, {}
  for e = 1, layer.experts do
    if pooled or layer.owner[e] ~= d then from[#from + 1] = e end
  end
  local size = math.min(#from, pooled and layer.residents or layer.spare)
  each_choice(from, size, function(list)
    if #list == size then lists[#lists + 1] = { unpack(list) } end
  end)
  return lists
end

--- Returns the number of cases that M.optimum tries.
function M.cases(layer, pooled)
  local n = 1
  for d = 1, layer.devices do
    local others = layer.experts - (pooled and 0 or #layer.owned[d])
    local size = math.min(others, pooled and layer.residents or layer.spare)
    for i = 1, size do n = n * (others - size + i) / i end
  end
  return n
end

--- Returns the least load of the heaviest device over all ways to fill the slots for copies (or,
--- with `pooled`, all slots) and to share tokens among the holders. Takes M.cases(layer) times the
--- sets of devices and the experts.
function M.optimum(layer, pooled)
  local bound, best, on, lists = M.bound(layer, pooled), math.huge, {}, {}
  for e = 1, layer.experts do on[e] = pooled and 0 or 2 ^ (layer.owner[e] - 1) end
  for d = 1, layer.devices do lists[d] = choices_of(layer, d, pooled) end
  local function try(d)
    if best == bound then return end
    if d > layer.devices then
      for _, devices in ipairs(on) do if devices == 0 then return end end
      best = math.min(best, least_load(layer, on))
      return
    end
    for _, list in ipairs(lists[d]) do
      for _, e in ipairs(list) do on[e] = on[e] + 2 ^ (d - 1) end
      try(d + 1)
      for _, e in ipairs(list) do on[e] = on[e] - 2 ^ (d - 1) end
    end
  end
  try(1)
  return best
end

return M
