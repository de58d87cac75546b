-- exit: 1
-- says: experiment.systems[1]: a table is not allowed; give a system
local moe = require "moe"
local m = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = 16, vocab = 128,
  batch_per_device = 4, experts_per_device = 1 }
local c = moe.cluster.p3dn { nodes = 1 }
local made = setmetatable({ name = "raf", passes = {} }, getmetatable(moe.system "raf" {}))
return moe.experiment { name = "x", model = m, cluster = c, systems = { made },
  run = { "simulate" } }
