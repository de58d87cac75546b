-- How does an untrained gate route text, as in Lancet's artifact, which sends wikitext-2 through
-- models that it has just initialized? GPT2-S-MoE with GPT-2's initial parameters (narrow FFNs,
-- which hardly change what the gates see) reads text of this machine on two CPU ranks. Shown are
-- the loads of the experts, the choices that find no slot at the capacity factor 1, and the same
-- under the law zipf (s = 2), which the reading artifact_text of moe.model.lancet takes for them.
local moe = require "moe"

local SEQ, BATCH, RANKS = 512, 4, 2

-- Returns the busiest expert's load over the mean, and the share of choices beyond the mean.
local function crowding(load)
  local sum, most, beyond = 0, math.max(unpack(load)), 0
  for _, n in ipairs(load) do sum = sum + n end
  for _, n in ipairs(load) do beyond = beyond + math.max(0, n - math.ceil(sum / #load)) end
  return ("%.1f"):format(most * #load / sum), ("%.0f%%"):format(100 * beyond / sum)
end

local rows = { { "experts", "MoE layer", "busiest over mean", "without a slot" } }
for _, experts in ipairs { 32, 64, 128 } do
  local r = moe.infer { ranks = RANKS, batches = 1, model = moe.model.gpt2_moe { layers = 4,
    moe_first = true, hidden = 768, heads = 16, ffn = 256, seq = SEQ, batch_per_device = BATCH,
    experts = experts, gate = "switch", capacity_factor = 1 } }
  for layer, of in ipairs(r.moe[1]) do
    rows[#rows + 1] = { experts, layer, crowding(of.load) }
  end
  local law = moe.loads { routing = moe.workload "zipf" { s = 2, seed = 1 }, ranks = 1,
    tokens = SEQ * BATCH * RANKS, experts = experts }
  rows[#rows + 1] = { experts, "zipf", crowding(law[1]) }
end
print(moe.table(rows))
