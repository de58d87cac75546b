-- Methods that plan copies (balance.lua) as passes: placements that are made between the gate and
-- the dispatch of a layer, from its exact load, and are in force in the same layer and step.
local layers = require "moe.techniques.balance.layer"

local M = {}

--- The fields of a placement policy (moe.policy.placement) that every such pass has.
M.FIELDS = { at = "layer", weighted = true, every = 1, shadows = 2, extra_residents = 0,
  expected_copies = 1 }

--- Returns the function `place` of the policy that carries out the plans of a method. A copy that
--- gets no tokens is not made.
function M.place(method)
  return function(ctx, load, p, o)
    local layer = layers.of_loads(load:by_expert(), ctx.devices, nil, o.shadows)
    p:clear_shadows()
    for e, holders in ipairs(method.plan(layer, o).holders) do
      local tokens = {}
      p:share(e, "local")
      for i = 2, #holders do
        local holder = holders[i]
        if holder.tokens > 0 then
          p:shadow(e, holder.device)
          tokens[holder.device] = holder.tokens
        end
      end
      if next(tokens) then p:quota(e, tokens) end
    end
    return p
  end
end

return M
