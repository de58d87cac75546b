-- exit: 1
-- line: 16
-- says: experiment.band: 'edges' is not allowed; give one of: each, corners, none
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
  band = "edges",
  model = m,
  systems = { moe.system "raf" {} },
}
