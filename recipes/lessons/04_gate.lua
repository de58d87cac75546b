-- Lesson 4. How do I try a gate of my own? This one looks at a token's two best experts and takes
-- the one with more places left. It is trained beside Switch, which always takes the best.
-- Run it: build/release/moebench run recipes/lessons/04_gate.lua  (under a second)
-- Try next: the better expert unless it is full; k = 2 and both experts;
-- balance_loss = { coefficient = 0.03 } in the model.
local moe = require "moe"

local roomier = moe.policy.gate {
  name = "roomier",
  scope = "token",   -- a choice depends on the token and on the places used so far
  weight = "prob",   -- an expert's output is weighted by the router's softmax
  k = 1,
  route = function(ctx, s)
    local best = s:topk_rows(2)
    for t = 1, ctx.tokens do
      local first, second = best(t, 1), best(t, 2)
      ctx:take(t, ctx:left(first) >= ctx:left(second) and first or second)
    end
  end,
}

local STEPS, RANKS = 20, 2

for _, gate in ipairs { "switch", roomier {} } do
  local r = moe.train { ranks = RANKS, steps = STEPS, optimizer = { lr = 0.02 },
    model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 64, heads = 4, seq = 64,
      batch_per_device = 4, experts = 8, gate = gate } }
  local dropped, tokens = 0, STEPS * RANKS * 4 * 64
  for step = 1, STEPS do dropped = dropped + r.moe[step][1].dropped end
  print(("%-8s loss %.2f -> %.2f, %.0f%% of all tokens dropped"):format(gate.name or gate,
    r.losses[1], r.losses[STEPS], 100 * dropped / tokens))
end
