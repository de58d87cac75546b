-- exit: 1
-- line: 7
-- says: experiment 'e': is run a second time; moe.run runs it, and so does returning it
local moe = require "moe"
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts_per_device = 1 }
local e = moe.experiment { name = "e", cluster = moe.cluster.p4de { nodes = 1 },
  systems = { moe.system "raf" {} }, model = m }
moe.run(e)
return e
