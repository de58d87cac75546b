-- exit: 1
-- line: 7
-- says: system 'x' has the pass 'dw_schedule', which decides by times of training steps
local moe = require "moe"
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
  batch_per_device = 2, experts = 4 }
moe.infer { model = m, system = moe.system "x" { moe.pass.dw_schedule {} }, ranks = 2 }
