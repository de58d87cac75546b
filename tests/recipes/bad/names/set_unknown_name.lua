-- exit: 1
-- says: --set
-- says: unknown name 'nodez'
-- says: Did you mean 'nodes'?
-- args: --set nodez=2
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
return moe.experiment { name = "x", over = { nodes = { 2, 4 } },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {} } } end }
