-- exit: 3
-- line: 11
-- says: placement 'broken'
-- says: rank 0, step 2
-- says: oh no
local moe = require "moe"
local p = moe.policy.placement {
  name = "broken", shadows = 0,
  place = function(ctx, load, p)
    if ctx.step < 3 then return p end
    error "oh no"
  end,
}
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, steps = 5, tokens = "reference", system = moe.system "x" { p {} } }
