-- exit: 3
-- line: 7
-- says: no free slot for a copy of expert 2 on device 2: its 1 slots for copies are in use
local moe = require "moe"
local p = moe.policy.placement {
  name = "broken", at = "layer",
  place = function(ctx, load, p)
    return p:shadow(1, 2):shadow(2, 2)
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, steps = 3, tokens = "reference", system = moe.system "x" { p {} } }
