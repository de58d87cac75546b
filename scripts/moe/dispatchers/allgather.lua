-- Megatron-LM's all-gather dispatcher (token_dispatcher.py, d98e8a6): all rows with the map of
-- experts and their probabilities go to all ranks; the sums of ranks return by a reduce-scatter.
local BYTES = { bf16 = 2, fp32 = 4 }

return function(moe)
  return moe.policy.dispatcher {
    name = "allgather",
    doc = "all rows to all ranks, and back a reduce-scatter (NCCL)",
    params = { algorithm = "direct", prob_dtype = "fp32" },
    choices = { algorithm = { "direct", "ring", "two_level" }, prob_dtype = { "bf16", "fp32" } },
    route = function(grid, _, o)
      local hops, back = { { dedup = "rank" } }, {}
      if o.algorithm == "two_level" then
        table.insert(hops, 1, { forward = "rail", dedup = "node" })
      elseif o.algorithm == "ring" then
        for i = 1, math.max(1, grid.ranks - 1) do
          hops[i] = { forward = "ring", dedup = "node" }
          back[i] = hops[i]
        end
      end
      local probs = o.weights and BYTES[o.prob_dtype] or 0
      return {
        there = hops, back = back, to_all = true,
        reduce = o.algorithm == "direct" and "rank" or "rank_node",
        dispatch_bytes = grid:payload(o.wire) + grid.experts * (1 + probs),
        combine_bytes = grid:payload(o.combine), static_rows = grid.tokens * grid.ranks,
      }
    end,
  }
end
