-- exit: 1
-- line: 8
-- says: lane 'compute' is a compute lane
local moe = require "moe"
local p = moe.policy.schedule {
  name = "broken",
  apply = function(s, g)
    s:discipline("comm", { exclusive = { "compute" } })
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 2 }
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 1 },
  systems = { moe.system "mine" { p {} } } }
