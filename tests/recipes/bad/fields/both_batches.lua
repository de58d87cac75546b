-- exit: 1
-- line: 13
-- says: give either batch or batch_per_device, not both
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  batch_per_device = 2,
  experts = 4,
  batch = 8,
}
moe.train { model = m, ranks = 2, steps = 1, tokens = "reference" }
