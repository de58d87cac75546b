-- A schedule policy written in a recipe: during each all-to-all of the backward runs the longest
-- weight gradient that may run then.
local moe = require "moe"

local longest_first = moe.policy.schedule {
  name = "longest_first", apply = function(s, g, ctx)
    local used = {}
    for _, a2a in ipairs(g:ops { kind = "all_to_all", phase = "backward" }) do
      local free = g:ops { dw = true, where = function(op)
        return not used[op.name] and s:free(op, a2a)
      end }
      table.sort(free, function(a, b) return a.cost_ms > b.cost_ms end)
      local left = a2a.cost_ms
      for _, dw in ipairs(free) do
        if left <= 0 then break end
        s:under(dw, a2a)
        ctx:log(dw, "under " .. a2a.name)
        used[dw.name], left = true, left - dw.cost_ms
      end
    end
  end,
}

return moe.experiment {
  name = "custom_schedule",
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 128, heads = 4, seq = 64,
    batch_per_device = 8, experts_per_device = 2 },
  cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {}, moe.system "lancet" {}, moe.system "mine" { longest_first {} } },
  run = { "simulate", { "cpu", ranks = 2, steps = 5, link = { bytes_per_s = 1e8 } } },
}
