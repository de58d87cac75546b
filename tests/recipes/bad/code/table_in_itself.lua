-- exit: 1
-- says: experiment.params.a
-- says: is a table in 17 others, or in itself; at most 16 are allowed
local moe = require "moe"
local m = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = 16, vocab = 128,
  batch_per_device = 4, experts_per_device = 1 }
local c = moe.cluster.p3dn { nodes = 1 }
local a = {}
a[1] = a
return moe.experiment { name = "x", params = { a = a }, case = function()
  return { model = m, cluster = c, systems = { moe.system "raf" {} } }
end, run = { "simulate" } }
