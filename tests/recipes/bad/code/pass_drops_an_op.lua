-- exit: 1
-- says: broken
local moe = require "moe"
local p = moe.policy.pass {
  name = "broken", at = "step",
  apply = function(g, ctx)
    g:remove(g:op { kind = "all_to_all", phase = "forward" })
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 2 }
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "mine" { p {} } } }
