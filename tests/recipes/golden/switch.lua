-- The reference model through the Lua surface; golden_test.cpp holds what it prints against
-- tests/data/golden_tiny.json. my_switch is Switch written in Lua.
local moe = require "moe"

local my_switch = moe.policy.gate {
  name = "my_switch", scope = "token", weight = "prob", k = 1,
  route = function(ctx, s)
    local best = s:argmax_rows()
    for t = 1, ctx.tokens do ctx:take(t, best(t)) end
  end,
}

local function train(label, gate, ranks)
  local r = moe.train {
    model = moe.model.gpt2_moe { vocab = 512, layers = 4, hidden = 128, heads = 4, seq = 64,
      batch = 8, experts = 4, gate = gate, capacity_factor = 1.25 },
    ranks = ranks, steps = 5, executor = "cpu", init = "reference", tokens = "reference",
    system = moe.system "raf" {}, optimizer = { name = "sgd", lr = 0.1, momentum = 0.9 },
  }
  for step = 1, 5 do
    for i = 1, 2 do
      local m = r.moe[step][i]
      print(("%s %d %d %.9f %d %d %s"):format(label, step, i, r.losses[step], m.capacity, m.dropped,
        m.checksum))
    end
  end
end

train("switch", "switch", 1)
train("switch_ranks2", "switch", 2)
train("switch", my_switch {}, 1)
train("switch_ranks2", my_switch {}, 2)
