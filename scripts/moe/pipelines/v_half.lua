local v_memory = require "moe.pipelines.shared.v_memory"

return function(moe)
  return moe.policy.pipeline {
    name = "v_half",
    doc = "half the memory of 1f1b and a smaller bubble, in a V (V-Half, arXiv 2405.15362)",
    chunks = 2, fixed_chunks = true, placement = "v",
    turns = v_memory(function(n, r)
      local gap = n % 2 == 0 and 3 or 0
      return { 2 * r, 3 * n - 2 - r, 3 * n + gap - 1 + 2 * r, 6 * n + gap - 2 - r }
    end),
  }
end
