-- exit: 1
-- line: 12
-- says: model.gpt2_moe.fill: 1.2 is not allowed; give a number from 1e-06 to 1
local moe = require "moe"
local m = moe.model.gpt2_moe {
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  batch_per_device = 2,
  experts = 4,
  fill = 1.2,
}
return m
