-- exit: 1
-- line: 13
-- says: gate 'best_first'
-- says: scope = 'token' is declared, but token
-- says: declare scope = 'batch'
local moe = require "moe"
local g = moe.policy.gate {
  name = "best_first", scope = "token", k = 1,
  route = function(ctx, s) ctx:fill(s:topk_rows(1), s:topk_col(1, ctx.tokens)) end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4, gate = g {}, capacity_factor = 0.5 }
moe.train { model = m, ranks = 2, steps = 3, tokens = "reference" }
