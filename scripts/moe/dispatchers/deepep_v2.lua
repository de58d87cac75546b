-- DeepEP V2 (elastic/buffer.hpp, common/layout.cuh), in hybrid mode and in direct mode; buffers are
-- of whole 2 MiB, and between nodes for 1,280 tokens more: one for each of its channels.
local function define(moe, name, hybrid, doc)
  return moe.policy.dispatcher {
    name = name, doc = doc, sms = 24, wire = "fp8", params = { multiple_reduction = true },
    route = function(grid, cluster, o)
      local n, p, k = cluster.nodes, cluster.devices_per_node, grid.topk
      local r, t, once = grid.ranks, grid.tokens, o.multiple_reduction
      local size, hops = ({ fp8 = 1, bf16 = 2, fp32 = 4 })[o.wire], { { dedup = "rank" } }
      local function row(scale)
        return grid:align(grid.hidden * size, 32) + grid:align(12 * k + 4, 32)
          + (size == 1 and grid:align(4 * math.ceil(grid.hidden / scale), 32) or 0)
      end
      local back = grid:align(grid:payload(o.combine), 32) + grid:align(8 * k, 32)
      local function of(ranks) return once and math.min(ranks, k) or k end
      local out, home = r * t + (n > 1 and t or 0), of(r) * t + (n > 1 and r * t * of(1) or 0)
      if hybrid and n > 1 then
        table.insert(hops, 1, { forward = "rail", dedup = "node" })
        out, home = r * t + t + n * (t + 1280), of(p) * n * t + of(n) * t + of(1) * n * (t + 1280)
      end
      return { there = hops, reduce = #hops > 1 and once and "rank_node" or "rank",
        host_sync = true, combine_bytes = back, dispatch_bytes = row(128), times_of = "deepep_v2",
        buffer_bytes = grid:align(math.max(out * row(32), home * back), 2 ^ 21) }
    end,
  }
end
return function(moe)
  return define(moe, "deepep_v2", true, "as deepep_v1, in one kernel (DeepEP V2, hybrid mode)"),
    define(moe, "deepep_v2_direct", false, "a token once to each rank, straight (DeepEP V2)")
end
