-- How far are predictions from published training steps? A file of published rows states model,
-- GPUs, grid, micro-batches, precision, dispatcher, overlap and recomputation of each. This recipe
-- plans and simulates every row whose model it knows, as the row says, and prints the predicted
-- step, its parts and, where the file has it, the measured step beside; then which rows could not
-- be said, and why.
--   moebench run --trust --read FOLDER recipes/published_steps.lua [--set only=TEXT]
-- (plans of 32 pipeline ranks are larger than the 512 MiB of a recipe that is not trusted).
-- FOLDER has one or both of FILES, each { "rows": [ { id, model, hardware, gpus, precision, seq,
-- mbs, ga or gbs, tp, pp, vp, cp, ep, layers, pp_layout, dispatcher, overlap, recompute, class,
-- needs, measured_ms } ] }; mbs is the sequences of a micro-batch, ga the micro-batches of a step,
-- vp the chunks of layers of a pipeline rank, layers the number of blocks where it is not the
-- model's. only: rows whose id or class has this text.
-- Steps of more than 8 micro-batches are composed of turns (detail = "turns"). Kernels and host are
-- those of the stack `megatron`, numbers Megatron's. A dispatcher that a row does not state is
-- NCCL's all-to-all; recomputed modules that it does not state are the first of FITTING with which
-- the step fits, if any does; where exchanges run under another micro-batch's compute on pipeline
-- ranks and vp is not stated, it is 2, the fewest that Megatron-LM takes. What a row states and is
-- not simulated stands in the column `not simulated`. No constant is fitted to a row.
local moe = require "moe"

local FILES = { "inputs.json", "shared_rows.json" }
-- GPUs by a part of the row's text, first match; with NVIDIA's dense bf16 peaks, for MFU.
local GPUS = { { "GB300", "gb300", 2500 }, { "GB200", "gb200", 2500 }, { "B300", "b300", 2250 },
  { "B200", "b200", 2250 }, { "H100", "h100", 989 }, { "H800", "h800", 989 } }
local CUT = { layers = 4, dense_layers = 1 }
-- DeepSeek-V2's config.json, cut as V3 is.
local V2 = { layers = 4, dense_layers = 1, hidden = 5120, heads = 128, q_rank = 1536, kv_rank = 512,
  nope = 128, rotary = 64, value_dim = 128, experts = 160, k = 6, expert_ffn = 1536,
  shared_ffn = 3072, ffn = 12288, vocab = 102400 }
local MODELS = {
  ["gpt-oss-20b"] = { "gpt_oss_20b" }, ["gpt-oss-120b"] = { "gpt_oss_120b" },
  ["qwen3-30b-a3b"] = { "qwen3_30b_a3b" }, ["qwen3-235b-a22b"] = { "qwen3_235b_a22b" },
  ["mixtral-8x22b"] = { "mixtral_8x22b" }, ["moonlight-16b-a3b"] = { "moonlight_16b_a3b" },
  ["deepseek-v3"] = { "deepseek_v3" }, ["kimi-k2"] = { "kimi_k2" },
  ["deepseek-v3 cut to 4 layers (1 dense)"] = { "deepseek_v3", CUT },
  ["deepseek-v2 cut to 4 layers (1 dense)"] = { "deepseek_v2_lite", V2 },
}
-- What a row may need (its field `needs`) that plans here do not have.
local MISSING = { FSDP = true, ["CUDA graphs"] = true, ["ladder (needs all)"] = true }
-- What may be recomputed, from little to all; what Megatron's modules are here (false: they cannot
-- be recomputed); and texts that state no modules.
local FITTING = { "norms+activations", "norms+experts", "blocks" }
local MODULES = { full = "blocks", layernorm = "norms", norm = "norms", RMSNorm = "norms",
  act = "activations", moe_act = "activations", moe = "experts", selective = "attention",
  core_attn = "attention", shared_expert = false,
  mlp = false, up_proj = false, mla_up_proj = false, ["MLA up-projection"] = false }
local UNSTATED = { ["recipe default"] = true, ["not stated"] = true }
local NONE = { off = true, none = true }
-- Rows that are left out: other work than even routing without drops, or numbers without a rate.
local LEFT_OUT = { "natural routing", "token drop", "other architecture", "AMD", "layout missing" }

local function has(text, part) return text ~= nil and text:find(part, 1, true) ~= nil end

-- Returns the GPU's cluster and peak, or nil.
local function gpu_of(row)
  for _, gpu in ipairs(GPUS) do
    if has(row.hardware, gpu[1]) then return gpu[2], gpu[3] end
  end
end

-- Megatron-Bridge's recipes for its published tables sum gradients in bf16 (grad_reduce_in_fp32 =
-- False), others in f32, Megatron's default. Scales per block stand for those of MXFP8, which are
-- per 32 numbers.
local function types_of(row)
  if has(row.precision, "FP8-CS") or row.precision == "FP8" then return "megatron_fp8" end
  if has(row.precision, "FP8") then return "megatron_fp8_block" end
  return row.id:find "^mbridge" and "megatron_bf16_reduce_bf16" or "megatron_bf16"
end

-- Returns the pass of the modules that a row recomputes, nil for none, whether it states them, and
-- those that are not simulated.
local function recomputed(row)
  local parts, others = {}, {}
  if not row.recompute or UNSTATED[row.recompute] then return nil, false, others end
  for word in (NONE[row.recompute] and "" or row.recompute):gmatch "[^,+]+" do
    word = word:match "^%s*(.-)%s*$"
    local part = MODULES[word]
    if part == nil then error(("recompute '%s' is not known"):format(word), 0) end
    local into = part and parts or others
    into[#into + 1] = part or word .. " recomputed"
  end
  table.sort(parts, function(a, b) return a == "norms" and b ~= "norms" end)
  return parts[1] and table.concat(parts, "+") or nil, true, others
end

-- Returns whether a row's exchanges run under the compute of another micro-batch.
local function hides(row)
  local text = row.overlap or ""
  return text == "on" or text == "DualPipe" or has(text, "EP overlap") or has(text, "A2A overlap")
end

-- Returns the chunks of layers of a pipeline rank, and what is to be said of them.
local function chunks_of(row)
  local dual = row.overlap == "DualPipe"
  if row.vp or dual or (row.pp or 1) == 1 or not hides(row) then return row.vp or 1 end
  return 2, "vp is not stated: 2"
end

local function stages_of(row, pp)
  local stages, hidden = {}, hides(row)
  local by = row.dispatcher or table.concat(row.needs or {}, ","):match "%f[%a]HybridEP%f[^%a]"
  if has(by, "DeepEP") then
    stages[1] = moe.dispatcher.deepep_v1 { wire = has(by, "FP8 dispatch") and "fp8" or "bf16" }
  elseif has(by, "HybridEP") then
    stages[1] = moe.dispatcher.hybridep { wire = "bf16" }
  end
  if hidden then
    -- The passes of the system `megatron`, whose exchanges otherwise block compute.
    for _, pass in ipairs { moe.pass.irregular_a2a {}, moe.pass.used_rows {},
        moe.pass.weights_at_experts {}, moe.pass.zero {}, moe.pass.hide_a2a { search = false,
          delay_dw = has(row.overlap, "delay_wgrad") or has(row.overlap, ", delayed wgrad")
            and not has(row.overlap, "wgrad off") } } do
      stages[#stages + 1] = pass
    end
    stages[#stages + 1] = pp > 1 and row.overlap == "DualPipe" and moe.pipeline.dualpipe {}
      or moe.pipeline.combined_1f1b { chunks = pp > 1 and chunks_of(row) or 1 }
  elseif pp > 1 and (row.vp or 1) > 1 then
    stages[#stages + 1] = moe.pipeline.interleaved { chunks = row.vp }
  elseif pp > 1 then
    stages[#stages + 1] = moe.pipeline["1f1b"] {}
  end
  return stages
end

-- Returns the layout of stages where they cannot be equal: embedding and loss count as blocks if
-- that makes them equal (Megatron's account_for_embedding_in_pipeline_split and .._loss_..), else
-- the last ones get fewer. mtp: whether there is an MTP layer, in the last one.
local function layout_of(row, blocks, mtp)
  if row.pp_layout then return row.pp_layout:match "^%S+" end
  local stages = (row.pp or 1) * chunks_of(row)
  if stages == 1 or blocks % stages == 0 then return nil end
  local counted = (blocks + 2) % stages == 0
  local each, left, cells = math.ceil((blocks + (counted and 2 or 0)) / stages), blocks, {}
  for i = 1, stages do
    local n = math.min(left, each - (counted and (i == 1 or i == stages) and 1 or 0))
    cells[i], left = ("t"):rep(n), left - n
  end
  return "E" .. table.concat(cells, "|") .. (mtp and "m" or "") .. "L"
end

-- part: a plan of the layers of one pipeline rank alone, as if there were no others.
local function plan_of(row, gpu, micro_batches, recompute, part)
  local name, fields = unpack(MODELS[row.model])
  local all = moe.merged({ seq = row.seq, batch_per_device = row.mbs, capacity = "none",
    dtypes = types_of(row), layers = row.layers, rows_bound = 1 }, fields or {})
  for _, need in ipairs(row.needs or {}) do
    if need == "MTP" then all.mtp_layers = 1 end
  end
  -- What a row says of overlap "none" holds for its gradients: they are reduced after the backward.
  local pp, gpus, model = row.pp or 1, row.gpus, moe.model[name](all)
  if part then
    all.layers, all.mtp_layers = math.ceil(model.layers / pp), nil
    if all.dense_layers then all.dense_layers = math.min(all.dense_layers, all.layers - 1) end
    pp, gpus, model = 1, gpus / pp, moe.model[name](all)
  end
  -- Of a rack's 72 GPUs the published layouts use 64.
  local per_node = math.min(gpus, gpu:find "^g" and 64 or 8)
  local place = (row.overlap or ""):find "^none" and "after" or "ready"
  local stages = stages_of(row, pp)
  stages.recompute = recompute
  stages.all_reduce = { lane = "comm_reduce", place = place, bucket_bytes = 80e6 }
  return moe.plan { model = model, optimizer = { name = "adamw" },
    cluster = moe.cluster[gpu] { nodes = gpus / per_node, devices_per_node = per_node,
      nics_per_node = gpu:find "^g" and per_node or nil,
      stack = has(row.not_stated, "permute_fusion false") and "megatron_unfused" or "megatron" },
    grid = moe.grid { tp = row.tp, pp = pp, cp = row.cp, ep = row.ep,
      micro_batches = micro_batches,
      layout = pp > 1 and layout_of(row, model.layers, all.mtp_layers) or nil },
    detail = micro_batches > 8 and "turns" or nil, system = moe.system "megatron" (stages) }
end

-- Returns the simulated step. On one pipeline rank each micro-batch but the first and last takes
-- the same time, so steps of 4 and 8 give those of more.
local function step_of(row, gpu, micro_batches, recompute)
  if (row.pp or 1) > 1 or micro_batches <= 8 then
    local sim = plan_of(row, gpu, micro_batches, recompute):simulate()
    return sim, sim.iteration_ms
  end
  local sim = plan_of(row, gpu, 8, recompute):simulate()
  local of_four = plan_of(row, gpu, 4, recompute):simulate().iteration_ms
  return sim, sim.iteration_ms + (micro_batches - 8) / 4 * (sim.iteration_ms - of_four)
end

-- Returns why a row is not simulated, or nil.
local function left_out(row)
  for _, class in ipairs(LEFT_OUT) do
    if row.class == class then return class end
  end
  if not MODELS[row.model] then return "a model that is not known by name" end
  if not gpu_of(row) then return "a GPU without times" end
  if has(row.precision, "NVFP4") then return "NVFP4" end
  if not (row.gpus and row.mbs and row.seq and tonumber(row.ep)) then return "no whole layout" end
end

-- Returns the shares of a rank's busy time by class, and the host's share of the step, of the
-- layers of a pipeline rank.
local function shares_of(row, gpu, recompute)
  local plan = plan_of(row, gpu, 2, recompute, true)
  local parts, all = { attention = 0, products = 0, experts = 0, exchange = 0, others = 0 }, 0
  for _, span in ipairs(plan:spans()) do
    local ms = span.end_ms - span.begin_ms
    local class = span.kind:find "^attend" and "attention"
      or span.kind:find "^expert_linear" and "experts"
      or (span.kind:find "^linear" or span.kind == "gate_logits") and "products"
      or (span.kind == "all_to_all" or span.kind:find "_rows$" and span.lane:find "^comm")
        and "exchange" or span.lane:find "^compute" and "others"
    if class then parts[class], all = parts[class] + ms, all + ms end
  end
  for class, ms in pairs(parts) do parts[class] = 100 * ms / all end
  local sim = plan:simulate()
  return parts, 100 * sim.host_bound_ms / sim.iteration_ms
end

local rows = { { "row", "step", "measured", "ratio", "attention", "products", "experts", "exchange",
  "others", "host", "tokens/s", "MFU", "GiB", "recomputed", "not simulated" } }
local reasons, errors, of_all_simulated = {}, {}, {}

local function predict(row)
  local gpu, peak = gpu_of(row)
  local ga = row.ga or row.gbs * (row.tp or 1) * (row.pp or 1) * (row.cp or 1) / row.gpus / row.mbs
  local missing = {}
  for _, need in ipairs(row.needs or {}) do
    if MISSING[need] then missing[#missing + 1] = need end
  end
  local recompute, stated, others = recomputed(row)
  for _, other in ipairs(others) do missing[#missing + 1] = other end
  missing[#missing + 1] = select(2, chunks_of(row))
  if has(row.overlap, "offloading") then missing[#missing + 1] = "offloading" end
  local sim, ms = step_of(row, gpu, ga, recompute)
  for _, more in ipairs(stated and {} or FITTING) do
    if sim.oom then
      recompute = more
      sim, ms = step_of(row, gpu, ga, recompute)
    end
  end
  if sim.oom then missing[#missing + 1] = "does not fit" end
  local parts, host = shares_of(row, gpu, recompute)
  local tokens = row.seq * row.mbs * ga / ms * 1e3 / (row.tp or 1) / (row.pp or 1)
    / (row.cp or 1)
  local name, fields = unpack(MODELS[row.model])
  local sized = moe.merged({ seq = row.seq, batch_per_device = 1 }, fields or {})
  local tflops = tokens * 3 * moe.model[name](sized):flops {} / 1e12
  local ratio = row.measured_ms and ms / row.measured_ms
  if ratio then
    errors[#errors + 1] = math.abs(ratio - 1)
    if not missing[1] then of_all_simulated[#of_all_simulated + 1] = math.abs(ratio - 1) end
  end
  rows[#rows + 1] = { row.id, ms, ratio and row.measured_ms or "", ratio or "", parts.attention,
    parts.products, parts.experts, parts.exchange, parts.others, host, tokens,
    100 * tflops / peak, sim.peak_bytes and sim.peak_bytes / 2 ^ 30 or "", recompute or "",
    table.concat(missing, "; ") }
end

local set = moe.options { only = "" }
for _, file in ipairs(FILES) do
  local there, data = pcall(moe.read_json, file)
  for _, row in ipairs(there and data.rows or {}) do
    if has(row.id .. " " .. (row.class or ""), set.only) then
      local why = left_out(row)
      if not why then
        local ok, message = pcall(predict, row)
        why = not ok and tostring(message.message or message):gsub("^%S+:%d+: ", "")
        if why then print(("%s: %s"):format(row.id, why)) end
      end
      if why then reasons[why] = (reasons[why] or 0) + 1 end
    end
  end
end

print("Numbers: Megatron's; no capacity, even routing; stack megatron; an unstated dispatcher is "
  .. "NCCL's\nall-to-all. Parts are shares of a rank's compute and exchanges; tokens/s and MFU per "
  .. "GPU, by 3 times the\nforward's operations per token and the data sheet's dense bf16 peak.\n")
print(moe.table(rows, { "", "%.0f ms", "%.0f", "%.2f", "%.0f%%", "%.0f%%", "%.0f%%", "%.0f%%",
  "%.0f%%", "%.0f%%", "%.0f", "%.0f%%", "%.1f" }))
for why, n in pairs(reasons) do print(("%d rows are left out: %s"):format(n, why)) end
for what, list in pairs { ["measured"] = errors, ["measured and wholly simulated"] =
    of_all_simulated } do
  if #list > 0 then
    local all = moe.values(list)
    print(("%d rows %s: error median %.1f%%, at most %.1f%%"):format(#list, what,
      100 * all:median(), 100 * all:max()))
  end
end
