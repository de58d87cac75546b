-- Lanes that choose their next transfer while the step runs: Lina's, and a policy's.
local moe = require "moe"

local last_first = moe.policy.schedule {
  name = "last_first", apply = function(s)
    s:discipline("comm", { pick = function(ready) return ready[#ready] end })
  end,
}

return moe.experiment {
  name = "lina",
  case = function() return {
    model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 32, heads = 2, seq = 16,
      batch_per_device = 4, experts_per_device = 2, gate = "switch", capacity_factor = 1.25 },
    systems = { moe.system "lina_priority" {}, moe.system "lina_pipelining" {},
      moe.system "last_first" { last_first {} } } } end,
  run = { { "cpu", ranks = 2, steps = 3, tokens = "reference", rehearse = 0 } },
  show = function(R) print(R:table { rows = "system", cols = "devices",
    cell = function(run) return run.digest end }) end,
}
