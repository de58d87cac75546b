-- V-Half of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): two stages per rank
-- in a V, at about half the activations of 1f1b.
local v_memory = require "moe.pipelines.shared.v_memory"

return function(moe)
  return moe.policy.pipeline {
    name = "v_half",
    doc = "two stages per rank in a V, for half the memory of 1f1b and a smaller bubble (V-Half, "
      .. "arXiv 2405.15362)",
    chunks = 2, placement = "v",
    prepare = function(p)
      local ranks = p.ranks
      local gap = ranks % 2 == 0 and 3 or 0
      return v_memory.prepare(p, function(r)
        return 2 * r, 3 * ranks - 2 - r, 3 * ranks + gap - 1 + 2 * r, 6 * ranks + gap - 2 - r
      end)
    end,
    turns = v_memory.turns,
  }
end
