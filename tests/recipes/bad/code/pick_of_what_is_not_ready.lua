-- exit: 3
-- line: 11
-- says: pick of lane 'comm', schedule 'broken'
-- says: returned op 'lnf.w.sgd'
-- says: which is not ready
local moe = require "moe"
local p = moe.policy.schedule {
  name = "broken",
  apply = function(s, g)
    local last = g:ops { kind = "sgd" }[1]
    s:discipline("comm", { pick = function(ready) return last end })
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 2 }
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 1 },
  systems = { moe.system "mine" { p {} } } }
