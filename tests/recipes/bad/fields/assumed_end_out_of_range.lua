-- exit: 1
-- line: 13
-- says: fill.hi: 1.5 is not allowed; give a number from 1e-06 to 1
local moe = require "moe"
local m = moe.model.gpt2_moe {
  layers = 2,
  hidden = 32,
  heads = 4,
  seq = 16,
  batch_per_device = 2,
  experts = 4,
  fill = moe.assumed { value = 0.8, lo = 0.5, why = "a guess",
    hi = 1.5 },
}
return m
