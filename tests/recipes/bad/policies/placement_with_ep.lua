-- exit: 1
-- line: 7
-- says: exchanges rows among fewer than all ranks (model.ep)
local moe = require "moe"
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4, ep = 2 }
moe.train { model = m, ranks = 4, system = moe.system "eplb" {} }
