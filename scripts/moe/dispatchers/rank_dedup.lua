-- A token once per rank; DeepSpeed's pull request 8213 has this effect in its exchange.
return function(moe)
  return moe.policy.dispatcher {
    name = "rank_dedup",
    doc = "a token once to each rank that holds one of its experts, straight",
    route = function(grid, _, o)
      return {
        there = { { dedup = "rank" } }, reduce = "rank",
        dispatch_bytes = grid:payload(o.wire) + (o.weights and 8 * grid.topk or 0),
        combine_bytes = grid:payload(o.combine) + (o.combine_weights and 4 * grid.topk or 0),
        host_sync = true, times_of = "alltoallv",
      }
    end,
  }
end
