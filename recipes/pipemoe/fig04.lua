-- Figure 4 of PipeMoE: for how many layers is each of the degrees 1, 2, 4, 8 the best, and how much
-- longer does the worst take? The forward of all 864 layers of table IV is computed chunk by chunk
-- at the four degrees, a step with the backward by the closed form, and the best degree of all.
local moe = require "moe"

local GPUS, DEGREES = { 16, 32, 64 }, { 1, 2, 4, 8 }

local HEAD = "Layers of table IV: dtype f16 (two bytes), batch 2..8 per device, capacity factor 1; "
  .. "routing: even,\n2 choices per token; times by the published lines, nothing is simulated"

local function by_chunks(layer, degree)
  return moe.pipemoe.time(moe.merged(layer.lines, { degree = degree, by = "recurrence" }))
end

local function closed_step(layer, degree)
  return moe.pipemoe.time(moe.merged(layer.lines, { degree = degree, objective = "step" }))
end

-- Returns for a set of layers how many are fastest at each degree, and by how many percent the
-- worst degree takes longer than the best, the largest over layers.
local function compare(layers, time)
  local best_at, most = { [1] = 0, [2] = 0, [4] = 0, [8] = 0 }, 0
  for _, layer in ipairs(layers) do
    local best, least, longest
    for _, degree in ipairs(DEGREES) do
      local t = time(layer, degree)
      if not best or t < least then best, least = degree, t end
      longest = math.max(longest or t, t)
    end
    best_at[best] = best_at[best] + 1
    most = math.max(most, 100 * (longest / least - 1))
  end
  return { best_at = best_at, most = most, n = #layers }
end

local function compare_all(alpha_a_16, time)
  local value = {}
  for _, gpus in ipairs(GPUS) do
    value[gpus] = compare(moe.pipemoe.layers { devices = gpus, alpha_a_16 = alpha_a_16 }, time)
  end
  return value
end

local step = compare_all("likely", closed_step)

local function add(rows, label, reading)
  for _, gpus in ipairs(GPUS) do
    local r = reading[gpus]
    rows[#rows + 1] = r and { gpus == 16 and label or "", gpus, r.best_at[1], r.best_at[2],
      r.best_at[4], r.best_at[8], r.most }
  end
end
local function show(values)
  local likely, printed = unpack(values)
  local rows = { { "", "GPUs", "1", "2", "4", "8", "worst over best, at most" } }
  print "Layers, of 288, that are best at a degree"
  add(rows, "forward, chunk by chunk", likely)
  add(rows, "alpha_a(16) as printed", { [16] = printed[16] })
  add(rows, "with the backward, closed form", step)
  print(moe.table(rows, { "", "", "", "", "", "", "+%.0f%%" }))

  print "\nThe best of all degrees to 64: degree x layers"
  local free = { { "", "GPUs", "" } }
  for _, objective in ipairs { "forward", "step" } do
    for _, gpus in ipairs(GPUS) do
      local count, parts = {}, {}
      for _, layer in ipairs(moe.pipemoe.layers { devices = gpus }) do
        local degree = moe.pipemoe.degree(moe.merged(layer.lines, { objective = objective })).degree
        count[degree] = (count[degree] or 0) + 1
      end
      for degree = 1, 64 do
        if count[degree] then parts[#parts + 1] = ("%d x %d"):format(degree, count[degree]) end
      end
      free[#free + 1] = { gpus == 16 and objective or "", gpus, table.concat(parts, ", ") }
    end
  end
  print(moe.table(free))
end

local function not_2(reading)
  local other, n = 0, 0
  for _, gpus in ipairs(GPUS) do
    other, n = other + reading[gpus].n - reading[gpus].best_at[2], n + reading[gpus].n
  end
  return 100 * other / n
end

local function extreme(choose)
  return function(reading)
    return choose(reading[16].most, reading[32].most, reading[64].most)
  end
end

-- Evaluates the claims, once for the forward and once for a step: the paper does not say which.
local function judge(t)
  local function claim(id, value)
    return moe.claim { id = id, label = t.title, neutral = 0, within = 0.25, value = value }
  end
  t.name, t.head, t.claims = "pipemoe_fig04", HEAD, { claim("pipemoe-006", not_2),
    claim("pipemoe-007", extreme(math.min)), claim("pipemoe-007-max", extreme(math.max)) }
  moe.judge(t)
end
judge { title = "forward", readings = { "likely", "printed" }, show = show,
  measure = function(alpha_a_16) return compare_all(alpha_a_16, by_chunks) end }
judge { title = "with the backward", readings = { step } }
