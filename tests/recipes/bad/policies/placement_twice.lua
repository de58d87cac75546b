-- exit: 1
-- line: 7
-- says: stage 'eplb' has already placed the experts; at most one placement per system is allowed
local moe = require "moe"
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, system = moe.system "x" { moe.pass.eplb {}, moe.pass.swap {} } }
