-- exit: 1
-- says: failed after 1 step
-- says: gate 'broken'
-- says: gate_raises_after_a_step.lua:8: oh no
local moe = require "moe"
local g = moe.policy.gate { name = "broken", scope = "token", k = 1,
  route = function(ctx, s)
    if ctx.step == 2 then error "oh no" end
    local best = s:argmax_rows()
    for t = 1, ctx.tokens do ctx:take(t, best(t)) end
  end }
return moe.experiment { name = "x", run = { { "cpu", ranks = 2, steps = 3, rehearse = 0,
    tokens = "reference" } },
  model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
    batch_per_device = 2, experts_per_device = 2, gate = g {} },
  systems = { moe.system "raf" {} } }
