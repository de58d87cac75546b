-- One system is soon done, the other one is not.
local moe = require "moe"

return moe.experiment {
  name = "endless",
  case = function() return {
    model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 32, heads = 2, seq = 16,
      batch_per_device = 4, experts_per_device = 2, gate = "switch", capacity_factor = 1.25 },
    systems = { moe.system "raf" {}, moe.system "deepspeed" {} } } end,
  run = {
    { "cpu", ranks = 2, steps = 2, tokens = "reference", systems = { "raf" } },
    { "cpu", ranks = 2, steps = 1000000, tokens = "reference", systems = { "deepspeed" } } },
}
