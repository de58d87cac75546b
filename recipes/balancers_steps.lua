-- Which method that balances the exact load of a layer gives the fastest step, and why? W0 to W7,
-- the workloads of the token-imbalance benchmark proposed for Megatron-LM, on three sizes of
-- cluster. Then: from how many tokens per rank on does it pay to send copies of experts (MoonEP,
-- issue 6)? The layers are as wide as those of DeepSeek-V3. Copies are sent in the step that uses
-- them: there are no micro-batches here under which they could hide. LPLB keeps its copies; here
-- they are sent too. eplb, flexmoe and laer lay out experts after a step, for those that follow;
-- experts that change their device are moved with their states. LAER itself keeps parameters
-- sharded over all devices (FSEP) and so moves nothing; that is not built here.
local moe = require "moe"

local NODES, SEEDS, STEPS = { 1, 2, 8 }, { 1, 2, 3 }, 4
local SYSTEMS = { "raf_rows", "ultraep", "echo", "moonep", "llep", "lplb", "eplb",
  "flexmoe", "laer", "prophet_planner" }
local WORKLOADS = { "W0_balanced", "W1_hot_expert_set", "W2_hot_rank", "W3_spread_hot_experts",
  "W4_source_ragged", "W5_zero_expert_rank", "W6_rotating_hotspot", "W7_burst" }
local TOKENS = { 256, 512, 1024, 2048, 4096, 8192, 16384 }  -- per rank
local PAYS = { "moonep", "ultraep" }
-- The ops that send experts or their gradients.
local SENDS = { copy_experts = true, return_gradients = true, sum_residents = true, migrate = true }

local function model(routing, tokens)
  local seq = math.min(tokens, 4096)
  return moe.model.decoder { layers = 2, hidden = 7168, heads = 64, kv_heads = 8, expert_ffn = 2048,
    experts = 256, k = 8, seq = seq, batch_per_device = tokens / seq, vocab = 32000,
    routing = routing }
end

local function systems(names)
  local list = {}
  for i, name in ipairs(names) do list[i] = moe.system(name) {} end
  return list
end

-- Returns a run's mean time of a step: in W7 one step of four has the burst.
local function mean_ms(run) return moe.values(run.samples_ms):mean() end

-- Returns the least, the middle and the largest of a list.
local function spread(list)
  local values = moe.values(list)
  return values:min(), values:quantile(0.5), values:max()
end

local function short(workload) return workload:match "^W%d" end

-- Returns times[nodes][workload][system] = step times over that of even load, one for each seed.
local function over_even(R)
  local times, even = {}, {}
  for run in R:each() do
    local p = run.point
    if p.workload == WORKLOADS[1] and run.system == "raf_rows" then
      even[p.nodes] = mean_ms(run)
    end
  end
  for run in R:each() do
    local p = run.point
    local by = times[p.nodes] or {}
    by[p.workload] = by[p.workload] or {}
    local list = by[p.workload][run.system] or {}
    list[#list + 1] = mean_ms(run) / even[p.nodes]
    times[p.nodes], by[p.workload][run.system] = by, list
  end
  return times
end

local function show_times(times, nodes)
  print(("\n%d H100, step time over that of even load: median and half the range over %d seeds")
    :format(8 * nodes, #SEEDS))
  local rows = { { "" } }
  for _, workload in ipairs(WORKLOADS) do table.insert(rows[1], short(workload)) end
  for _, name in ipairs(SYSTEMS) do
    local row = { name }
    for _, workload in ipairs(WORKLOADS) do
      local lo, middle, hi = spread(times[nodes][workload][name])
      row[#row + 1] = ("%.2f ±%.2f"):format(middle, (hi - lo) / 2)
    end
    rows[#rows + 1] = row
  end
  print(moe.table(rows))
end

-- Returns the system with the smallest median time.
local function fastest(by_system)
  local best, least
  for _, name in ipairs(SYSTEMS) do
    local _, middle = spread(by_system[name])
    if not best or middle < least then best, least = name, middle end
  end
  return best
end

local function plan_of(workload, nodes, system)
  return moe.plan { model = model(moe.workload(workload) { seed = SEEDS[1] }, 8192),
    cluster = moe.cluster.h100 { nodes = nodes }, system = system }
end

-- Returns what the last step of the system waits for: exposed milliseconds by cause.
local function causes(workload, nodes, name)
  local texts, why = {}, plan_of(workload, nodes, moe.system(name) {}):explain { step = STEPS }
  for _, cause in ipairs(why.causes) do
    if cause.ms >= 0.05 * why.exposed_ms then
      texts[#texts + 1] = ("%s %.1f"):format(cause.cause, cause.ms)
    end
  end
  return ("%.1f ms exposed: %s"):format(why.exposed_ms, table.concat(texts, ", "))
end

local function show_why(times)
  local nodes = NODES[#NODES]
  print(("\nThe fastest on %d H100, and what its communication and that of raf_rows waits for")
    :format(8 * nodes))
  local rows = { { "", "system", "mean over ranks, step " .. STEPS } }
  for _, workload in ipairs(WORKLOADS) do
    local best = fastest(times[nodes][workload])
    rows[#rows + 1] = { short(workload), best, causes(workload, nodes, best) }
    if best ~= "raf_rows" then
      rows[#rows + 1] = { "", "raf_rows", causes(workload, nodes, "raf_rows") }
    end
  end
  print(moe.table(rows))
end

-- Returns what a step of the system costs beside its rows: { plans us, MB sent, ms of transfers, ms
-- of these while compute runs, ms of the step }, means over ranks.
local function costs(workload, nodes, system)
  local plan = plan_of(workload, nodes, system)
  local why, planned, sent, ms, hidden = plan:explain { step = STEPS }, 0, 0, 0, 0
  for _, span in ipairs(plan:spans { step = STEPS }) do
    if span.kind == "place" then planned = planned + 1000 * (span.end_ms - span.begin_ms) end
  end
  for _, share in ipairs(why.collectives) do
    if SENDS[share.kind] then
      sent, ms, hidden = sent + share.bytes / 1e6, ms + share.transfer_ms, hidden + share.hidden_ms
    end
  end
  return { planned, sent, ms, hidden, why.iteration_ms }
end

-- Shows it for each method, its ops in one order, and where compute may run during transfers.
local function show_costs()
  local nodes, workload = NODES[#NODES], WORKLOADS[2]
  print(("\nPlans, and transfers of experts and their gradients, in step %d of %s on %d H100; at "
    .. "the right without the pass serial, so that compute runs beside transfers"):format(STEPS,
    short(workload), 8 * nodes))
  local rows = { { "", "plans us", "sent MB", "transfer ms", "step ms", "", "transfer ms",
    "hidden ms", "step ms" } }
  for _, name in ipairs(SYSTEMS) do
    if name ~= "raf_rows" and name ~= "prophet_planner" then
      local one = costs(workload, nodes, moe.system(name) {})
      local two = costs(workload, nodes, moe.system("beside_" .. name) { moe.pass[name] {} })
      rows[#rows + 1] = { name, one[1], one[2], one[3], one[5], "", two[3], two[4], two[5] }
    end
  end
  print(moe.table(rows, { "", "%.0f", "%.0f", "%.1f", "%.1f", "", "%.1f", "%.1f", "%.1f" }))
end

moe.run(moe.experiment { name = "balancers_steps",
  over = { nodes = NODES, workload = WORKLOADS, seed = SEEDS },
  case = function(p)
    return { model = model(moe.workload(p.workload) { seed = p.seed }, 8192),
      cluster = moe.cluster.h100 { nodes = p.nodes }, systems = systems(SYSTEMS) }
  end,
  run = { { "simulate", steps = STEPS } },
  show = function(R)
    local times = over_even(R)
    for _, nodes in ipairs(NODES) do show_times(times, nodes) end
    show_why(times)
    show_costs()
  end })

moe.run(moe.experiment { name = "break_even",
  over = { tokens = TOKENS, seed = SEEDS },
  case = function(p)
    return { model = model(moe.workload "zipf" { max_over_mean = 2, seed = p.seed }, p.tokens),
      cluster = moe.cluster.h100 { nodes = NODES[#NODES] },
      systems = systems { "raf_rows", unpack(PAYS) } }
  end,
  run = { { "simulate", steps = STEPS } },
  show = function(R)
    local rows = { { "tokens per rank" } }
    for _, name in ipairs(PAYS) do
      rows[1][#rows[1] + 1] = "raf_rows / " .. name
    end
    for _, tokens in ipairs(TOKENS) do
      local row = { tokens }
      for _, name in ipairs(PAYS) do
        local ratios = {}
        for _, runs in ipairs(R:where { tokens = tokens }:groups(function(run)
          return { run.point.seed }
        end)) do
          local ms = {}
          for _, run in ipairs(runs) do ms[run.system] = mean_ms(run) end
          ratios[#ratios + 1] = ms.raf_rows / ms[name]
        end
        local lo, middle, hi = spread(ratios)
        row[#row + 1] = ("%.2f [%.2f, %.2f]"):format(middle, lo, hi)
      end
      rows[#rows + 1] = row
    end
    print(("\nThe busiest of %d ranks gets twice the mean: how much faster copies make a step, "
      .. "median and range over %d seeds"):format(8 * NODES[#NODES], #SEEDS))
    print(moe.table(rows))
  end })
