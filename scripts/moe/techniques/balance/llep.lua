-- LLEP: least-loaded expert parallelism (Nguyen et al. 2026, arXiv 2601.17111, and
-- compute_llep_lpt_plan of the public code, github.com/SalesforceAIResearch/LeastLoadedEP). Experts
-- are taken in descending order of load. An expert's own device computes its tokens as far as its
-- limit, factor times the mean, allows; the rest goes to the device with the least load, counting
-- tokens that it already has and those of its own experts still to come. A device takes no piece
-- of fewer than min_tokens unless it is the last; where no device is below the limit, the
-- least-loaded one takes the rest. A layer below `ratio` is left as it is.
-- Choices: the method has no slots for copies; here a device takes pieces of as many experts as it
-- has slots, and what no device can take without more load than the owner has stays there. Where
-- the expert's own device has no room left the code tries the others in one fixed order; here the
-- order is made anew for each piece.
local layers = require "moe.techniques.balance.layer"

-- Returns the device that takes the next piece of an expert, and its tokens.
local function taker(plan, expert, rest, limit, least, busy)
  local best, forced
  for d in ipairs(busy) do
    if d ~= plan.holders[expert][1].device and plan:can_hold(expert, d) then
      local tokens = math.min(rest, limit - busy[d])
      local fits = tokens > 0 and (tokens >= least or tokens == rest)
      if fits and not (best and busy[best] <= busy[d]) then best = d end
      if not (forced and busy[forced] <= busy[d]) then forced = d end
    end
  end
  if best then return best, math.min(rest, limit - busy[best]) end
  local owner = plan.holders[expert][1].device
  if forced and busy[forced] + rest < busy[owner] then return forced, rest end
end

local function place(plan, layer, limit, least)
  local busy = {}  -- tokens that a device has and, of its own experts, those that are still to come
  for d, tokens in ipairs(layer.computed) do busy[d] = tokens end
  for _, e in ipairs(layers.descending(layer.load)) do
    local owner = layer.owner[e]
    local rest = math.min(layer.load[e], math.max(0, busy[owner] - limit))
    while rest > 0 do
      local d, tokens = taker(plan, e, rest, limit, least, busy)
      if not d then break end
      plan:give(e, d, tokens)
      busy[d], busy[owner], rest = busy[d] + tokens, busy[owner] - tokens, rest - tokens
    end
  end
end

return {
  doc = "LLEP: tokens and experts go from devices above a limit to the least-loaded device",
  options = {
    factor = { type = "number", lo = 1, hi = 1e6, default = 1.1,
      doc = "limit of a device's tokens, in means over the devices" },
    min_tokens = { type = "integer", lo = 1, hi = 1e12, default = 1024,
      doc = "fewest tokens that are worth a piece" },
    ratio = { type = "number", lo = 1, hi = 1e6, default = 1.3,
      doc = "largest over mean load of the devices from which on the layer is balanced" },
  },
  plan = function(layer, o)
    local plan, mean = layers.copies(layer), math.floor(layer.total / layer.devices)
    local most = layer.computed[layers.argmax(layer.computed)]
    if most * layer.devices >= o.ratio * layer.total then
      place(plan, layer, math.max(1, math.floor(o.factor * mean)), o.min_tokens)
    end
    return plan
  end,
}
