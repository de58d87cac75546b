-- exit: 1
-- says: unknown key 'sytems'
-- says: Did you mean 'systems'?
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
return moe.experiment {
  name = "x",
  over = { nodes = { 2 } },
  case = function(p) return { model = m, sytems = {} } end,
}
