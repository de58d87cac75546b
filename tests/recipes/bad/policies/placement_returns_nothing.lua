-- exit: 3
-- line: 7
-- says: place() returned nothing; return p
local moe = require "moe"
local p = moe.policy.placement {
  name = "broken",
  place = function(ctx, load, p)
    p:shadow(1, 2)
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, steps = 3, tokens = "reference", system = moe.system "x" { p {} } }
