-- exit: 1
-- line: 9
-- says: results: unknown method 'row'
-- says: have: best, by, differences, each, get
local moe = require "moe"
local e = moe.experiment { name = "x", systems = { moe.system "raf" {} },
  model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
    batch_per_device = 2, experts_per_device = 1 }, cluster = moe.cluster.p4de { nodes = 1 } }
moe.run(e):row(1)
