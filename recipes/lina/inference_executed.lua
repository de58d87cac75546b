-- Lina's inference scheduler, executed on the routing of a model that we trained. A small GPT-2-MoE
-- (six MoE layers of eight experts) is trained on real text on two CPU ranks with a balance loss,
-- then serves held-out batches on four ranks. The first half of the batches is recorded for the
-- profile of paths; the second half is served by each system: every expert on one rank, Lina's
-- placements, and these without estimation or without fine-tuning. Results must not depend on where
-- experts are computed: the recipe raises an error unless the predictions of all systems are equal.
-- Four ranks on two cores do not show speed, so their times are not shown. Times are simulated, for
-- layers of Transformer-XL's sizes on eight GPUs of the paper's cluster with our model's routing.
local moe = require "moe"

local STEPS, BATCHES, RANKS, LAYERS, EXPERTS, SEQ, ROWS = 250, 16, 4, 6, 8, 64, 16
local LONGEST, DEVICES, XL_SEQ = 3, 8, 512  -- longest path; devices and seq of the simulation

local function model(rows, capacity_factor)
  return moe.model.gpt2_moe { name = "served", vocab = 256, layers = LAYERS, moe_every = 1,
    hidden = 64, heads = 4, seq = SEQ, batch_per_device = rows, experts = EXPERTS, gate = "switch",
    capacity_factor = capacity_factor,
    balance_loss = { coefficient = 0.01, over = "all", count = "choices" } }
end
local served = model(ROWS, 2)  -- capacity factor 2, as in the evaluation of Switch Transformer

print "dtype f32; batch 8 (served: 16), capacity factor 1.25 (served: 2); routing: gate switch"
local trained = moe.train { model = model(8, 1.25), system = moe.system "raf_rows" {}, ranks = 2,
  steps = STEPS, checkpoint_to = "served.ckpt",
  optimizer = { name = "adamw", lr = 0.001, beta2 = 0.99, weight_decay = 0.1 } }

local function infer(t)
  t.model, t.ranks, t.parameters = served, RANKS, "served.ckpt"
  return moe.infer(t)
end
local recorded = infer { batches = 2 * BATCHES, record = "served.trace" }

local function profile(path)
  return moe.lina.popularity { routing = recorded.record, batches = BATCHES, path = path }
end

local function lina(name, options, path)
  options.path = path or LONGEST
  return { name = name, system = moe.system(name) { moe.pass.lina_inference(options) },
    popularity = options.estimation ~= false and profile(options.path) or nil }
end
local SYSTEMS = {
  { name = "fixed", system = moe.system "raf_rows" {} },
  lina("lina_path_1", {}, 1),
  lina("lina_path_2", {}, 2),
  lina("lina_path_3", {}, 3),
  lina("lina_normalised", { normalise = true }),
  lina("lina_sets", { compare = "set" }),
  lina("no_estimation", { estimation = false }),
  lina("no_fine_tuning", { fine_tuning = false }),
}

-- Returns the largest number of rows of a rank divided by the mean over ranks, for each batch and
-- each layer that is after paths of all lengths.
local function imbalance(r)
  local all = moe.values {}
  for _, layers in ipairs(r.rows) do
    for i = LONGEST + 1, #layers do
      local rows = moe.values(layers[i])
      all[#all + 1] = rows:max() / rows:mean()
    end
  end
  return all:mean(), all:max()
end

local rows = { { "system", "predictions", "cross entropy", "next byte right", "placed again",
  "max/mean rows", "worst" } }
local digest
for _, s in ipairs(SYSTEMS) do
  local r = infer { system = s.system, popularity = s.popularity, batches = BATCHES,
    first_batch = BATCHES + 1 }
  digest = digest or r.digest
  if r.digest ~= digest then
    error(("%s: predictions %s, those of fixed are %s"):format(s.name, r.digest, digest))
  end
  local average, worst = imbalance(r)
  rows[#rows + 1] = { s.name, r.digest, moe.values(r.losses):mean(),
    100 * moe.values(r.accuracy):mean(),
    r.again.of > 0 and ("%d of %d"):format(r.again.placed, r.again.of) or "no phase 2", average,
    worst }
end
print(("Executed on %d CPU ranks: %d batches of %d tokens; trained for %d steps to %.3f"):format(
  RANKS, BATCHES, RANKS * ROWS * SEQ, STEPS, trained.losses[#trained.losses]))
print(moe.table(rows, { "", "", "%.6f", "%.2f%%", "", "%.2f", "%.2f" }))
print(("The same predictions everywhere. Rows are those of layers %d to %d. No times: %d ranks "
  .. "share this machine's cores"):format(LONGEST + 1, LAYERS, RANKS))

-- The simulated model drops no choice.
local cluster = moe.cluster.lina { nodes = DEVICES / 4 }
local replayed = moe.trace(recorded.record) {}
local capacity_factor = moe.lina.capacity_factor { routing = replayed, ranks = DEVICES,
  tokens = RANKS * ROWS * SEQ / DEVICES, step = BATCHES + 1, batches = BATCHES }
local function xl(routing)
  return moe.model.lina { size = "transformer_xl", gate = "switch", layers = LAYERS,
    batch_per_device = RANKS * ROWS * SEQ / DEVICES / XL_SEQ, routing = routing,
    capacity_factor = capacity_factor }
end

-- Simulates Lina's inference with options of its pass, or without it if `options` is nil.
local function simulate(options, path, routing, swaps)
  local passes = { moe.pass.irregular_a2a {}, moe.pass.used_rows {} }
  if options then
    options.path = path
    table.insert(passes, 1, moe.pass.lina_inference(options))
  end
  return moe.infer { executor = "simulate", batches = BATCHES, first_batch = BATCHES + 1,
    model = xl(routing), cluster = cluster, system = moe.system "simulated" (passes),
    popularity = options and options.estimation ~= false and profile(path) or nil, swaps = swaps }
end

local paths = { { "path", "known paths", "accuracy as lists", "as sets", "fine-tuned as lists",
  "as sets" } }
for path = 1, LONGEST do
  local list, set = simulate({}, path, replayed).again,
    simulate({ compare = "set" }, path, replayed).again
  list, set = list.placed / list.of, set.placed / set.of
  paths[#paths + 1] = { path, profile(path).paths, 100 * (1 - list), 100 * (1 - set), 100 * list,
    100 * set }
end
print "\nEstimates of our model's routing (top 2k estimated = actual, Lina section 5.1)"
print(moe.table(paths, { "", "", "%.0f%%", "%.0f%%", "%.0f%%", "%.0f%%" }))

for _, normalise in ipairs { false, true } do
  local times = { { "system", "median ms", "of ideal", "95% ms", "of ideal" } }
  local ideal_median, ideal_tail
  for _, s in ipairs { { "ideal" }, { "baseline" }, { "lina", {} },
    { "no_estimation", { estimation = false } }, { "no_fine_tuning", { fine_tuning = false } } } do
    local name, options = unpack(s)
    if options then options.normalise = normalise end
    local ms = moe.values(simulate(options, LONGEST, name ~= "ideal" and replayed or nil,
      { place_ms = 0.2, host_bytes_per_s = 25e9 }).answer_ms)
    local median, tail = ms:quantile(0.5), ms:quantile(0.95)
    ideal_median, ideal_tail = ideal_median or median, ideal_tail or tail
    times[#times + 1] = { name, median, median / ideal_median, tail, tail / ideal_tail }
  end
  print(("\nSimulated: %d layers of Transformer-XL's sizes, %d tokens per GPU, 8 GPUs of the "
    .. "paper's cluster, our model's routing; phases by closed form, estimates %s"):format(LAYERS,
    RANKS * ROWS * SEQ / DEVICES, normalise and "scaled to all devices" or "as printed"))
  print(moe.table(times, { "", "%.2f", "%.2fx", "%.2f", "%.2fx" }))
end
