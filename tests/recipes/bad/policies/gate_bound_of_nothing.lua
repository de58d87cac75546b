-- exit: 1
-- says: gate 'g': bound() returned nil; return a whole number
local moe = require "moe"
local g = moe.policy.gate { name = "g", scope = "token", weight = "prob", k = 1,
  bound = function() end,
  route = function(ctx) for t = 1, ctx.tokens do ctx:take(t, 1) end end }
local m = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = 16, vocab = 128,
  batch_per_device = 4, experts_per_device = 1, gate = g {} }
moe.plan { model = m, cluster = moe.cluster.p3dn { nodes = 1 }, system = moe.system "raf" {} }
