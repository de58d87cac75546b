-- Does a model that we trained show the locality on which expert placement relies? Two CPU ranks,
-- real text, top-1 gates, with and without a balance loss. For each layer: how similar the experts'
-- loads are in steps that are one or ten steps apart (Pro-Prophet, arXiv 2411.10003, plans the next
-- step from this step's loads), how uneven they are (its figure 3: few experts get most of the
-- tokens), and whether tokens with the same expert also have the same expert in the next layer
-- (Lina, ATC 2023, figure 9). The papers' figures are printed too, but they are of other models and
-- not comparable.
local moe = require "moe"

local STEPS, FIRST, FAR, RANKS, ROWS, SEQ, LAYERS, EXPERTS = 200, 51, 10, 2, 8, 64, 4, 16

local function model_of(coefficient)
  return moe.model.gpt2_moe { name = "local", vocab = 256, layers = LAYERS, moe_every = 1,
    hidden = 64, heads = 4, seq = SEQ, batch_per_device = ROWS, experts = EXPERTS, gate = "switch",
    capacity = "none", balance_loss = coefficient > 0
      and { coefficient = coefficient, over = "all", count = "choices" } or nil }
end

local function sum(list, first, last)
  local s = 0
  for i = first or 1, last or #list do s = s + list[i] end
  return s
end

local function dot(a, b)
  local s = 0
  for i = 1, #a do s = s + a[i] * b[i] end
  return s
end

local function cosine(a, b) return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b)) end

-- Returns the share of choices that are the same in two distributions over experts: 1 - total
-- variation distance.
local function overlap(a, b)
  local s = 0
  for i = 1, #a do s = s + math.min(a[i], b[i]) end
  return s / sum(a)
end

-- Returns the median over steps of f(loads of the layer in a step, loads `distance` steps later).
local function similarity(r, layer, f, distance)
  local all = moe.values {}
  for step = FIRST, STEPS - distance do
    all[#all + 1] = f(r.moe[step][layer].load, r.moe[step + distance][layer].load)
  end
  return all:median()
end

-- Returns the share of choices that the three experts with most choices get, and the share of the
-- three with fewest, medians over steps.
local function extremes(r, layer)
  local top, bottom = moe.values {}, moe.values {}
  for step = FIRST, STEPS do
    local load = { unpack(r.moe[step][layer].load) }
    table.sort(load)
    top[#top + 1] = sum(load, #load - 2) / sum(load)
    bottom[#bottom + 1] = sum(load, 1, 3) / sum(load)
  end
  return top:median(), bottom:median()
end

local rows = { { "balance loss", "layer", "cosine, next step", "10th", "overlap, next step", "10th",
  "top 3 of 16", "bottom 3", "top-1 next expert", "top-2" } }
for _, coefficient in ipairs { 0, 0.01 } do
  local r = moe.train { model = model_of(coefficient), system = moe.system "raf_rows" {},
    ranks = RANKS, steps = STEPS, record = ("locality_%g.trace"):format(coefficient),
    optimizer = { name = "adamw", lr = 0.001, beta2 = 0.99, weight_decay = 0.1 } }
  local next_expert = moe.lina.locality { routing = r.record, step = FIRST }
  for layer = 1, LAYERS do
    local top, bottom = extremes(r, layer)
    local share = layer > 1 and next_expert.layers[layer - 1].share
    rows[#rows + 1] = { layer == 1 and ("%g"):format(coefficient) or "", layer,
      similarity(r, layer, cosine, 1), similarity(r, layer, cosine, FAR),
      100 * similarity(r, layer, overlap, 1), 100 * similarity(r, layer, overlap, FAR), 100 * top,
      100 * bottom, share and 100 * share[1] or "", share and 100 * share[2] or "" }
  end
  rows[#rows + 1] = { "", "all", "", "", "", "", "", "", 100 * next_expert.share[1],
    100 * next_expert.share[2] }
  rows[#rows + 1] = {}
end
print(("%d experts, top-1, %d tokens per step; medians over steps %d to %d"):format(EXPERTS,
  RANKS * ROWS * SEQ, FIRST, STEPS))
print(moe.table(rows, { "", "", "%.3f", "%.3f", "%.1f%%", "%.1f%%", "%.1f%%", "%.1f%%", "%.1f%%",
  "%.1f%%" }))
print "Even loads: top 3 18.8%, bottom 3 18.8%. Lina's figure 9: 41.94%, 54.59% (another model)."
