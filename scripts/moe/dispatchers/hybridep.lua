-- HybridEP (DeepEP's branch hybrid-ep, Hybrid-EP_Implementation.md): the map of all choices goes to
-- all ranks before; rows carry the probabilities of the experts of one node.
return function(moe)
  return moe.policy.dispatcher {
    name = "hybridep",
    doc = "a token once per node by its rail, then once per rank by NVLink (HybridEP)",
    sms = 16, wire = "fp8",
    route = function(grid, cluster, o)
      local n, probs = cluster.nodes, 4 * grid.experts / cluster.nodes
      local width = grid:payload(o.wire)
      local scales = o.wire == "fp8" and grid.hidden / 32 or 0
      local hops = { { dedup = "rank" } }
      if n > 1 then table.insert(hops, 1, { forward = "rail", dedup = "node" }) end
      return {
        there = hops, reduce = n > 1 and "rank_node" or "rank",
        dispatch_bytes = width + (o.weights and probs or 0),
        combine_bytes = grid:payload(o.combine) + (o.combine_weights and probs or 0),
        control_bytes = grid.experts * grid.tokens,
        buffer_bytes = grid.tokens * (grid.ranks * (width + probs)
          + (n - 1) * (width - scales + probs)),
      }
    end,
  }
end
