-- exit: 3
-- says: priority { hold = false }
-- says: give 'b1.moe.copy' a priority of 1
local moe = require "moe"
moe.plan { cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "mine" { moe.pass.prophet {}, moe.pass.priority {} },
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
    batch_per_device = 2, experts_per_device = 2 } }
