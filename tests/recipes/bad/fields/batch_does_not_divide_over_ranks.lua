-- exit: 1
-- line: 12
-- says: model.batch: 3 sequences cannot be spread evenly over 2 ranks
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  experts = 4,
  batch = 3,
}
moe.train { model = m, ranks = 2, steps = 1, tokens = "reference" }
