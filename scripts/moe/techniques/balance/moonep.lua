-- MoonEP (public code and README as in the fork github.com/zhumakhan/MoonEP,
-- tests/planning_reference.py): every device computes the mean load, to the token. First devices:
-- the one furthest above its share fills up the one furthest below, until none is above; a device
-- that gave too much is filled up by another one later, so a device gets copies from one other
-- device only, and needs at most as many slots as a device owns experts. Then experts: for the
-- device that takes most, the owner gives of the expert with most tokens left.
-- Shares are the mean rounded down, and one more on the first devices. Choice: the method has a
-- slot for each copy; with fewer the smallest copies of a device are left out, and their tokens
-- stay with the owner.
local layers = require "moe.techniques.balance.layer"
local schema = require "moe.base.schema"

-- Returns takes[owner device][device] = tokens that one device computes for another.
local function between_devices(layer)
  local above, takes = {}, {}
  for d, tokens in ipairs(layer.computed) do
    local more = d <= layer.total % layer.devices and 1 or 0
    above[d], takes[d] = tokens - math.floor(layer.total / layer.devices) - more, {}
    for other = 1, layer.devices do takes[d][other] = 0 end
  end
  while true do
    local from, to = layers.argmax(above), 1
    for d in ipairs(above) do if above[d] < above[to] then to = d end end
    if above[from] <= 0 then return takes end
    takes[from][to] = -above[to]
    above[from], above[to] = above[from] + above[to], 0
  end
end

-- Adds to copies[device] what the device takes of the owner's experts: { expert, tokens }.
local function choose_experts(layer, owner, takes, copies)
  local left = {}
  for i, e in ipairs(layer.owned[owner]) do left[i] = layer.load[e] end
  while true do
    local to = layers.argmax(takes)
    if takes[to] <= 0 then return end
    local i = layers.argmax(left)
    local tokens = math.min(left[i], takes[to])
    table.insert(copies[to], { expert = layer.owned[owner][i], tokens = tokens })
    left[i], takes[to] = left[i] - tokens, takes[to] - tokens
  end
end

return {
  doc = "MoonEP: copies so that every device computes the mean, to the token",
  options = {},
  plan = function(layer)
    local plan, copies = layers.copies(layer), {}
    for d = 1, layer.devices do copies[d] = {} end
    for owner, takes in ipairs(between_devices(layer)) do
      choose_experts(layer, owner, takes, copies)
    end
    for d, list in ipairs(copies) do
      schema.sorted(list, function(copy) return -copy.tokens, copy.expert end)
      for _, copy in ipairs(list) do
        if plan:can_hold(copy.expert, d) then plan:give(copy.expert, d, copy.tokens) end
      end
    end
    return plan
  end,
}
