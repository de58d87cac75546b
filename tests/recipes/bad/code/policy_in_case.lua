-- exit: 1
-- line: 18
-- says: moe.policy.gate: the policy is defined inside the function `case`
-- says: define it before moe.experiment
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  batch_per_device = 2,
  experts = 4,
}
return moe.experiment {
  name = "x",
  case = function()
    local g = moe.policy.gate { name = "mine", scope = "token", route = print }
    return { model = m, systems = { moe.system "raf" {} }, g {} }
  end,
}
