-- exit: 1
-- line: 9
-- says: model.gpt2_moe.heads: 0 is not allowed
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 0,
  seq = 16,
  batch_per_device = 2,
  experts = 4,
}
moe.train { model = m, ranks = 2, steps = 1, tokens = "reference" }
