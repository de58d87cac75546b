-- What do the papers' systems make of open models' architectures? Mixtral 8x7B and DeepSeek-V3: at
-- full size simulated on 64 and 256 H200 GPUs with sharded optimizer states and recomputed
-- activations (recipes/memory.lua says what these do), and cut to the size of two CPU ranks, where
-- they train over an emulated link with the prediction beside. No choice is dropped, so routing and
-- losses are the same in all systems; all send, compute and store only real rows. A device has room
-- for rows_bound times the rows of its own tokens; routing that needs more is reported.
local moe = require "moe"
local pass = moe.pass

local BUCKETS = { lane = "comm_reduce", place = "ready", bucket_bytes = 25 * 2 ^ 20 }

-- The systems. all_ranks: whether the experts are spread over all ranks (no `ep`), which rounds and
-- placements need. t: fields that all systems have.
local function systems(all_ranks, t)
  local function system(name, passes)
    return moe.system(name)(moe.merged(passes, t))
  end
  local function rows(name, ...)
    return system(name, { pass.irregular_a2a {}, pass.used_rows {}, all_reduce = BUCKETS, ... })
  end
  local list = {
    system("raf_rows", {}), system("lancet", {}),
    rows("tutel_rows", moe.best(pass.capacity_pipeline, { degree = { 1, 2, 4, 8 } })),
    rows("pipemoe_rows", pass.pipemoe {}),
    rows("lina_rows", pass.priority {}, pass.chunked {}, pass.micro_ops {}),
  }
  if all_ranks then
    list[6], list[7] = rows("fastermoe_rows", pass.fastermoe_pipeline {}), system("prophet", {})
  end
  return list
end

local MODELS = {
  { name = "mixtral_8x7b", ep = 8, -- it has 8 experts
    small = { layers = 4, hidden = 128, heads = 4, kv_heads = 2, expert_ffn = 256 } },
  { name = "deepseek_v3",
    small = { layers = 4, hidden = 128, heads = 4, q_rank = 48, kv_rank = 32, nope = 24, rotary = 8,
      value_dim = 24, expert_ffn = 64, shared_ffn = 64, ffn = 256, dense_layers = 1, experts = 16,
      k = 4, router = { groups = 4, top_groups = 2 } } },
}

for _, m in ipairs(MODELS) do
  moe.run(moe.experiment {
    name = m.name, title = m.name .. ", one sequence of 4,096 tokens per GPU, AdamW",
    over = { nodes = { 8, 32 } },
    case = function(p) return {
      model = moe.model[m.name] { seq = 4096, batch_per_device = 1, ep = m.ep,
        rows_bound = 2 },
      cluster = moe.cluster.h200 { nodes = p.nodes }, optimizer = { name = "adamw" },
      systems = systems(not m.ep, { zero = 1, recompute = "blocks" }) } end,
    run = { "simulate" },
  })
  m.small.vocab, m.small.seq, m.small.batch_per_device = 256, 128, 8
  moe.run(moe.experiment { name = m.name .. "_small", model = moe.model[m.name](m.small),
    systems = systems(true, {}), optimizer = { lr = 0.02, momentum = 0.9 },
    run = { { "cpu", ranks = 2, steps = 10, link = { bytes_per_s = 1e8, latency_us = 20 } } } })
end
