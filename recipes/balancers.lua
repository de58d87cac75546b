-- Which method balances the exact load of a layer best, on bare counts? First the published setting
-- of UltraEP (arXiv 2606.04101): how uneven the devices are before and after, and with how many
-- replicas. Then small layers of which the optimum is known: how far each method stays behind it.
local moe = require "moe"

local P = { devices = 64, experts = 256, tokens = 8192, k = 8, residents = 4, shadows = 2,
  seeds = 20, small = 1000 }
-- What UltraEP publishes for these sizes: replicas at which the largest over the mean load is 1.01.
local PUBLISHED = { { ratio = 1.51, replicas = 38 }, { ratio = 2.01, replicas = 46 },
  { ratio = 3.03, replicas = 51 } }
local METHODS = { "ultraep", "echo", "moonep", "llep", "lplb", "eplb", "flexmoe", "laer" }
local LAYOUT = { eplb = true, flexmoe = true, laer = true }  -- lay out all slots

-- Without these LLEP leaves small layers, and those that are nearly even, as they are; its authors'
-- own example has the same factor.
local OPTIONS = { llep = { factor = 1, min_tokens = 1, ratio = 1 }, eplb = { keep = 0 },
  ultraep = { slack = 0 } }

local function at(values, part)
  table.sort(values)
  return values[math.floor(part * (#values - 1) + 0.5) + 1]
end

local function uneven(list)
  local computed = moe.values(list)
  return computed:max() / computed:mean()
end

-- Returns moe.loads' counts as routed[expert][device].
local function turned(loads)
  local routed = {}
  for e = 1, #loads[1] do
    routed[e] = {}
    for d, row in ipairs(loads) do routed[e][d] = row[e] end
  end
  return routed
end

local function large(ratio, seed)
  return turned(moe.loads { ranks = P.devices, tokens = P.tokens, experts = P.experts, k = P.k,
    routing = moe.workload "zipf" { max_over_mean = ratio, seed = seed } })
end

local function show_large()
  print(("%d experts, top-%d, %d devices with %d own and %d spare slots, %d tokens each; largest "
    .. "over mean load and replicas, medians over %d seeds"):format(P.experts, P.k, P.devices,
    P.residents, P.shadows, P.tokens, P.seeds))
  local rows = { { "", "before", "", "after", "replicas" } }
  for _, row in ipairs(PUBLISHED) do
    local before, after, replicas = {}, {}, {}
    for _, name in ipairs(METHODS) do after[name], replicas[name] = {}, {} end
    for seed = 1, P.seeds do
      local routed = large(row.ratio, seed)
      for _, name in ipairs(METHODS) do
        local placed = moe.prophet.place { policy = name, routed = routed, residents = P.residents,
          shadows = P.shadows }
        before[seed] = uneven(placed.computed_without)
        after[name][seed], replicas[name][seed] = uneven(placed.computed), placed.replicas
      end
    end
    rows[#rows + 1] = {}
    rows[#rows + 1] = { "UltraEP as published", row.ratio, "", "1.01", row.replicas }
    for _, name in ipairs(METHODS) do
      rows[#rows + 1] = { name, at(before, 0.5), "", at(after[name], 0.5), at(replicas[name], 0.5) }
    end
  end
  print(moe.table(rows, { "", "%.2f", "", "%.3f" }))
end

-- Loads of 3 devices and 6 experts, of which few are heavy.
local function small(seed)
  return turned(moe.loads { ranks = 3, tokens = 200, experts = 6, k = 1,
    routing = moe.workload "log_normal" { sigma = 1.5, seed = seed } })
end

local function show_small()
  print(("\n3 devices, 6 experts, 2 own and 1 spare slot, %d loads: how much more than the optimum "
    .. "the heaviest device computes"):format(P.small))
  local regret, best, optima = { none = {} }, { none = 0 }, {}
  for _, name in ipairs(METHODS) do regret[name], best[name] = {}, 0 end
  for seed = 1, P.small do
    local routed = small(seed)
    for _, layout in ipairs { true, false } do
      optima[layout] = moe.prophet.optimum { routed = routed, residents = 2, shadows = 1,
        layout = layout }
    end
    local function note(name, computed, optimum)
      local largest = moe.values(computed):max()
      regret[name][seed] = 100 * (largest / optimum - 1)
      best[name] = best[name] + (largest == optimum and 1 or 0)
    end
    for _, name in ipairs(METHODS) do
      local placed = moe.prophet.place { policy = name, routed = routed, residents = 2,
        shadows = 1, options = OPTIONS[name] or {} }
      note(name, placed.computed, optima[LAYOUT[name] or false])
      if name == "echo" then note("none", placed.computed_without, optima[false]) end
    end
  end
  local rows = { { "", "optimum of", "median %", "90 %", "worst %", "optimal" } }
  for i = 0, #METHODS do
    local name = METHODS[i] or "none"
    rows[#rows + 1] = { name, LAYOUT[name] and "all layouts" or "copies", at(regret[name], 0.5),
      at(regret[name], 0.9), at(regret[name], 1), ("%d of %d"):format(best[name], P.small) }
  end
  print(moe.table(rows, { "", "", "%.1f", "%.1f", "%.1f" }))
end

show_large()
show_small()
