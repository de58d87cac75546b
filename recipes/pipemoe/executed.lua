-- Is PipeMoE's degree the best one when the layer is executed? Layers of several shapes on several
-- links on two CPU ranks. For each layer, lines are fitted to ops that are measured alone, and the
-- best degree for the step is computed; then training steps are executed at that degree and at
-- others, in turns. Emulated: compute and bytes are real, times of transfers come from the link
-- model. Every step of a turn except the first is a sample; all samples are kept.
local moe = require "moe"

local RANKS, DEGREES = 2, { 1, 2, 3, 4, 6, 8, 12, 16, 24 }
local MAX_DEGREE = 64
local ROUNDS, STEPS = 4, 4  -- samples of a degree: number of turns, steps per turn
local WITHIN = 0.03         -- distance from the best executed time that still counts as best

-- Layers: rows of 128 tokens per rank, widths, and the link's bytes per second and start-up (us).
local LAYERS = {
  { rows = 4, hidden = 256, ffn = 256, bytes_per_s = 5e8, latency_us = 2000 },
  { rows = 4, hidden = 256, ffn = 1024, bytes_per_s = 2e8, latency_us = 1000 },
  { rows = 4, hidden = 256, ffn = 1024, bytes_per_s = 1e8, latency_us = 200 },
  { rows = 8, hidden = 128, ffn = 512, bytes_per_s = 1e8, latency_us = 300 },
  { rows = 4, hidden = 256, ffn = 2048, bytes_per_s = 5e7, latency_us = 50 },
  { rows = 8, hidden = 256, ffn = 1024, bytes_per_s = 5e7, latency_us = 100 },
  { rows = 4, hidden = 512, ffn = 2048, bytes_per_s = 1e8, latency_us = 50 },
  { rows = 8, hidden = 256, ffn = 2048, bytes_per_s = 1e8, latency_us = 20 },
  { rows = 8, hidden = 512, ffn = 1024, bytes_per_s = 2e8, latency_us = 20 },
  { rows = 8, hidden = 128, ffn = 2048, bytes_per_s = 2e7, latency_us = 20 },
}

local function model_of(layer)
  return moe.model.gpt2_moe { name = "one_layer", vocab = 256, layers = 1, moe_every = 1,
    hidden = layer.hidden, heads = 4, ffn = layer.ffn, seq = 128, batch_per_device = layer.rows,
    experts = RANKS, gate = "random", capacity_factor = 1 }
end

local function link_of(layer)
  return { bytes_per_s = layer.bytes_per_s, latency_us = layer.latency_us }
end

-- Returns the degrees to execute: 1, 2, the chosen degree, and its neighbours.
local function degrees_to_run(chosen, capacity)
  local wanted, out = { [1] = true, [2] = true, [chosen] = true }, {}
  for i, degree in ipairs(DEGREES) do
    if degree <= chosen and (DEGREES[i + 1] or chosen) >= chosen then
      wanted[degree], wanted[DEGREES[i + 1] or degree] = true, true
    end
    if degree < chosen and (DEGREES[i + 2] or chosen) >= chosen then wanted[degree] = true end
    if degree > chosen and (DEGREES[i - 2] or chosen) <= chosen then wanted[degree] = true end
  end
  for degree in pairs(wanted) do
    if degree <= capacity then out[#out + 1] = degree end
  end
  table.sort(out)
  return out
end

local function step_ms(layer, degree)
  local r = moe.train { model = model_of(layer), ranks = RANKS, steps = STEPS + 1,
    link = link_of(layer), optimizer = { lr = 0.02 },
    system = moe.system "cut" { all_reduce = { lane = "comm_reduce", place = "ready" },
      moe.pass.capacity_pipeline { degree = degree } } }
  table.remove(r.samples_ms, 1)
  return r.samples_ms
end

-- Returns the samples of each degree. The degrees are executed in turns, in an order that is
-- reversed from turn to turn.
local function execute(layer, degrees)
  local samples = {}
  for _, degree in ipairs(degrees) do samples[degree] = moe.values {} end
  for round = 1, ROUNDS do
    for i = 1, #degrees do
      local degree = degrees[round % 2 == 1 and i or #degrees + 1 - i]
      for _, ms in ipairs(step_ms(layer, degree)) do table.insert(samples[degree], ms) end
    end
  end
  return samples
end

local function numbers(list, format)
  local out = {}
  for i, x in ipairs(list) do out[i] = format:format(x) end
  return table.concat(out, " ")
end

-- Prints the results of a layer; returns the best executed time and its degree.
local function show_layer(i, layer, fit, choice, degrees, samples)
  local l, e = fit.lines, fit.error
  print(("\nLayer %d: %d tokens per rank, M %d, H %d; link %g MB/s, %g us"):format(i,
    128 * layer.rows, layer.hidden, layer.ffn, layer.bytes_per_s / 1e6, layer.latency_us))
  print(("transfer %.2f + %.2f ms (fit within %.0f%%), experts %.2f + %.2f ms (%.0f%%), backward "
    .. "%.2f + %.2f ms (%.0f%%), cutting %.2f ms"):format(1e3 * l.alpha_a, 1e3 * l.beta_a * l.n_d,
    100 * e.transfer.worst, 1e3 * l.alpha_e, 1e3 * l.beta_e * l.n_e, 100 * e.experts.worst,
    1e3 * l.alpha_b, 1e3 * l.beta_b * l.n_e, 100 * e.backward.worst, 1e3 * l.cut_s))
  local rows = { { "degree", "layer predicted ms", "step executed ms", "over the best",
    "samples" } }
  local best, best_degree = math.huge, nil
  for _, degree in ipairs(degrees) do
    local ms = samples[degree]:median()
    if ms < best then best, best_degree = ms, degree end
  end
  for _, degree in ipairs(degrees) do
    local ms = samples[degree]:median()
    rows[#rows + 1] = { degree .. (degree == choice.degree and " *" or ""),
      1e3 * moe.pipemoe.time(moe.merged(l, { degree = degree, objective = "step" })), ms,
      100 * (ms / best - 1), numbers(samples[degree], "%.1f") }
  end
  print(moe.table(rows, { "", "%.2f", "%.2f", "%+.1f%%" }))
  return best, best_degree
end

print "Numbers: dtype f32; capacity factor 1; routing: gate random, 1 choice per token"
local summary = { { "layer", "chosen", "best executed", "chosen over best", "" } }
local seen, different, good, is_best = {}, 0, 0, 0
for i, layer in ipairs(LAYERS) do
  local fit = moe.pipemoe.fit { model = model_of(layer), ranks = RANKS, link = link_of(layer),
    objective = "step" }
  local choice = moe.pipemoe.degree(moe.merged(fit.lines, { objective = "step",
    max_degree = math.min(MAX_DEGREE, fit.capacity) }))
  local degrees = degrees_to_run(choice.degree, fit.capacity)
  local samples = execute(layer, degrees)
  local best_ms, best_degree = show_layer(i, layer, fit, choice, degrees, samples)
  local off = samples[choice.degree]:median() / best_ms - 1
  if not seen[choice.degree] then different = different + 1 end
  seen[choice.degree] = true
  good, is_best = good + (off <= WITHIN and 1 or 0), is_best + (off == 0 and 1 or 0)
  summary[#summary + 1] = { i, choice.degree, best_degree, ("%+.1f%%"):format(100 * off),
    off == 0 and "the best" or off <= WITHIN and "within 3%" or "not within 3%" }
end
print "\nEmulated on this machine; medians of all samples"
print(moe.table(summary))
print(("The chosen degree is the best executed in %d of %d layers, within 3%% of it in %d; %d "
  .. "different degrees"):format(is_best, #LAYERS, good, different))
