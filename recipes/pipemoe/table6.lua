-- Table VI of PipeMoE: how much less time does a layer take at the degree that PipeMoE chooses than
-- at a fixed degree, as in Tutel? All 864 layers of table IV are computed chunk by chunk at the
-- chosen degree and at 1, 2, 4, 8, with the backward by the closed form. Both readings of the
-- start-up on 16 GPUs are used.
local moe = require "moe"

local GPUS, DEGREES = { 16, 32, 64 }, { 1, 2, 4, 8 }

local HEAD = "Layers of table IV: dtype f16 (two bytes), batch 2..8 per device, capacity factor 1; "
  .. "routing: even,\n2 choices per token; times by the published lines, nothing is simulated"

local PAPER = { [16] = { 16.8, 11.5, 3.4, 8.6 }, [32] = { 15.6, 3.5, 6.1, 12.9 },
  [64] = { 12.5, 5.3, 8.6, 17.2 } }

-- Returns the time of a layer's forward at a degree in seconds, computed chunk by chunk.
local function by_chunks(layer, degree)
  return moe.pipemoe.time(moe.merged(layer.lines, { degree = degree, by = "recurrence" }))
end

local function closed(layer, degree, objective)
  return moe.pipemoe.time(moe.merged(layer.lines, { degree = degree, objective = objective }))
end

local function choice(layer, more) return moe.pipemoe.degree(moe.merged(layer.lines, more)) end

-- Returns, for each cluster, the layers with their times at degrees 1, 2, 4, 8 and at the chosen
-- degree. The function `time` gives the times, for `objective`; the degree is the best one for
-- `chosen_by` (by default the same objective).
local function measure(options, time, objective, chosen_by)
  local reading = {}
  for _, gpus in ipairs(GPUS) do
    local layers = moe.pipemoe.layers(moe.merged({ devices = gpus }, options))
    local rows = {}
    for i, layer in ipairs(layers) do
      local best = choice(layer, { objective = chosen_by or objective }).degree
      local times = {}
      for j, degree in ipairs(DEGREES) do times[j] = time(layer, degree, objective) end
      rows[i] = { layer = layer, degree = best, times = times,
        best = time(layer, best, objective) }
    end
    reading[gpus] = rows
  end
  return reading
end

-- Returns by how many percent the time, at the chosen degree or `least`(row), is less than at
-- DEGREES[j]: mean and largest over the rows for which `keep` returns true.
local function gain(rows, j, keep, least)
  local sum, most, n = 0, 0, 0
  for _, row in ipairs(rows) do
    if not keep or keep(row) then
      local percent = 100 * (1 - (least and least(row) or row.best) / row.times[j])
      sum, most, n = sum + percent, math.max(most, percent), n + 1
    end
  end
  return sum / n, most, n
end

local function table_row(label, reading, keep)
  local cells, squares, n = { label }, 0, 0
  for _, gpus in ipairs(GPUS) do
    for j = 1, #DEGREES do
      local mean = gain(reading[gpus], j, keep)
      cells[#cells + 1] = ("%.1f"):format(mean)
      squares, n = squares + (mean - PAPER[gpus][j]) ^ 2, n + 1
    end
  end
  cells[#cells + 1] = ("%.1f"):format(math.sqrt(squares / n))
  return cells
end

local function header(first)
  local cells = { first }
  for _, gpus in ipairs(GPUS) do
    for _, degree in ipairs(DEGREES) do cells[#cells + 1] = ("%d: %d"):format(gpus, degree) end
  end
  cells[#cells + 1] = "RMSE"
  return cells
end

local function paper_row()
  local cells = { "paper" }
  for _, gpus in ipairs(GPUS) do
    for j = 1, #DEGREES do cells[#cells + 1] = tostring(PAPER[gpus][j]) end
  end
  cells[#cells + 1] = "-"
  return cells
end

-- Section V-C: returns the percentage of layers whose degree, chosen by the forward's time, is at
-- least as good for a whole step as each of the fixed degrees.
local function better_or_equal(reading)
  local good, n = 0, 0
  for _, gpus in ipairs(GPUS) do
    for _, row in ipairs(reading[gpus]) do
      local own = closed(row.layer, row.degree, "step")
      local fits = true
      for _, degree in ipairs(DEGREES) do
        fits = fits and own <= closed(row.layer, degree, "step") * (1 + 1e-12)
      end
      good, n = good + (fits and 1 or 0), n + 1
    end
  end
  return 100 * good / n
end

local function mean_of_all(reading)
  local sum = 0
  for _, gpus in ipairs(GPUS) do
    for j = 1, #DEGREES do sum = sum + gain(reading[gpus], j) end
  end
  return sum / #GPUS / #DEGREES
end

-- Returns the layer that section V-E discusses.
local function layer_of_discussion()
  for _, layer in ipairs(moe.pipemoe.layers { devices = 64 }) do
    if layer.batch == 2 and layer.seq == 2048 and layer.hidden == 8192 and layer.ffn == 4096
      and layer.experts_per_device == 2 then
      return layer
    end
  end
end
local discussed = layer_of_discussion()
local function discussed_ms(degree) return 1e3 * closed(discussed, degree, "step") end

local function show_gains(likely, printed)
  local step = measure({}, closed, "step", "forward")
  print "Percent less time than Tutel at a fixed degree, means; GPUs: degree. By chunks unless said"
  print(moe.table { header "", paper_row(), table_row("864 layers, alpha_a(16) = 1.72e-4", likely),
    table_row("as printed, 1.72e-5", printed),
    table_row("closed form, with the backward, the forward's degree", step),
    table_row("closed form, with the backward, the step's degree", measure({}, closed, "step")),
    table_row("rows times E/P", measure({ times_experts = true }, closed)),
    table_row("a second per element, k = 1, rows times E/P, printed",
      measure({ alpha_a_16 = "printed", times_experts = true, k = 1, element_bytes = 1 }, closed)),
    table_row("522 layers by a guess of memory", likely,
      function(row) return row.layer.fits end) })
end

-- Prints how often the degree of the paper's Algorithm 1 is not the best, and the time it costs.
local function show_methods(likely, printed)
  print "\nDegrees that are not the best, and what they cost: mean and most, percent"
  local methods = { { "method", "16 printed", "16 likely", "32", "64" } }
  for _, method in ipairs { "paper", "paper_fixed", "exact" } do
    local cells = { method }
    for _, set in ipairs { printed[16], likely[16], likely[32], likely[64] } do
      local wrong, sum, most = 0, 0, 0
      for _, row in ipairs(set) do
        local lost = choice(row.layer, { method = method, max_degree = 4096 }).time_s
          / choice(row.layer, {}).time_s - 1
        wrong, sum, most = wrong + (lost > 1e-12 and 1 or 0), sum + lost, math.max(most, lost)
      end
      cells[#cells + 1] = ("%d of %d, %.1f, %.1f"):format(wrong, #set, 100 * sum / #set,
        100 * most)
    end
    methods[#methods + 1] = cells
  end
  print(moe.table(methods))
end

local function show(values)
  local likely, printed = unpack(values)
  show_gains(likely, printed)
  show_methods(likely, printed)
  print(("\nThe layer of section V-E, ms at degrees 1, 2, 4, 8: forward %.0f %.0f %.0f %.0f; with "
    .. "the backward %.0f %.0f %.0f %.0f"):format(1e3 * by_chunks(discussed, 1),
    1e3 * by_chunks(discussed, 2), 1e3 * by_chunks(discussed, 4), 1e3 * by_chunks(discussed, 8),
    discussed_ms(1), discussed_ms(2), discussed_ms(4), discussed_ms(8)))
end

local claims = {}
-- Two bytes per element, two choices per token and 1.72e-4 s (moe/models/pipemoe.lua) were settled
-- in sight of this table, so that its numbers are no prediction.
local FITTED = "two bytes per element, two choices and 1.72e-4 s were settled in sight of the table"
local NOTE = "The published lines make degree 2 the best of nearly all layers; the hardware did "
  .. "not."
local function claim(id, value, more)
  local fields = { id = id, neutral = 0, within = 0.25, value = value, fitted = FITTED }
  claims[#claims + 1] = moe.claim(moe.merged(fields, more or {}))
end

-- No order of a degree's chunks beats the closed form: all transfers one after the other, or the
-- experts with the first and the last transfer. So no degree gains more than the best of all.
local function of_all(row) return choice(row.layer, { max_degree = 65536 }).time_s end
local BY = "the best of all degrees, by the published lines of the forward"

for g, gpus in ipairs(GPUS) do
  for j, degree in ipairs(DEGREES) do
    local id = ("pipemoe-%03d"):format(28 + 4 * g + j - 1)
    for i, name in ipairs { id, id .. "-max" } do
      local function of(least)
        return function(reading) return (select(i, gain(reading[gpus], j, nil, least))) end
      end
      claim(name, of(), { note = degree == 2 and NOTE or nil, bound = of(of_all), bound_by = BY })
    end
  end
end
claim("pipemoe-044", better_or_equal, { within = 0.1,
  note = "The degree is chosen by the forward's model and judged with the backward." })
claim("pipemoe-045", mean_of_all)
claim("pipemoe-095", function() return discussed_ms(2) end, { neutral = 0,
  not_comparable = "their time is measured beside an all-reduce, which the model has not" })
claim("pipemoe-096", function() return discussed_ms(8) < discussed_ms(2) end)

moe.judge { name = "pipemoe_table6", title = "less time of a layer than at Tutel's degrees",
  claims = claims, show = show, head = HEAD, readings = { {}, { alpha_a_16 = "printed" } },
  measure = function(options) return measure(options, by_chunks) end }
