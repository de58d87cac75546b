-- Which dispatcher when? Dispatch and combine of one MoE layer of DeepSeek-V3 (7168 numbers, 256
-- experts, 8 choices per token, at most 4 nodes) on H100, by the laws that were fitted to measured
-- rows, and for alltoallv by NCCL's times, with their bands: over tokens per GPU and nodes, and
-- over the SMs that the kernels take (low latency and alltoallv: their usual ones). A cell has the
-- fastest and how much longer the next one takes; where their bands overlap it has all of these,
-- as a tie. Then steps with and without a limit of nodes per token, without and with a dispatcher
-- that sends a token once per node. `--set gpu=h200` and others: the GPUs of moe.dispatch_time;
-- `--set nodes=2`: the steps of 2 nodes alone.
local moe = require "moe"

local set = moe.options { gpu = "h100", nodes = 0 }
local TOKENS, NODES, SMS = { 128, 512, 2048, 8192 }, { 1, 2, 4, 8 }, { 8, 12, 16, 20, 24, 32 }
local DISPATCHERS = { "alltoallv", "deepep_ll", "deepep_v1", "deepep_v2", "hybridep" }
local HIDDEN, TOPK = 7168, 8

-- Returns the time of both ways and the ends of its band; nil where the dispatcher has none.
local function both(name, tokens, nodes, sms)
  local sum = { us = 0, lo = 0, hi = 0 }
  for way, dtype in pairs { dispatch = "fp8", combine = "bf16" } do
    local ok, u
    if name == "alltoallv" then  -- rows in bf16, on the way there with a weight
      local row = 2 * HIDDEN + (way == "dispatch" and 4 or 0)
      local t = moe.op_time { cluster = moe.cluster[set.gpu] { nodes = nodes }, op = "all_to_all",
        ranks = 8 * nodes, bytes = tokens * TOPK * row }
      ok, u = true, { us = 1e3 * t.ms, lo = 1e3 * t.lo, hi = 1e3 * t.hi }
    else
      ok, u = pcall(moe.dispatch_time, { dispatcher = name, gpu = set.gpu, way = way,
        dtype = dtype, ranks = 8 * nodes, ranks_per_node = 8, experts = 256, topk = TOPK,
        hidden = HIDDEN, tokens = tokens, sms = sms, max_nodes = nodes > 4 and 4 or nil })
    end
    if not ok then return nil end
    for key in pairs(sum) do sum[key] = sum[key] + u[key] end
  end
  return sum
end

-- Returns the text of a cell.
local function fastest(tokens, nodes, sms)
  local candidates, names = {}, {}
  for _, name in ipairs(DISPATCHERS) do
    local time = both(name, tokens, nodes, sms)
    candidates[#candidates + 1] = time and { name, time }
  end
  table.sort(candidates, function(a, b) return a[2].us < b[2].us end)
  local best, second = candidates[1], candidates[2]
  for _, c in ipairs(candidates) do
    if c[2].lo <= best[2].hi then names[#names + 1] = c[1] end
  end
  if #names > 1 then return ("%.0f us: %s"):format(best[2].us, table.concat(names, " = ")) end
  return ("%.0f us: %s, %s %.2fx"):format(best[2].us, best[1], second[1],
    second[2].us / best[2].us)
end

local function map(head, columns, cell)
  local rows = { { head } }
  for c, column in ipairs(columns) do rows[1][c + 1] = column end
  for r, tokens in ipairs(TOKENS) do
    rows[r + 1] = { tokens }
    for c, column in ipairs(columns) do rows[r + 1][c + 1] = cell(tokens, column) end
  end
  print(moe.table(rows) .. "\n")
end

print(("Dispatch and combine on %s: the fastest dispatcher with its usual SMs; = : a tie")
  :format(set.gpu))
map("tokens per GPU \\ nodes of 8", NODES, fastest)
print "The fastest on two nodes, with these SMs"
map("tokens per GPU \\ SMs", SMS, function(tokens, sms) return fastest(tokens, 2, sms) end)

-- A step of four layers with a limit of 4 of 8 groups of experts, and without one.
local rows = { { "nodes", "dispatcher", "no limit ms", "4 of 8 groups ms", "gain",
  "NIC MB of a node's dispatch, no limit", "4 of 8" } }
for _, nodes in ipairs { 2, 8, 32 } do
  for _, dispatcher in ipairs { false, moe.dispatcher.deepep_v1 {} } do
    local steps, bytes = {}, {}
    for i, groups in ipairs { { groups = 1, top_groups = 1 }, { groups = 8, top_groups = 4 } } do
      if set.nodes == 0 or set.nodes == nodes then
        local passes = { moe.pass.irregular_a2a {}, moe.pass.used_rows {}, moe.pass.serial {} }
        passes[4] = dispatcher or nil
        local plan = moe.plan { cluster = moe.cluster.h100 { nodes = nodes },
          model = moe.model.deepseek_v3 { layers = 4, seq = 4096, batch_per_device = 1,
            router = groups },
          system = moe.system "plain" (passes) }
        steps[i] = plan.sim.iteration_ms
        local d = plan:info().dispatcher
        bytes[i] = d and d.dispatch.nic_bytes / 1e6 or "-"
      end
    end
    if #steps == 2 then
      rows[#rows + 1] = { nodes, dispatcher and dispatcher.name or "none", steps[1], steps[2],
        steps[1] / steps[2], bytes[1], bytes[2] }
    end
  end
end
print "What a limit of nodes per token gains in a step (DeepSeek-V3, four layers)"
print(moe.table(rows, { "", "", "%.1f", "%.1f", "%.3f", "%.1f", "%.1f" }))
