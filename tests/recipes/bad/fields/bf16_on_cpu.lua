-- exit: 1
-- line: 14
-- says: moe.train.precision: 'bf16' is only possible on cuda; cpu computes in f32 or f64
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
moe.train { model = m, ranks = 2, precision = "bf16" }
