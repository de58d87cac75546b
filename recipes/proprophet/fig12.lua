-- Figure 12 of Pro-Prophet: 100 iterations of MoE-GPT-M, k = 1, on 16 GPUs, with experts'
-- popularity that changes from step to step: Pro-Prophet plans each step from the loads of the step
-- before. Simulated; two constants are fitted (shared.lua). Bands are over the speed of these
-- changes, which the paper shows but does not give as a number.
local moe = require "moe"
local shared = require "shared"

local STEPS = 100
local SYSTEMS = { { "FasterMoE", shared.shadowing }, { "Pro-Prophet", moe.system "prophet" {} } }

-- Returns, for each system, the mean, the spread, the least and the most of the times of its steps.
local function measure(drift)
  local of = {}
  for _, entry in ipairs(SYSTEMS) do
    local list = shared.steps_ms(moe.plan { cluster = moe.cluster.hpwnv { nodes = 4 },
      system = entry[2], model = moe.model.proprophet { size = "M", k = 1,
        routing = moe.workload "zipf" { s = 1.1, drift = drift, seed = 1 } } }, STEPS)
    local squares = moe.values {}
    for i, ms in ipairs(list) do squares[i] = ms ^ 2 end
    of[entry[1]] = { list:mean(), math.sqrt(math.max(0, squares:mean() - list:mean() ^ 2)),
      list:min(), list:max() }
  end
  return of
end

local DRIFTS = { 0.05, 0, 0.2 }

local function show(values)
  local rows = { { "drift", "system", "step, ms", "standard deviation", "least", "most" } }
  for i, drift in ipairs(DRIFTS) do
    for _, entry in ipairs(SYSTEMS) do
      rows[#rows + 1] = { drift, entry[1], unpack(values[i][entry[1]]) }
    end
  end
  print(moe.table(rows, { "", "", "%.1f", "%.1f", "%.1f", "%.1f" }))
end

local claims = {}
shared.claims_to(claims)("047", function(of) return of["FasterMoE"][1] / of["Pro-Prophet"][1] end)
moe.judge { name = "proprophet_fig12", title = "Figure 12", readings = DRIFTS, measure = measure,
  show = show, claims = claims }
