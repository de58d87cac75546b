-- Which mix of techniques is best for GPT2-L with experts on 64 A100 (Lancet's model and cluster),
-- and what does each technique of it contribute? A policy written here, which puts the longest
-- weight gradients under the backward's all-to-alls, competes with the built-in techniques.
local moe = require "moe"

local longest_first = moe.policy.schedule {
  name = "longest_first", apply = function(s, g)
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
        used[dw.name], left = true, left - dw.cost_ms
      end
    end
  end,
}

return moe.search {
  model = moe.model.gpt2_moe { name = "GPT2-L", layers = 24, hidden = 1024, heads = 16, seq = 512,
    batch_per_device = 16, experts_per_device = 2, gate = "switch" },
  cluster = moe.cluster.p4de { nodes = 8 },
  with = { longest_first {} },
  -- Longest-first takes the place of Lancet's schedule of weight gradients.
  allowed = function(has) return not (has.longest_first and has.dw_schedule) end,
  objective = { "iteration_ms", "peak_bytes" },
  budget_s = 30,
}
