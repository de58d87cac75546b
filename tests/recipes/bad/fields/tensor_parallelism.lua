-- exit: 1
-- line: 7
-- says: model.gpt2_moe: unknown key 'tp'; tensor parallelism is not implemented
local moe = require "moe"
return moe.plan { cluster = moe.cluster.p4de { nodes = 1 }, system = moe.system "raf" {},
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
    tp = 2, batch_per_device = 2, experts_per_device = 1 } }
