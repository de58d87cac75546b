-- A placement policy written in a recipe: the experts with most tokens are copied to the devices
-- that send them most, as long as the modelled time of the layer decreases. The routing is skewed:
-- few experts get many of the tokens.
local moe = require "moe"

local near = moe.policy.placement { name = "near", shadows = 4, params = { experts = 4 },
  place = function(ctx, load, p, o)
    local best, heaviest = p:clear_shadows(), load:heaviest()
    for i = 1, o.experts do
      local e, more = heaviest[i], best:copy()
      for d = 1, ctx.devices do
        local fair = load:of_expert(e) / ctx.devices
        if load(e, d) >= fair and not more:holds(e, d) then more:shadow(e, d) end
      end
      if more:time_ms() < best:time_ms() then best = more end
    end
    return best
  end }

return moe.experiment { name = "custom_placement",
  model = moe.model.gpt2_moe { layers = 4, hidden = 512, heads = 8, seq = 512,
    batch_per_device = 8, experts_per_device = 2, capacity = "none", rows_bound = 8,
    routing = moe.workload "zipf" { s = 1.2, drift = 0.02 } },
  cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf_rows" {}, moe.system "prophet_planner" {},
    moe.system "near" { near {}, moe.pass.serial {} } },
  run = { { "simulate", steps = 12 }, { "cpu", ranks = 2, steps = 6,
    model = { vocab = 256, layers = 2, hidden = 128, heads = 4, seq = 64 } } } }
