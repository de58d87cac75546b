-- How does a trained model route real text, and what does that routing cost on a cluster? Text goes
-- through the forward of a checkpoint on two CPU ranks, and the choices are recorded. For each MoE
-- layer: how uneven the experts' loads are, and how similar they are in batches that follow each
-- other, on which placements rely (Pro-Prophet, arXiv 2411.10003). Then eight GPUs simulate
-- training steps with these choices and with balanced ones.
-- By itself the recipe trains a small model of Mixtral's architecture on text of this machine; the
-- simulation then has Mixtral's widths. For a checkpoint of yours fill in YOURS and run
--   moebench run --read FOLDER recipes/real_routing.lua
local moe = require "moe"

-- FOLDER has all three: the config, the parameters (or model.safetensors.index.json), and rows of
-- token ids by the model's tokenizer, SEQ + 1 each: [[5, 17, ...], [8, 2, ...]].
local YOURS = nil
-- = { config = "config.json", parameters = "model.safetensors", tokens = "tokens.json" }
local RANKS, GPUS, SEQ, BATCHES, ROWS = 2, 8, 128, 16, 32 -- ROWS: sequences of a batch, all ranks
local SMALL = { hidden = 64, heads = 4, kv_heads = 2, expert_ffn = 128, vocab = 256 }

-- Returns your model, or Mixtral with four layers, which is small unless it is only simulated.
local function model_of(fields, simulated)
  fields.seq = SEQ
  if YOURS then return moe.model.from_config(YOURS.config)(fields) end
  fields.layers = 4
  for name, value in pairs(simulated and {} or SMALL) do fields[name] = value end
  return moe.model.mixtral_8x7b(fields)
end

if not YOURS then
  local r = moe.train { model = model_of { batch_per_device = 4,
      balance_loss = { coefficient = 0.02, count = "choices", over = "all" } },
    ranks = RANKS, steps = 150, parameters_to = "real_routing.safetensors",
    optimizer = { name = "adamw", lr = 0.003, beta2 = 0.99, weight_decay = 0.1 } }
  print(("trained for %d steps: cross entropy from %.2f to %.2f"):format(#r.losses, r.losses[1],
    r.losses[#r.losses]))
end
local recorded = moe.infer { model = model_of { batch_per_device = ROWS / RANKS }, ranks = RANKS,
  batches = BATCHES, parameters = YOURS and YOURS.parameters or "real_routing.safetensors",
  tokens = YOURS and YOURS.tokens, record = "real_routing.trace" }

-- Returns the share of choices that two batches have in common.
local function common(a, b)
  local both = moe.values {}
  for e = 1, #a do both[e] = math.min(a[e], b[e]) end
  return both:mean() / moe.values(a):mean()
end

print(("%d batches of %d tokens; cross entropy %.3f, mean over batches"):format(BATCHES, ROWS * SEQ,
  moe.values(recorded.losses):mean()))
local rows = { { "MoE layer", "busiest expert, over the mean", "idlest", "same next batch" } }
for layer = 1, #recorded.moe[1] do
  local load, same = moe.values {}, moe.values {}
  for batch, layers in ipairs(recorded.moe) do
    for e, n in ipairs(layers[layer].load) do load[e] = (load[e] or 0) + n end
    if batch > 1 then
      same[batch - 1] = common(recorded.moe[batch - 1][layer].load, layers[layer].load)
    end
  end
  rows[#rows + 1] = { layer, load:max() / load:mean(), load:min() / load:mean(), 100 * same:mean() }
end
print(moe.table(rows, { "", "%.2f", "%.2f", "%.1f%%" }))

print(("A training step on %d H100 GPUs, simulated; means over %d steps"):format(GPUS, BATCHES))
rows = { { "system", "balanced", "as recorded" } }
for _, name in ipairs { "raf_rows", "lancet", "eplb", "prophet" } do
  local row = { name }
  for _, routing in ipairs { moe.workload "balanced" {}, moe.trace(recorded.record) {} } do
    local plan = moe.plan { system = moe.system(name) {}, cluster = moe.cluster.h100 { nodes = 1 },
      model = model_of({ batch_per_device = ROWS / GPUS, routing = routing }, true) }
    row[#row + 1] = moe.values(plan:simulate { steps = BATCHES }.samples_ms):mean()
  end
  rows[#rows + 1] = row
end
print(moe.table(rows, { "", "%.2f ms", "%.2f ms" }))
