-- exit: 1
-- line: 9
-- says: bytes of 'all_reduce.0': 1000000000000
-- says: give a whole number from 1 to
local moe = require "moe"
local p = moe.policy.schedule {
  name = "broken",
  apply = function(s, g)
    s:chunk(g:op { kind = "all_reduce" }, 1e12)
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 2 }
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 1 },
  systems = { moe.system "mine" { p {} } } }
