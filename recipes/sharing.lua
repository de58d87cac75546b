-- How much depends on the rule by which two collectives share links? 64 ranks on 8 nodes run an
-- all-to-all of 1 MiB per pair and a ring all-reduce of 100 MiB at the same time. Shown is when
-- each ends under each rule, also on links that lose some of their rate while they are shared.
local moe = require "moe"

local cluster = moe.cluster.custom { nodes = 8, devices_per_node = 8,
  intra = { bytes_per_s = 300e9, latency_us = 1 }, nics_per_node = 1,
  nic = { bytes_per_s = 50e9, latency_us = 2.5 } }
local a2a = { kind = "all_to_all", bytes_per_pair = 2 ^ 20 }
local urgent = { kind = "all_to_all", bytes_per_pair = 2 ^ 20, priority = 1 }
local reduce = { kind = "all_reduce", bytes = 100 * 2 ^ 20, algorithm = "ring", rings = 1 }
local RULES = { "per_flow", "per_channel", "per_collective", "strict_priority" }

local function ends(ops, t)
  local times = moe.collectives { cluster = cluster, ops = ops, share = t.share,
    efficiency = t.efficiency }
  return times[1].end_ms, times[#times].end_ms
end

local rows = { { "rule", "efficiency", "all-to-all ms", "slower", "all-reduce ms", "slower" } }
local a2a_alone, reduce_alone = (ends({ a2a }, {})), (ends({ reduce }, {}))
rows[2] = { "each alone", "", a2a_alone, "", reduce_alone, "" }
for _, rule in ipairs(RULES) do
  for _, efficiency in ipairs { 1, 0.7, 0.48 } do
    local first = rule == "strict_priority" and urgent or a2a
    local x, y = ends({ first, reduce }, { share = rule, efficiency = efficiency })
    rows[#rows + 1] = { rule, efficiency, x, x / a2a_alone, y, y / reduce_alone }
  end
end
print(moe.table(rows, { "", "%g", "%.3f", "%.2fx", "%.3f", "%.2fx" }))
