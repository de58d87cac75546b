-- exit: 1
-- line: 6
-- says: experiment.over.capfac: has no effect, since the runs at its 3 values are equal
-- says: let `case` read it, or omit it
local moe = require "moe"
return moe.experiment { name = "x", over = { nodes = { 1, 2 }, capfac = { 1, 1.25, 2 } },
  case = function(p)
    return { cluster = moe.cluster.p4de { nodes = p.nodes }, systems = { moe.system "raf" {} },
      model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
        batch_per_device = 2, experts_per_device = 1, capacity_factor = 1.25 } }
  end }
