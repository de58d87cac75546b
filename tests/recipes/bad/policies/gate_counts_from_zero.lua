-- exit: 1
-- line: 12
-- says: rank 0, step 0, op b1.moe.gate: gate 'broken', layer 2: /
-- says: gate_counts_from_zero.lua:8: token 0 is not allowed; Lua counts from 1: give 1 to 32
local moe = require "moe"
local g = moe.policy.gate { name = "broken", scope = "batch", k = 1,
  route = function(ctx, s)
    for t = 0, ctx.tokens - 1 do ctx:take(t, 1) end
  end }
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4, gate = g {} }
moe.train { model = m, ranks = 1, steps = 1, tokens = "reference" }
