-- The methods of balance.lua as passes. Those that plan copies are placements made between the gate
-- and the dispatch of a layer, from its exact load, and in force in the same layer and step. Those
-- that lay out all slots (pooled) are placements made after a step from its load, in force from the
-- next step on; parameters and optimizer states that change their device are moved between the two.
local balance = require "moe.techniques.balance"
local layers = require "moe.techniques.balance.layer"

local M = {}

--- The fields of a placement policy (moe.policy.placement) that the passes have: of a method that
--- plans copies, and of one that lays out all slots.
M.COPIES = { at = "layer", weighted = true, every = 1, shadows = 2, extra_residents = 0,
  expected_copies = 1, static_rows = 0 }
M.LAYOUT = { at = "step", weighted = true, every = 1, shadows = 0, extra_residents = 2,
  expected_copies = 0, static_rows = 0 }

-- Carries out a plan of copies. A copy that gets no tokens is not made. most: tokens that a copy
-- may have, or 0 for any number; the owner computes what is above.
local function copy(plan, p, most)
  p:clear_shadows()
  for e, holders in ipairs(plan.holders) do
    local tokens = {}
    p:share(e, "local")
    for i = 2, #holders do
      local holder = holders[i]
      if holder.tokens > 0 then
        p:shadow(e, holder.device)
        tokens[holder.device] = most > 0 and math.min(most, holder.tokens) or holder.tokens
      end
    end
    if next(tokens) then p:quota(e, tokens) end
  end
  return p
end

-- Carries out a layout. An owner that still holds its expert stays the owner.
local function lay_out(plan, p)
  local held = {}
  for e, holders in ipairs(plan.holders) do
    local list, owner = {}, p:owner(e)
    for i, holder in ipairs(holders) do
      list[i] = holder.device
      if holder.device == owner then list[1], list[i] = list[i], list[1] end
    end
    held[e] = list
  end
  p:layout(held)
  for e, holders in ipairs(plan.holders) do
    local weights = {}
    for _, holder in ipairs(holders) do weights[holder.device] = holder.weights end
    if #holders > 1 then
      p:share(e, function(source, device) return weights[device][source] end)
    end
  end
  return p
end

--- Returns the function `place` of the policy that carries out the plans of a method.
function M.place(method)
  return function(ctx, load, p, o)
    local layer = layers.of_loads(load:by_expert(), ctx.devices, nil, o.shadows)
    if not method.pooled then return copy(method.plan(layer, o), p, o.static_rows) end
    layer.residents, layer.routed, layer.held = layer.residents + o.extra_residents, {}, {}
    for e = 1, ctx.experts do
      layer.held[e], layer.routed[e] = p:holders(e), {}
      for d = 1, ctx.devices do layer.routed[e][d] = load(e, d) end
    end
    return lay_out(method.plan(layer, o), p)
  end
end

--- Returns { place = function } of the method `name`. Ranks call it in states of their own, which
--- load only this module; the parameters are those of moe._policy.
function M._policy(_, name)
  return { place = M.place(balance[name]) }
end

return M
