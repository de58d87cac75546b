-- exit: 1
-- line: 8
-- says: gate 'broken'
local moe = require "moe"
local g = moe.policy.gate {
  name = "broken", scope = "token", k = 1,
  route = function(ctx, s)
    ctx:take(ctx.tokens + 1, 1)
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4, gate = g {} }
moe.train { model = m, ranks = 2, steps = 3, tokens = "reference" }
