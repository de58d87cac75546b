-- How far are predictions from published training steps? A file of published rows states model,
-- GPUs, layout and micro-batches of each. This recipe simulates the rows that have no tensor,
-- pipeline or context parallelism and a stated expert parallelism, and those of AWS that exchange
-- by NCCL, whose tensor and pipeline parallelism is divided out by hand (cut_by_hand). It prints
-- the predicted step, its parts and, where the file has it, the measured step beside.
--   moebench run --read FOLDER recipes/published_steps.lua
-- FOLDER has one or both of FILES, each { "rows": [ { id, model, hardware, precision, seq, mbs, ga,
-- ep, gpus, class, measured_ms, .. } ] }; mbs is the sequences of a micro-batch on a GPU, ga the
-- micro-batches of a step.
-- Micro-batches by hand: a step is ga - 1 times the forward and backward alone, then one with the
-- reduction of gradients under the backward and the update. Numbers are Megatron's, gradients in
-- bf16; exchanges are NCCL's all-to-alls, which block compute; kernels and host are those of the
-- stack `megatron`. What a row says of other dispatchers, exchanges under the compute of another
-- micro-batch and recorded graphs is not simulated: the column `ran` says it.
-- No constant is fitted to a row.
local moe = require "moe"

local FILES = { "inputs.json", "shared_rows.json" }
local CLASS, BY_HAND = "headline BF16", "AWS TP8"
-- GPUs by a part of the row's text, first match; with NVIDIA's dense bf16 peaks, for MFU.
local GPUS = { { "GB300", "gb300", 2500 }, { "GB200", "gb200", 2500 }, { "B300", "b300", 2250 },
  { "B200", "b200", 2250 }, { "H100", "h100", 989 } }
local CUT = { layers = 4, dense_layers = 1 }
-- DeepSeek-V2's config.json, cut as V3 is.
local V2 = { layers = 4, dense_layers = 1, hidden = 5120, heads = 128, q_rank = 1536, kv_rank = 512,
  nope = 128, rotary = 64, value_dim = 128, experts = 160, k = 6, expert_ffn = 1536,
  shared_ffn = 3072, ffn = 12288, vocab = 102400 }
local MODELS = {
  ["gpt-oss-120b"] = { "gpt_oss_120b", {} }, ["qwen3-30b-a3b"] = { "qwen3_30b_a3b", {},
    whole = { layers = 48, hidden = 2048, heads = 32, kv_heads = 4, k = 8, vocab = 151936 } },
  ["qwen3-235b-a22b"] = { "qwen3_235b_a22b", {},
    whole = { layers = 94, hidden = 4096, heads = 64, kv_heads = 4, k = 8, vocab = 151936 } },
  ["deepseek-v3 cut to 4 layers (1 dense)"] = { "deepseek_v3", CUT },
  ["deepseek-v2 cut to 4 layers (1 dense)"] = { "deepseek_v2_lite", V2 },
}
-- What runs once per step.
local UPDATES = { adamw = true, sgd = true }
local CLASSES = { "attention", "products", "experts", "others" }

local function class_of(kind)
  if kind:find "^attend" then return "attention" end
  if kind:find "^expert_linear" then return "experts" end
  return (kind:find "^linear" or kind == "gate") and "products" or "others"
end

-- Megatron-Bridge's recipes for its published tables sum gradients in bf16 (grad_reduce_in_fp32 =
-- False), others in f32, Megatron's default.
local function types_of(row)
  return row.id:find "^mbridge" and "megatron_bf16_reduce_bf16" or "megatron_bf16"
end

-- What a row says did not overlap does not: its gradients are reduced after the backward.
local function place_of(row)
  return (row.overlap or ""):find "^none" and "after" or "ready"
end

-- Returns the fields of what one GPU of a row with tensor parallelism computes, by the row's tp and
-- pp: an eighth of the heads and of the vocabulary for all tokens, the experts' rows of an eighth
-- of the tokens as an eighth of all tokens' choices, and the layers of the fullest stage, which
-- also gets embedding and head. Norms, gate and residuals are counted for all tokens.
local function cut_by_hand(row)
  local m = MODELS[row.model].whole
  return { layers = math.ceil(m.layers / row.pp), heads = m.heads / row.tp, k = m.k / row.tp,
    kv_heads = math.max(1, m.kv_heads / row.tp), vocab = m.vocab / row.tp }
end

-- Whether the row's tensor and pipeline parallelism is divided out by hand.
local function by_hand(row)
  local model = MODELS[row.model]
  return row.class == BY_HAND and row.dispatcher == "NCCL alltoall" and row.overlap == "off"
    and model and model.whole and model.whole.k % row.tp == 0
end

-- Returns the ms of a micro-batch in which the ranks of tensor parallelism gather and scatter
-- tokens around attention: a pair forward, and backward a pair and a gather for the weights.
local function token_exchanges(row, gpu, recompute)
  local cut, m = cut_by_hand(row), MODELS[row.model].whole
  local sizes = { cluster = moe.cluster[gpu] { nodes = 1 }, op = "all_gather", ranks = row.tp,
    bytes = row.seq * row.mbs * m.hidden * 2 }
  return cut.layers * (recompute and 7 or 5) * moe.op_time(sizes).ms
end

local function plan_of(row, gpu, place, recompute, micro_batches)
  local model, fields = unpack(MODELS[row.model])
  if by_hand(row) then fields = cut_by_hand(row) end
  local gpus = row.gpus / (row.pp or 1)
  local all = { seq = row.seq, batch_per_device = row.mbs, ep = row.ep, capacity = "none",
    dtypes = types_of(row), rows_bound = 1 }  -- every rank gets as many rows
  for key, value in pairs(fields) do all[key] = value end
  local per_node = gpu:find "^g" and 72 or 8
  return moe.plan { model = moe.model[model](all), optimizer = { name = "adamw" },
    cluster = moe.cluster[gpu] { nodes = math.max(1, gpus / per_node), stack = "megatron",
      devices_per_node = gpus < per_node and gpus or nil },
    grid = moe.grid { micro_batches = micro_batches },
    system = moe.system "megatron" { recompute = recompute,
      all_reduce = { lane = "comm_reduce", place = place, bucket_bytes = 80e6 } } }
end

-- Returns the ms of a forward and backward without reduction and update, and its parts.
local function micro_batch(plan)
  local parts, ms = { attention = 0, products = 0, experts = 0, others = 0 }, 0
  for _, span in ipairs(plan:spans()) do
    if span.lane == "compute" and not UPDATES[span.kind] then
      local class = class_of(span.kind)
      parts[class] = parts[class] + span.end_ms - span.begin_ms
      ms = math.max(ms, span.end_ms)
    end
  end
  local idle = ms
  for _, class in ipairs(CLASSES) do idle = idle - parts[class] end
  return ms, parts, idle
end

-- Returns the bytes in use at the peak of a step of several micro-batches.
local function peak_of(row, gpu, recompute)
  local memory = plan_of(row, gpu, place_of(row), recompute, 2):memory()
  return memory.peak_bytes - memory.arena_bytes + memory.liveness_bytes
end

local rows, errors = { { "row", "step", "measured", "ratio", "attention", "products", "experts",
  "others", "exchange, host", "host", "tokens/s", "TFLOP/s", "MFU", "GiB", "ran" } }, {}
for _, file in ipairs(FILES) do
  local there, data = pcall(moe.read_json, file)
  for _, row in ipairs(there and data.rows or {}) do
    local plain = (row.tp or 1) * (row.pp or 1) * (row.cp or 1) == 1
    local ga = row.ga or row.gbs and row.gbs / (row.gpus * (row.mbs or 1))
    local cut = by_hand(row)
    if cut or row.class == CLASS and plain and row.ep and ga and MODELS[row.model] then
      local gpu, peak
      for _, g in ipairs(GPUS) do
        if not gpu and row.hardware:find(g[1], 1, true) then gpu, peak = g[2], g[3] end
      end
      local recompute = row.recompute == "full" and "blocks" or nil
      if not cut and plan_of(row, gpu, place_of(row), nil, 2):simulate().oom then
        recompute = "blocks"
      end
      local last = plan_of(row, gpu, place_of(row), recompute)
      local alone, parts, idle = micro_batch(plan_of(row, gpu, "after", recompute))
      local sim = last:simulate()
      local tokens_ms = cut and token_exchanges(row, gpu, recompute) or 0
      local turns = ga + (row.pp or 1) - 1  -- those of micro-batches, and the pipeline's bubble
      local step = (turns - 1) * alone + sim.iteration_ms + turns * tokens_ms
      local function share(ms) return ("%.0f%%"):format(100 * ms / alone) end
      local tokens = row.seq * row.mbs * ga / step * 1e3 / (row.tp or 1) / (row.pp or 1)
      local name, fields = unpack(MODELS[row.model])
      local sized = { seq = row.seq, batch_per_device = 1 }
      for key, value in pairs(fields) do sized[key] = value end
      local tflops = tokens * 3 * moe.model[name](sized):flops {} / 1e12
      local ratio = row.measured_ms and step / row.measured_ms
      if ratio then errors[#errors + 1] = math.abs(ratio - 1) end
      rows[#rows + 1] = { row.id, ("%.0f ms"):format(step),
        ratio and ("%.0f"):format(row.measured_ms) or "", ratio and ("%.2f"):format(ratio) or "",
        share(parts.attention), share(parts.products), share(parts.experts), share(parts.others),
        share(idle), share(sim.host_bound_ms), ("%.0f"):format(tokens), ("%.0f"):format(tflops),
        ("%.0f%%"):format(100 * tflops / peak),
        cut and "" or ("%.1f"):format(peak_of(row, gpu, recompute) / 2 ^ 30),
        table.concat({ row.dispatcher or "", row.overlap and row.overlap ~= "off"
          and "overlap: " .. row.overlap or "", recompute and not cut and "blocks recomputed "
          .. "here, as it does not fit otherwise" or "" }, " ") }
    end
  end
end

print("Numbers: Megatron's, bf16 with master copy and moments in f32 (sharded), gradients in f32, "
  .. "of mbridge\nin bf16; no capacity, even routing; stack megatron. Parts are shares of a "
  .. "micro-batch; tokens/s, TFLOP/s\nand MFU per GPU, by 3 times the forward's operations per "
  .. "token and the data sheet's dense peak.\n")
print(moe.table(rows))
if #errors > 0 then
  local all = moe.values(errors)
  print(("\n%d rows with a measured step: error median %.1f%%, at most %.1f%%"):format(#errors,
    100 * all:median(), 100 * all:max()))
end
