-- Does balancing keep the experts of a real training in use, and what does it cost in loss? A small
-- GPT-2-MoE is trained on real text on two CPU ranks: without balancing, with Switch's auxiliary
-- loss (over each rank's tokens, and over all ranks'), with that and a z-loss, with biases in place
-- of a loss, and without drops. Shown are loads and drops of each layer, means over the last steps.
local moe = require "moe"

local STEPS, LAST, EXPERTS = 150, 50, 8

local function model_of(changes)
  return moe.model.gpt2_moe(moe.merged({ vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 64,
    batch_per_device = 8, experts = EXPERTS, gate = "top_k", k = 2 }, changes))
end

local function balance(over, count)
  return { coefficient = 0.03, over = over, count = count }
end

local VARIANTS = {
  { "none", {} },
  { "balance loss, a rank's choices", { balance_loss = balance("rank", "choices") } },
  { "balance loss, all ranks' choices", { balance_loss = balance("all", "choices") } },
  { "balance loss, all ranks' kept", { balance_loss = balance("all", "kept") } },
  { "balance loss and z-loss", { balance_loss = balance("all", "choices"), z_loss = 0.001 } },
  { "biases", { bias_balance = { rate = 0.001 } } },
  { "none, dropless", { capacity = "none" } },
  { "biases, dropless", { capacity = "none", bias_balance = { rate = 0.001 } } },
}

-- Returns the mean of f(step) over the last steps.
local function late(f)
  local sum = 0
  for step = STEPS - LAST + 1, STEPS do sum = sum + f(step) end
  return sum / LAST
end

local function layer_row(r, i)
  local loads = late(function(step)
    local load = moe.values(r.moe[step][i].load)
    return load:max() / load:mean()
  end)
  local dropped = late(function(step)
    local m = r.moe[step][i]
    return 100 * m.dropped / (EXPERTS * moe.values(m.load):mean())
  end)
  local busy = late(function(step)
    local n = 0
    for _, load in ipairs(r.moe[step][i].load) do if load > 0 then n = n + 1 end end
    return n
  end)
  local added = late(function(step)
    return r.moe[step][i].balance_loss + r.moe[step][i].z_loss
  end)
  return r.moe[1][i].layer, loads, busy, dropped, added
end

local rows = { { "balancing", "block", "max/mean load", "busy experts", "dropped %", "added loss",
  "cross entropy", "held out", "peak MiB" } }
for _, variant in ipairs(VARIANTS) do
  local name, changes = variant[1], variant[2]
  local r = moe.train { model = model_of(changes), ranks = 2, steps = STEPS, eval_batches = 8,
    system = moe.system "raf_rows" {},
    optimizer = { name = "adamw", lr = 0.0005, beta2 = 0.99, weight_decay = 0.1 } }
  for i = 1, #r.moe[1] do
    local row = { i == 1 and name or "", layer_row(r, i) }
    if i == 1 then
      row[7], row[8] = late(function(step) return r.losses[step] end), r.eval_loss
      row[9] = r.peak_bytes / 2 ^ 20
    end
    rows[#rows + 1] = row
  end
end
print(("%d ranks, %d experts, top-2, AdamW, %d steps; means over the last %d"):format(2, EXPERTS,
  STEPS, LAST))
print(moe.table(rows, { "", "%d", "%.2f", "%.1f", "%.1f", "%.4f", "%.3f", "%.3f", "%.1f" }))
