-- exit: 1
-- line: 20
-- says: moe.train.link: unknown key 'bytes_per_sec'
-- says: Did you mean 'bytes_per_s'?
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
moe.train {
  model = m,
  ranks = 2,
  steps = 1,
  link = {
    bytes_per_sec = 1e8,
  },
}
