-- exit: 1
-- says: /proc/nowhere
-- args: --out /proc/nowhere
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  batch_per_device = 2,
  experts = 4,
}
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {} } }
