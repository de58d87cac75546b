-- Figure 10 and tables IV and V of Pro-Prophet: speed-ups of the step over plain expert parallelism
-- and over FasterMoE's shadowing on three kinds of clusters. Simulated, with every transfer on the
-- cluster's links; two constants are fitted (shared.lua). The paper's routing is not published:
-- loads are drawn with the skew of its figure 3 and change from step to step.
local moe = require "moe"
local shared = require "shared"

local STEPS = 4
local PROPHET = moe.system "prophet" {}

local ALL, SMALL = { "S", "M", "L", "DS", "DM" }, { "S", "M", "DS", "DM" }
local SETUPS = {
  { name = "figure 10, 16 GPUs", cluster = "hpwnv", nodes = 4, rows = 4, sizes = ALL },
  { name = "figure 10, 32 GPUs", cluster = "hpwnv", nodes = 8, rows = 4, sizes = ALL },
  { name = "table IV", cluster = "hpnv", nodes = 4, rows = 4, sizes = ALL, ids = { 26, 31 } },
  { name = "table V", cluster = "lpwnv", nodes = 2, rows = 2, sizes = SMALL, ids = { 36, 40 } },
}

-- Values of what the paper does not give: first all as assumed; then, one at a time, those that
-- change the outcome most, at an end of their band: the skew, and the achieved shares of the peak
-- rates of NICs and GEMMs.
local READINGS = { {}, { s = 0.9 }, { s = 1.3 }, { nic = 0.95 }, { gemm = 0.25 } }

-- Returns the milliseconds of a step, mean over the steps after the first.
local function step_ms(system, model, cluster)
  local plan = moe.plan { model = model, cluster = cluster, system = system }
  return shared.steps_ms(plan, STEPS):mean()
end

-- Returns { ms of a step under plain expert parallelism, fm = FasterMoE's speed-up over that, pp =
-- Pro-Prophet's }.
local function measure(setup, size, k, reading)
  local skew = moe.workload "zipf" { s = reading.s or 1.1, drift = 0.05, seed = 1 }
  local model = moe.model.proprophet { size = size, k = k, routing = skew,
    batch_per_device = setup.rows }
  local cluster = shared.cluster(setup.cluster, setup.nodes, reading)
  local plain = step_ms(shared.plain, model, cluster)
  return { ms = plain, fm = plain / step_ms(shared.shadowing, model, cluster),
    pp = plain / step_ms(PROPHET, model, cluster) }
end

local function measure_all(reading)
  local out = {}
  for i, setup in ipairs(SETUPS) do
    out[i] = {}
    for k = 1, 2 do
      out[i][k] = {}
      for j, size in ipairs(setup.sizes) do out[i][k][j] = measure(setup, size, k, reading) end
    end
  end
  return out
end

local function show(values)
  local rows = { { "", "k", "model", "plain, ms", "FasterMoE", "Pro-Prophet", "over FasterMoE" } }
  for i, setup in ipairs(SETUPS) do
    for k = 1, 2 do
      for j, size in ipairs(setup.sizes) do
        local m = values[1][i][k][j]
        rows[#rows + 1] = { setup.name, k, size, m.ms, m.fm, m.pp, m.pp / m.fm }
      end
    end
  end
  print "Speed-ups over plain expert parallelism with real rows only"
  print(moe.table(rows, { "", "", "", "%.1f", "%.2fx", "%.2fx", "%.2fx" }))
end

local function over_all(k, value, pick)
  return function(R)
    local all = moe.values {}
    for i = 1, 2 do
      for _, m in ipairs(R[i][k]) do all[#all + 1] = value(m) end
    end
    return all[pick](all)
  end
end

local function of_plain(m) return m.pp end
local function of_fm(m) return m.pp / m.fm end

local claims = {}
local claim = shared.claims_to(claims)
claim("023-min", over_all(1, of_plain, "min"))
claim("023-max", over_all(1, of_plain, "max"))
claim("024", over_all(1, of_fm, "mean"))
claim("024-max", over_all(1, of_fm, "max"))
claim("025-min", over_all(2, of_plain, "min"))
claim("025-max", over_all(2, of_plain, "max"))
claim("025-fm-min", over_all(2, of_fm, "min"))
claim("025-fm-max", over_all(2, of_fm, "max"))
for i, setup in ipairs(SETUPS) do
  for k, first in ipairs(setup.ids or {}) do
    for j = 1, #setup.sizes do
      local id = ("%03d"):format(first + j - 1)
      claim(id .. "-fm", function(R) return R[i][k][j].fm end)
      claim(id .. "-pp", function(R) return R[i][k][j].pp end)
    end
  end
end

moe.judge { name = "proprophet_speedups", title = "Figure 10, tables IV and V", claims = claims,
  readings = READINGS, measure = measure_all, show = show }
