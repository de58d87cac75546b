-- exit: 1
-- line: 8
-- says: a capacity of 1, so 1 to 1 is allowed (system 'parts', seq = 2)
local moe = require "moe"
return moe.experiment { name = "x", over = { seq = { 16, 2 } }, case = function(p)
  local m = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = p.seq, vocab = 256,
    batch_per_device = 1, experts_per_device = 1 }
  local parts = moe.system "parts" { moe.pass.capacity_pipeline { degree = 2 } }
  return { model = m, cluster = moe.cluster.p3dn { nodes = 1 },
    systems = { moe.system "raf" {}, parts } }
end }
