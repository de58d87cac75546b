-- exit: 1
-- line: 11
-- says: rank 0, step 0, op b1.moe.gate: gate 'returns', layer 2: /
-- says: gate_returns_its_choice.lua:8: route() returned a userdata, which has no effect
-- says: it returns nothing and chooses experts by ctx:take or ctx:fill
local moe = require "moe"
local g = moe.policy.gate { name = "returns", scope = "token", k = 1,
  route = function(_, s) return s:argmax_rows() end }
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4, gate = g {} }
moe.train { model = m, ranks = 1, steps = 1, tokens = "reference" }
