-- exit: 1
-- says: op 'b1.moe.a2a_1.p0' is cut into rounds by fastermoe_pipeline
-- says: leave one of the two stages out
local moe = require "moe"
moe.plan { cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "mine" { moe.pass.fastermoe_pipeline {}, moe.pass.hierarchical_a2a {} },
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
    batch_per_device = 2, experts_per_device = 2 } }
