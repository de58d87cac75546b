-- exit: 1
-- says: experiment 'second': was made but neither run nor returned
local moe = require "moe"
local m = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = 16, vocab = 128,
  batch_per_device = 4, experts_per_device = 1 }
local c = moe.cluster.p3dn { nodes = 1 }
local function e(name)
  return moe.experiment { name = name, model = m, cluster = c, systems = { moe.system "raf" {} },
    run = { "simulate" } }
end
local a, b = e "first", e "second"
return a, b
