-- A gate written in a recipe: like Switch, except that a token goes to its second best expert when
-- the best one has no free slot.
local moe = require "moe"

local overflow_gate = moe.policy.gate {
  name = "second_chance",
  doc = "the best expert, or the second best when the best is full",
  scope = "token", weight = "prob", k = 1,
  route = function(ctx, s)
    local best = s:topk_rows(2)
    for t = 1, ctx.tokens do
      local first, second = best(t, 1), best(t, 2)
      ctx:take(t, ctx:left(first) > 0 and first or second)
    end
  end,
}

local function model(gate)
  return moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 64, heads = 4, seq = 64,
    batch_per_device = 4, experts = 8, gate = gate, capacity_factor = 1.0 }
end

for _, gate in ipairs { "switch", overflow_gate {} } do
  local r = moe.train { model = model(gate), ranks = 2, steps = 20 }
  local name = type(gate) == "string" and gate or gate.name
  print(("%-14s loss %.4f -> %.4f, dropped %d of 512 tokens"):format(name, r.losses[1],
    r.losses[20], r.moe[20][1].dropped))
end
