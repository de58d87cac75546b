-- The two-level all-to-all of Tutel (arXiv 2206.03382): a row crosses NVLink to the rail of its
-- destination and then that rail, or its own rail first.
return function(moe)
  return moe.policy.dispatcher {
    name = "two_level",
    doc = "a row per choice, by NVLink and then by one rail or the reverse (Tutel's 2DH)",
    params = { order = "intra_first", capacity = 0 },
    choices = { order = { "intra_first", "inter_first" } },
    route = function(grid, _, o)
      local first = o.order == "intra_first" and "local" or "rail"
      return {
        there = { { forward = first }, { forward = "none" } }, capacity = o.capacity,
        dispatch_bytes = grid:payload(o.wire) + (o.weights and 4 or 0),
        combine_bytes = grid:payload(o.combine) + (o.combine_weights and 4 or 0),
        control_bytes = 8 * grid.experts, host_sync = true, times_of = "alltoallv",
      }
    end,
  }
end
