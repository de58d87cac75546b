-- Lesson 14. From what expert size on does an expert layer run at half of a GPU's peak? Times of
-- fused expert kernels that were measured on H100 and B200 (moe.op_time), balanced and with tokens
-- that choose experts by a power law.
--
-- Run it: build/release/moebench run recipes/lessons/14_expert_size.lua  (under a second)
-- Try next: other tokens, ep = 8; cluster = moe.cluster.gb200 { nodes = 1 }.
local moe = require "moe"

local PEAK = { h100 = 989e12, b200 = 2250e12 }  -- bf16, dense (data sheets)
local TOKENS, HIDDEN = 16384, 4096

-- The share of the peak that one GPU reaches which holds all experts, with a star where this layer
-- was not measured: it is estimated from the four nearest ones.
local function share(gpu, inner, experts, k, load)
  local t = moe.op_time { cluster = moe.cluster[gpu] { nodes = 1 }, op = "experts", load = load,
    tokens = TOKENS, hidden = HIDDEN, inner = inner, experts = experts, k = k }
  local of_peak = 2 * TOKENS * k * 3 * HIDDEN * inner / (t.ms * 1e-3) / PEAK[gpu]
  return ("%.0f%%%s"):format(100 * of_peak, t.extrapolated and "*" or "")
end

local rows = { { "experts", "inner", "h100", "h100 skewed", "b200", "b200 skewed" } }
for _, layer in ipairs { { 8, 2 }, { 128, 8 } } do
  for _, inner in ipairs { 512, 768, 1024, 1536, 2048, 3072, 4096, 7168, 14336 } do
    local row = { ("%d, %d per token"):format(layer[1], layer[2]), inner }
    for _, gpu in ipairs { "h100", "b200" } do
      for _, load in ipairs { "balanced", "power_law_1.2" } do
        row[#row + 1] = share(gpu, inner, layer[1], layer[2], load)
      end
    end
    rows[#rows + 1] = row
  end
end
print(("Share of the bf16 peak, %d tokens, hidden %d, all experts on one GPU"):format(TOKENS,
  HIDDEN))
print(moe.table(rows) .. "\n* estimated from the four nearest measured layers")
