-- exit: 1
-- line: 14
-- says: model.balance_loss: the gate 'hash' does not choose experts by their scores
local moe = require "moe"
local m = moe.model.gpt2_moe {
  vocab = 256,
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  batch_per_device = 2, experts = 4, gate = "hash",
  balance_loss = { coefficient = 0.01 },
}
moe.train { model = m, ranks = 2, steps = 1, tokens = "reference" }
