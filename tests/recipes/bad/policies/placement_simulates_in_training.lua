-- exit: 3
-- line: 8
-- says: placement 'asks', rank 0, step 0, layer 1
-- says: ctx:simulate is possible only while the plan is simulated
local moe = require "moe"
local p = moe.policy.placement { name = "asks",
  place = function(ctx, load, p)
    ctx:simulate(p)
    return p
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, steps = 3, tokens = "reference", system = moe.system "x" { p {} } }
