-- exit: 1
-- says: --set gpu=p5
-- says: have: p4de, p3dn
-- args: --set gpu=p5
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
return moe.experiment { name = "x", over = { gpu = { "p4de", "p3dn" } },
  case = function(p) return { model = m, cluster = moe.cluster[p.gpu] { nodes = 2 },
    systems = { moe.system "raf" {} } } end }
