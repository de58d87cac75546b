-- exit: 1
-- line: 7
-- says: moe.train.checkpoint_every: writes nothing without checkpoint_to
local moe = require "moe"
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.train { model = m, ranks = 2, steps = 1, tokens = "reference", checkpoint_every = 5 }
