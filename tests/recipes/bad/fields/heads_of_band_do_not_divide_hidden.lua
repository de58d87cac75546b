-- exit: 1
-- line: 9
-- says: heads: 5 does not divide hidden = 32
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = moe.assumed { value = 4, lo = 4, hi = 5, why = "a guess" },
  seq = 16,
  batch_per_device = 2,
  experts_per_device = 2,
}
return moe.experiment {
  name = "x",
  model = m,
  cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {} },
  claims = { moe.claim { id = "lancet-034", value = function() end } },
}
