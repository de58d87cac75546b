-- DeepEP's normal kernels (dd758ca: intranode.cu, internode.cu, layout.cu; sizes of buffers:
-- config.hpp, with 288 tokens received per chunk over NVLink and 128 between nodes).
local SCRATCH = 128 * (8 + 4) + 128 * 4  -- of a token: room for 128 choices and 128 scales

return function(moe)
  return moe.policy.dispatcher {
    name = "deepep_v1",
    doc = "a token once per node by its rail, then once per rank by NVLink (DeepEP, normal)",
    sms = 20, even_sms = true, wire = "fp8",
    route = function(grid, cluster, o)
      local n, p, k = cluster.nodes, cluster.devices_per_node, grid.topk
      local there, back = grid:payload(o.wire), grid:payload(o.combine)
      local hops = { { dedup = "rank" } }
      if n > 1 then
        table.insert(hops, 1, { forward = "rail", dedup = "node" })
        there = grid:align(there + 8 + (o.weights and 8 * k or 0), 16)
        back = grid:align(back + 8 + (o.combine_weights and 4 * k or 0), 16)
      else
        there = there + 4 + (o.weights and 12 * k or 0)
        back = back + 4 + (o.combine_weights and 4 * k or 0)
      end
      local token, channels = 2 * grid.hidden + 8 + SCRATCH, o.sms / 2
      local nvlink = channels * p * ((2 * n + 3) * 4 + 288 * token)
      local nic = n > 1 and channels * n * ((2 * p + 2) * 8 + 128 * 2 * (token + 16)) or 0
      return { there = hops, reduce = n > 1 and "rank_node" or "rank", dispatch_bytes = there,
        combine_bytes = back, host_sync = true,
        buffer_bytes = grid:align(nvlink, 128) + grid:align(nic, 128) }
    end,
  }
end
