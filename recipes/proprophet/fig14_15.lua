-- Figures 14 and 15 of Pro-Prophet: what its planner, its scheduler and their combination add, and
-- the planner compared with copies of the 2 or 3 experts with most inputs on all devices. MoE-GPT-M
-- on 16 GPUs, simulated; two constants are fitted (shared.lua). Bands are over the skew of the
-- loads, which the paper does not publish.
local moe = require "moe"
local shared = require "shared"

local STEPS = 4

local function copies(name, k)
  return moe.system(name) { moe.pass.top_k { k = k, shadows = k }, moe.pass.blocking_a2a {},
    all_reduce = shared.DDP }
end

local SYSTEMS = {
  { "plain", shared.plain },
  { "planner", moe.system "prophet_blocking" {} },
  { "scheduler", moe.system "prophet_scheduler" {} },
  { "both, whole copies", moe.system "prophet_whole" {} },
  { "full", moe.system "prophet" {} },
  { "top2", copies("copies_of_2", 2) },
  { "top3", copies("copies_of_3", 3) },
}

-- Returns, for each system, the milliseconds of a step, mean over the steps after the first.
local function steps_ms(k, s)
  local model = moe.model.proprophet { size = "M", k = k,
    routing = moe.workload "zipf" { s = s, drift = 0.05, seed = 1 } }
  local cluster, ms = moe.cluster.hpwnv { nodes = 4 }, {}
  for _, entry in ipairs(SYSTEMS) do
    local plan = moe.plan { model = model, cluster = cluster, system = entry[2] }
    ms[entry[1]] = shared.steps_ms(plan, STEPS):mean()
  end
  return ms
end

local SKEWS = { 1.1, 0.9, 1.3 }

local function show(values)
  local rows = { { "zipf", "k", "system", "step, ms", "over plain" } }
  for i, s in ipairs(SKEWS) do
    for k, ms in ipairs(values[i]) do
      for _, entry in ipairs(SYSTEMS) do
        rows[#rows + 1] = { s, k, entry[1], ms[entry[1]], ms.plain / ms[entry[1]] }
      end
    end
  end
  print(moe.table(rows, { "", "", "", "%.1f", "%.2fx" }))
end

local claims = {}
local add = shared.claims_to(claims)
local function claim(id, k, from, to)
  add(id, function(R) return R[k][from] / R[k][to] end)
end
for k = 1, 2 do
  claim("052-" .. k, k, "plain", "planner")
  claim("053-" .. k, k, "planner", "scheduler")
  claim("054-" .. k, k, "scheduler", "full")
end
claim("048-min", 1, "top2", "planner")
claim("049-min", 1, "top3", "planner")
claim("050-min", 2, "top2", "planner")
claim("050-max", 2, "top3", "planner")

moe.judge { name = "proprophet_fig14_15", title = "Figures 14 and 15", claims = claims,
  readings = SKEWS, show = show,
  measure = function(s) return { steps_ms(1, s), steps_ms(2, s) } end }
