-- exit: 1
-- line: 10
-- says: lane 'comm' already has a discipline
-- says: stages 'broken' and 'broken'
local moe = require "moe"
local p = moe.policy.schedule {
  name = "broken",
  apply = function(s, g)
    s:discipline("comm", { pick = "priority" })
    s:discipline("comm", {})
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 2 }
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 1 },
  systems = { moe.system "mine" { p {} } } }
