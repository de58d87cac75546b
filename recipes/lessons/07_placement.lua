-- Lesson 7. What if few experts get most of the tokens? A placement says which devices hold which
-- expert. This one copies the heaviest expert to every device for a step, where the model of a
-- layer's time says that this is faster. Routing follows a law instead of a gate, so that all
-- systems see the same tokens.
-- Run it: build/release/moebench run recipes/lessons/07_placement.lua  (under a second)
-- Try next: the two heaviest; s = 0.5 or 2; p:replicate instead of p:shadow, with
-- extra_residents = 1.
local moe = require "moe"

local copy_heaviest = moe.policy.placement { name = "copy_heaviest", shadows = 1,
  place = function(ctx, load, p)
    p:clear_shadows()
    local copied, e = p:copy(), load:heaviest()[1]
    for d = 1, ctx.devices do
      if not copied:holds(e, d) then copied:shadow(e, d) end
    end
    return copied:time_ms() < p:time_ms() and copied or p
  end }

return moe.experiment {
  name = "placement",
  model = moe.model.gpt2_moe { layers = 4, hidden = 512, heads = 8, seq = 512,
    batch_per_device = 8, experts_per_device = 2, capacity = "none",   -- nothing is dropped
    rows_bound = 8,                             -- room at a device, in rows of its own tokens
    routing = moe.workload "zipf" { s = 1.2, drift = 0.02 } },
  cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf_rows" {}, moe.system "prophet_planner" {},
    moe.system "mine" { copy_heaviest {}, moe.pass.serial {} } },
  run = { { "simulate", steps = 12 } },
}
