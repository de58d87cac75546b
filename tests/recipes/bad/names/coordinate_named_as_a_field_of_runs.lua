-- exit: 1
-- says: experiment.over.system: is the name of a field of runs
local moe = require "moe"
local m = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = 16, vocab = 128,
  batch_per_device = 4, experts_per_device = 1 }
local c = moe.cluster.p3dn { nodes = 1 }
return moe.experiment { name = "x", over = { system = { 1, 2 } }, case = function()
  return { model = m, cluster = c, systems = { moe.system "raf" {} } }
end, run = { "simulate" } }
