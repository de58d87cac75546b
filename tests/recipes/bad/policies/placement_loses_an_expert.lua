-- exit: 3
-- line: 9
-- says: placement 'broken'
-- says: device 1 owns expert 1, which would be lost
local moe = require "moe"
local p = moe.policy.placement {
  name = "broken",
  place = function(ctx, load, p)
    p:drop(1, 1)
    return p
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, steps = 3, tokens = "reference", system = moe.system "x" { p {} } }
