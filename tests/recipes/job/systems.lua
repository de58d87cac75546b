-- Plans that are made from measured times, on two ranks.
local moe = require "moe"

return moe.experiment {
  name = "systems",
  case = function() return {
    model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 32, heads = 2, seq = 16,
      batch_per_device = 4, experts_per_device = 2, gate = "switch", capacity_factor = 1.25 },
    systems = { moe.system "raf" {}, moe.system "lancet" {} } } end,
  run = { { "cpu", ranks = 2, steps = 3, tokens = "reference", rehearse = 0 } },
  show = function(R) print(R:table { rows = "system", cols = "devices",
    cell = function(run) return run.digest end }) end,
}
