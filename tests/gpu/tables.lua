-- Whole training steps on this GPU beside what simulations say that take op times measured
-- elsewhere (`scripts/moe/gpus`): the tables of H100 and of H200, of which one is this card's. One
-- rank, bfloat16, SGD; activations as in step.lua. Prints a row per model for run.sh: milliseconds
-- of the steps, of all ops of each kind in one step (from begin to end on the GPU, so launches that
-- nothing hides count), and the same from the simulations.
local moe = require "moe"

local STEPS = 8
-- One that is replayed; the first steps make what is made late.
local SEEN_STEP = 6
local CARDS = { "h100", "h200" }

local MODELS = {
  { name = "GPT2-S", layers = 12, hidden = 768, heads = 12, seq = 512, batch = 24, vocab = 50257 },
  { name = "GPT2-L", layers = 24, hidden = 1024, heads = 16, seq = 512, batch = 8, vocab = 50257 },
  { name = "wide", layers = 4, hidden = 4096, heads = 32, seq = 2048, batch = 4, vocab = 32000 },
}

local function plan_of(m, card)
  return moe.plan {
    cluster = moe.cluster[card] { nodes = 1, devices_per_node = 1 },
    model = moe.model.gpt2_moe { name = m.name, dtype = "bf16", vocab = m.vocab, layers = m.layers,
      hidden = m.hidden, heads = m.heads, seq = m.seq, batch = m.batch, experts = 8,
      gate = "switch", capacity_factor = 1.25, attention = "fused" },
    system = moe.system "raf" {},
    optimizer = { name = "sgd" },
    edits = { round_once = true, fuse_gelu = true, pad_logits = true },
  }
end

local function ms_by_kind(spans)
  local sums = {}
  for _, span in ipairs(spans) do
    sums[span.kind] = (sums[span.kind] or 0) + span.end_ms - span.begin_ms
  end
  return sums
end

local function object(numbers)
  local names, texts = {}, {}
  for name in pairs(numbers) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do texts[i] = ('"%s": %.4f'):format(name, numbers[name]) end
  return "{" .. table.concat(texts, ", ") .. "}"
end

for _, m in ipairs(MODELS) do
  local fields = { ('"bench": "step_by_tables", "model": "%s"'):format(m.name) }
  for i, card in ipairs(CARDS) do
    local plan = plan_of(m, card)
    if i == 1 then
      local run = plan:run("cuda", { precision = "bf16", check_finite = false, steps = STEPS,
        tokens = "reference" })
      local samples = {}
      for step, ms in ipairs(run.samples_ms) do samples[step] = ("%.4f"):format(ms) end
      fields[#fields + 1] = ('"samples_ms": [%s], "executed": %s'):format(
        table.concat(samples, ", "), object(ms_by_kind(run:spans { step = SEEN_STEP })))
    end
    local simulated = plan:simulate()
    fields[#fields + 1] = ('"%s_ms": %.4f, "%s_measured_share": %.3f, "%s": %s'):format(card,
      simulated.iteration_ms, card, simulated.measured_share, card,
      object(ms_by_kind(plan:spans {})))
  end
  print("{" .. table.concat(fields, ", ") .. "}")
end
