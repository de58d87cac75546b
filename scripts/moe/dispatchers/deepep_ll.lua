-- DeepEP's low-latency kernels (internode_ll.cu; sizes of buffers: config.hpp): no counts, space
-- for every token on every expert; the source weighs and adds.
return function(moe)
  return moe.policy.dispatcher {
    name = "deepep_ll",
    doc = "a row per choice, straight, without counts (DeepEP, low-latency kernels)",
    wire = "fp8", params = { nvlink_ll = true, max_tokens = 0 },
    route = function(grid, _, o)
      local most = o.max_tokens > 0 and o.max_tokens or grid.tokens
      local h, e = grid.hidden, grid.experts
      local out, home = 16 + math.max(2 * h, h + 4 * math.floor(h / 128)),
        2 * h + 4 * math.floor(h / 128)
      local send, receive = math.max(out, e * home), e * math.max(out, home)
      return {
        there = { { dedup = "choice" } }, nvlink = o.nvlink_ll,
        dispatch_bytes = grid:payload(o.wire) + 16, combine_bytes = grid:payload(o.combine),
        static_rows = e * most, max_tokens = o.max_tokens,
        buffer_bytes = grid:align(2 * (most * (send + receive) + grid:align(4 * e, 128)) + 1, 128),
      }
    end,
  }
end
