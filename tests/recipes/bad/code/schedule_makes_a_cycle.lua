-- exit: 3
-- says: broken
-- says: cycle
local moe = require "moe"
local p = moe.policy.schedule {
  name = "broken",
  apply = function(s, g, ctx)
    local a = g:ops { kind = "all_to_all" }
    s:before(a[2], a[1])
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 2 }
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "mine" { p {} } } }
