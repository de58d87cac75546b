-- exit: 3
-- says: placement 'broken'
-- says: deadline
local moe = require "moe"
local p = moe.policy.placement {
  name = "broken",
  place = function(ctx, load, p)
    while true do end
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, steps = 3, tokens = "reference", system = moe.system "x" { p {} } }
