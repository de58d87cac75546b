-- V-Min of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): two stages per rank
-- in a V, at about a third of the activations of 1f1b.
local v_memory = require "moe.pipelines.shared.v_memory"

return function(moe)
  return moe.policy.pipeline {
    name = "v_min",
    doc = "two stages per rank in a V, for a third of the memory of 1f1b and two thirds of its "
      .. "bubble (V-Min, arXiv 2405.15362)",
    chunks = 2, placement = "v",
    prepare = function(p)
      local ranks = p.ranks
      local gap = ranks % 3 == 0 and 2 or 0
      return v_memory.prepare(p, function(r)
        return r, 2 * ranks - 1 - r, 2 * ranks + gap + r, 4 * ranks + gap - 1 - r
      end)
    end,
    turns = v_memory.turns,
  }
end
