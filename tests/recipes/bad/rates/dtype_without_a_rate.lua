-- exit: 1
-- line: 8
-- says: dtype: 'bf16' has no rate on V100-32GB (p3dn), which has f16, f32; give a type that it has
local moe = require "moe"
return moe.experiment { name = "x", over = { dtype = { "f16", "bf16" } }, case = function(p)
  return { cluster = moe.cluster.p3dn { nodes = 1 }, systems = { moe.system "raf" {} },
    model = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = 16, vocab = 256,
      batch_per_device = 1, experts_per_device = 1, dtype = p.dtype } } end }
