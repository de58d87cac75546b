-- exit: 1
-- says: give either batch or batch_per_device, neither is given
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  experts = 4,
}
moe.train { model = m, ranks = 2, steps = 1, tokens = "reference" }
