-- exit: 1
-- line: 11
-- says: experiment.name: 'same' is the name of another experiment that this recipe runs (line 10)
local moe = require "moe"
local cluster, systems = moe.cluster.p4de { nodes = 1 }, { moe.system "raf" {} }
local function model(hidden)
  return moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = hidden, heads = 4, seq = 16,
    batch_per_device = 2, experts_per_device = 1 }
end
moe.run(moe.experiment { name = "same", cluster = cluster, systems = systems, model = model(32) })
moe.run(moe.experiment { name = "same", cluster = cluster, systems = systems, model = model(64) })
