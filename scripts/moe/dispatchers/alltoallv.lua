-- Megatron-LM's all-to-all dispatcher (token_dispatcher.py, d98e8a6): counts by an all-gather, rows
-- by NCCL from each rank to each other one, weights in an exchange of their own.
return function(moe)
  return moe.policy.dispatcher {
    name = "alltoallv",
    doc = "a row per choice, straight to its rank (NCCL's all-to-all)",
    params = { capacity = 0 },
    route = function(grid, _, o)
      return {
        there = { { dedup = "choice" } }, capacity = o.capacity,
        dispatch_bytes = grid:payload(o.wire) + (o.weights and 4 or 0),
        combine_bytes = grid:payload(o.combine) + (o.combine_weights and 4 or 0),
        control_bytes = 8 * grid.experts, host_sync = true,
      }
    end,
  }
end
