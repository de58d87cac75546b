-- exit: 1
-- says: moe.train.link.bytes_per_s: is missing
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
moe.train { model = m, ranks = 2, link = { latency_us = 3 } }
