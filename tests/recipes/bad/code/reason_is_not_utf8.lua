-- exit: 1
-- line: 6
-- says: bad argument #1: the text is not UTF-8 from byte 3 on; give UTF-8 text
local moe = require "moe"
local policy = moe.policy.schedule { name = "silent", apply = function(_, _, ctx)
  ctx:skip("a \255")
end }
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 1 }
moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 1 },
  system = moe.system "x" { policy {} } }
