-- How much of Lina's gain comes from less contention? Shown are the step and the slowdown of
-- all-to-alls for several sharing efficiencies (the share of a link's rate that is left while two
-- collectives use it; 1 means that nothing is lost). Simulated on 16 GPUs. The slowdown in Lina's
-- figure 3 (median 1.83, at most 4.14) is what the efficiency must explain; it is no input.
local moe = require "moe"

local SIZES = { "transformer_xl", "gpt2", "bert2gpt2" }
local EFFICIENCIES = { 1, 0.9, 0.8, 0.7, 0.6, 0.48, 0.4 }
local NAMES = { "lina_fixed", "lina_priority", "lina_partition", "lina_pipelining", "lina" }
local systems = { moe.system "lina_baseline" {} }
for i, name in ipairs(NAMES) do systems[i + 1] = moe.system(name) {} end

local function plan_of(size, efficiency)
  return moe.plan { model = moe.model.lina { size = size }, system = moe.system "lina_baseline" {},
    cluster = moe.cluster.lina { nodes = 4, sharing_efficiency = efficiency } }
end

-- Returns, for each of the backward's all-to-alls that overlaps an all-reduce, its transfer time
-- divided by that of the fastest all-to-all, as moe.values.
local function slowdowns(size, efficiency)
  local spans = plan_of(size, efficiency):spans()
  local reduces, times, alone = {}, moe.values {}, math.huge
  for _, s in ipairs(spans) do
    if s.kind == "all_reduce" then reduces[#reduces + 1] = s end
    if s.kind == "all_to_all" then alone = math.min(alone, s.end_ms - s.begin_ms) end
  end
  for _, s in ipairs(spans) do
    for _, r in ipairs(s.kind == "all_to_all" and reduces or {}) do
      if r.begin_ms < s.end_ms and s.begin_ms < r.end_ms then
        times[#times + 1] = (s.end_ms - s.begin_ms) / alone
        break
      end
    end
  end
  return times
end

moe.run(moe.experiment {
  name = "lina_gains", title = "gains over the sharing efficiency, 16 GPUs", band = "none",
  over = { size = SIZES, efficiency = EFFICIENCIES },
  case = function(p)
    return { model = moe.model.lina { size = p.size }, systems = systems,
      cluster = moe.cluster.lina { nodes = 4, sharing_efficiency = p.efficiency } }
  end,
  show = function(R)
    local rows = { { "model", "sharing efficiency", "baseline ms", "fixed", "priority",
      "+ partition", "+ pipelining", "+ packing" } }
    for key, group in R:by { "model", "efficiency" } do
      local row = { key[1], key[2],
        group:where { system = "lina_baseline" }.runs[1].iteration_ms }
      for i, name in ipairs(NAMES) do
        row[i + 3] = group:ratio { "iteration_ms", of = name, to = "lina_baseline" }[1]
      end
      rows[#rows + 1] = row
    end
    print(moe.table(rows, { "", "%.2f", "%.0f", "%.3fx", "%.3fx", "%.3fx", "%.3fx", "%.3fx" }))
  end,
})

local function measure(efficiency)
  local all, by_size = moe.values {}, {}
  for i, size in ipairs(SIZES) do
    local times = slowdowns(size, efficiency)
    for _, x in ipairs(times) do all[#all + 1] = x end
    by_size[i] = { size, efficiency, #times, times:quantile(0.5), times:max() }
  end
  return { median = all:quantile(0.5), most = all:max(), by_size = by_size }
end

local function show(values)
  local rows = { { "model", "sharing efficiency", "meet an all-reduce", "median slowdown",
    "at most" } }
  for _, value in ipairs(values) do
    for _, row in ipairs(value.by_size) do rows[#rows + 1] = row end
  end
  print "\nAll-to-alls of the baseline's step that meet an all-reduce"
  print(moe.table(rows, { "", "%.2f", "", "%.2fx", "%.2fx" }))
end

moe.judge { name = "lina_slowdown", title = "what an all-reduce does to all-to-alls",
  readings = { 0.48, 1 }, measure = measure, show = show, claims = {
    moe.claim { id = "lina-033", neutral = 1, within = 0.25,
      value = function(r) return r.median end },
    moe.claim { id = "lina-033-max", neutral = 1, value = function(r) return r.most end,
      fitted = "the sharing efficiency of 0.48 is 2 / 4.14" },
  } }
