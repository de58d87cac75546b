-- The reference model on two ranks, with the built-in gate and with Switch in Lua, as
-- tests/recipes/golden/switch.lua has them.
local moe = require "moe"

local my_switch = moe.policy.gate {
  name = "my_switch", scope = "token", weight = "prob", k = 1,
  route = function(ctx, s)
    local best = s:argmax_rows()
    for t = 1, ctx.tokens do ctx:take(t, best(t)) end
  end,
}

for _, gate in ipairs { "switch", my_switch {} } do
  local r = moe.train {
    model = moe.model.gpt2_moe { vocab = 512, layers = 4, hidden = 128, heads = 4, seq = 64,
      batch = 8, experts = 4, gate = gate, capacity_factor = 1.25 },
    ranks = 2, steps = 5, tokens = "reference", system = moe.system "raf" {},
  }
  for step, layers in ipairs(r.moe) do
    for i, m in ipairs(layers) do
      print(("loss %d %d %.9f %d %s"):format(step, i, r.losses[step], m.dropped, m.checksum))
    end
  end
end
