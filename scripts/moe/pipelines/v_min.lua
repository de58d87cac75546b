local v_memory = require "moe.pipelines.shared.v_memory"

return function(moe)
  return moe.policy.pipeline {
    name = "v_min",
    doc = "a third of the memory of 1f1b and two thirds of its bubble, in a V (V-Min, "
      .. "arXiv 2405.15362)",
    chunks = 2, fixed_chunks = true, placement = "v",
    turns = v_memory(function(n, r)
      local gap = n % 3 == 0 and 2 or 0
      return { r, 2 * n - 1 - r, 2 * n + gap + r, 4 * n + gap - 1 - r }
    end),
  }
end
