-- A training step of the model that torch_step.py trains, by the executor "cuda": one rank,
-- activations in bfloat16, no look for numbers that are not finite (PyTorch has none), a recorded
-- step replayed. With AdamW, as there, and with SGD. Prints a row each for run.sh.
local moe = require "moe"

local STEPS, BATCH, SEQ = 22, 24, 512
-- The first steps make what is made late; the third is the first that may be replayed.
local FIRST = 3

local function samples_of(optimizer)
  local r = moe.train { executor = "cuda", precision = "bf16", ranks = 1, steps = STEPS,
    check_finite = false, attention = "cudnn",
    init = "reference", tokens = "reference", optimizer = { name = optimizer },
    model = moe.model.gpt2_moe { vocab = 50257, layers = 12, hidden = 768, heads = 12, seq = SEQ,
      batch = BATCH, experts = 8, gate = "switch", capacity_factor = 1.25 } }
  local samples = {}
  for i = FIRST, #r.samples_ms do samples[#samples + 1] = r.samples_ms[i] end
  return samples, r.losses[#r.losses]
end

for _, optimizer in ipairs { "adamw", "sgd" } do
  local samples, loss = samples_of(optimizer)
  local sorted, texts = {}, {}
  for i, ms in ipairs(samples) do
    sorted[i], texts[i] = ms, ("%.4f"):format(ms)
  end
  table.sort(sorted)
  local median = sorted[math.ceil(#sorted / 2)]
  print(('{"bench": "train_step", "optimizer": "%s", "ms": %.4f, "tokens_per_s": %.0f, '
    .. '"loss": %.4f, "samples_ms": [%s]}'):format(optimizer, median, BATCH * SEQ / median * 1e3,
    loss, table.concat(texts, ", ")))
end
