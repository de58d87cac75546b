-- exit: 1
-- line: 13
-- says: model.gpt2_moe.capacity_factor
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  batch_per_device = 2,
  experts = 4,
  capacity_factor = 0/0,
}
moe.train { model = m, ranks = 2, steps = 1, tokens = "reference" }
