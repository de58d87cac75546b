-- The speed-ups of Pro-Prophet's table IV and figure 14 by its performance model alone (equations 1
-- to 8): one layer with the other compute of its block; nothing is simulated. The paper prints no
-- rates. Set F of rates was chosen with the paper's speed-ups known, so what is near them here was
-- fitted and not predicted. For comparison: A and B, constants of the authors' code; and D, with
-- one rate for all-to-alls and copies. FasterMoE searches with the same rates.
local moe = require "moe"

local DEVICES, TOKENS, SEQ = 16, 1024, 256
local SIZES = { "S", "M", "L", "DS", "DM" }
-- Model widths; the inner width of an expert is twice as large.
local WIDTH = { S = 512, M = 1024, L = 2048, DS = 512, DM = 1024 }

-- Sets of rates: Gb/s that a device receives in all-to-alls, and while experts are copied; TFLOP/s;
-- alpha of the paper's equation 7.
local SETS = {
  F = { a2a = 20, copy = 50, tflops = 20, alpha = 1 },
  A = { a2a = 100, copy = 15, tflops = 8.925, alpha = 3 },  -- the code's rate above 1 MiB
  B = { a2a = 15, copy = 15, tflops = 8.925, alpha = 3 },
  D = { a2a = 20, copy = 20, tflops = 20, alpha = 1 },
}
-- The first reading, with the skew of figure 3, is compared with the paper; then other skews.
local READINGS = { { set = "F" }, { set = "F", s = 0.9 }, { set = "F", s = 1.3 } }

-- Returns the fields for moe.prophet's functions, for one layer.
local function layer_of(size, k, reading)
  local set, width = SETS[reading.set], WIDTH[size]
  local flops = set.tflops * 1e12
  local loads = moe.loads { routing = moe.workload "zipf" { s = reading.s or 1.1, seed = 1 },
    ranks = DEVICES, tokens = TOKENS, experts = DEVICES, k = k }
  local routed = {}
  for expert = 1, DEVICES do
    routed[expert] = {}
    for device = 1, DEVICES do routed[expert][device] = loads[device][expert] end
  end
  -- Time of a block's attention in the forward, as the authors' code counts it; backward: twice.
  local fnec_s = 4 * TOKENS * (SEQ * width + width ^ 2) / flops
  return { routed = routed, input_bytes = 4 * width, expert_bytes = 4 * 2 * width * 2 * width,
    bytes_per_s = set.a2a * 1e9 / 8, copy_bytes_per_s = set.copy * 1e9 / 8,
    inputs_per_s = flops / (4 * width * 2 * width), fnec_s = fnec_s, bnec_s = 2 * fnec_s }
end

-- Returns the seconds of the block under a policy, with copies that block (equation 6) or are
-- hidden (equation 8).
local function seconds(layer, equation, policy, options)
  local t = { policy = policy, options = options, equation = equation }
  for name, value in pairs(layer) do t[name] = value end
  local placed = moe.prophet.place(t)
  local beside = layer.fnec_s + layer.bnec_s
  return placed.time_s + beside, placed.time_without_s + beside
end

-- Returns the speed-ups over plain expert parallelism of FasterMoE, of the planner alone, of the
-- same placements with the scheduler, and of the whole of Pro-Prophet.
local function speedups(size, k, reading)
  local layer, alpha = layer_of(size, k, reading), SETS[reading.set].alpha
  local fm, plain = seconds(layer, 6, "fastermoe_shadowing", {})
  local blocking = { alpha = alpha, hidden = 0 }
  return { fm = plain / fm, planner = plain / seconds(layer, 6, "prophet", blocking),
    scheduler = plain / seconds(layer, 8, "prophet", blocking),
    pp = plain / seconds(layer, 8, "prophet", { alpha = alpha, hidden = 1 }) }
end

-- Returns the speed-ups, indexed by [k][size].
local function measure(reading)
  local out = { {}, {} }
  for k = 1, 2 do
    for _, size in ipairs(SIZES) do out[k][size] = speedups(size, k, reading) end
  end
  return out
end

local function show_models(by_k)
  local rows = { { "k", "model", "FasterMoE", "planner", "+ scheduler", "full", "over FasterMoE" } }
  for k, by_size in ipairs(by_k) do
    for _, size in ipairs { "S", "M", "L" } do
      local m = by_size[size]
      rows[#rows + 1] = { k, size, m.fm, m.planner, m.scheduler, m.pp, m.pp / m.fm }
    end
  end
  print "Set F (fitted): one layer by equations 1 to 8, over plain expert parallelism"
  print(moe.table(rows, { "", "", "%.2fx", "%.2fx", "%.2fx", "%.2fx", "%.2fx" })
    .. "\nDS is S, and DM is M: the model knows one layer\n")
end

-- Returns a row of the table: smallest and largest speed-ups over models, k and skews.
local function range_row(name)
  local least, most, row = {}, {}, { name == "F" and "F (fitted)" or name }
  for _, reading in ipairs(READINGS) do
    for _, by_size in ipairs(measure { set = name, s = reading.s }) do
      for _, m in pairs(by_size) do
        for i, x in ipairs { m.fm, m.planner, m.scheduler, m.pp, m.pp / m.fm } do
          least[i], most[i] = math.min(least[i] or x, x), math.max(most[i] or x, x)
        end
      end
    end
  end
  for i in ipairs(least) do row[i + 1] = ("%.2f .. %.2f"):format(least[i], most[i]) end
  return row
end

local function show(values)
  show_models(values[1])
  print "Least and most over models, k and zipf with s = 0.9, 1.1, 1.3"
  print(moe.table { { "set", "FasterMoE", "planner", "+ scheduler", "full", "over FasterMoE" },
    range_row "F", range_row "A", range_row "B", range_row "D",
    { "paper, table IV", "1.34 .. 2.31", "", "", "1.70 .. 2.62", "1.10 .. 1.35" } })
end

local claims = {}
local function claim(id, value)
  claims[#claims + 1] = moe.claim { id = "proprophet-" .. id, neutral = 1, within = 0.25,
    value = value, label = "set F", fitted = "rates and alpha of set F" }
end
for k, first in ipairs { 26, 31 } do
  for j, size in ipairs(SIZES) do
    local id = ("%03d"):format(first + j - 1)
    claim(id .. "-fm", function(R) return R[k][size].fm end)
    claim(id .. "-pp", function(R) return R[k][size].pp end)
  end
  claim("052-" .. k, function(R) return R[k].M.planner end)
  claim("053-" .. k, function(R) return R[k].M.scheduler / R[k].M.planner end)
  claim("054-" .. k, function(R) return R[k].M.pp / R[k].M.scheduler end)
end

moe.judge { name = "proprophet_setf", title = "Table IV and figure 14 with set F", claims = claims,
  readings = READINGS, measure = measure, show = show,
  head = "Numbers: dtype f32; 1024 tokens per device, no capacity; routing: choices of zipf" }
