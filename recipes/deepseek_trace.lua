-- How far are predicted kernels from those of a real step? DeepSeek published a trace of a forward
-- and a backward of four MoE layers of V3's training (deepseek-ai/profile-data): H800, 64 ranks,
-- 4,096 tokens per rank, products in fp8, balanced routing, 20 of 132 SMs for communication. Its
-- kernels are sorted into classes and stand beside those of the same layer here.
--   moebench run --read FOLDER recipes/deepseek_trace.lua
-- FOLDER has FILE. A kernel belongs to the region of host code that launched it, such as attn(B).
-- What runs at once on the two streams of compute shares the time. A class is predicted, from times
-- published or measured elsewhere and from data sheets, or fitted: a constant of its is from this
-- trace (scripts/moe/stacks/deepseek.lua). "in sight": its constants are published, but which of
-- them count was settled when the trace had been seen: SMS in place of 1.13, the factors below
-- (without them products are at 0.79 to 0.86), and that SwiGLU runs again in the backward
-- (DeepSeek-V3's report, section 3.3.3; 0.65 without it).
local moe = require "moe"

local FILE = "deepseek_v3_train_trace.json"
local LAYERS, WITHIN = 4, 0.15
-- Products have 112 of 132 SMs. It takes the place of the ratio of times inside a step to those
-- alone, which comes from the limit of power: fewer SMs draw less.
local SMS = 132 / 112
-- How much longer DeepSeek's kernels before DeepGEMM take, which the trace has: by DeepGEMM's first
-- README (February 2025, "speedup") medians of six products of 4,096 rows and of four of experts;
-- by its pull request 95 "~20%" for gradients of weights.
local OLD_DENSE, OLD_EXPERTS, OLD_DW = 1.1, 1.2, 1.2
-- Backward of attention over its forward: cuDNN's on H200, with what runs before and after it
-- (tests/bench/results/gpu-steps-2026-11-29-h200.json, 128 heads).
local BACKWARD = 4203 / 1280

-- The classes, what predicts them, and the kinds of ops in them here.
local CLASSES = {
  { "attention forward", "TensorRT-LLM on H100, all SMs", "attend" },
  { "attention backward", "that times cuDNN's ratio on H200", "attend_dx" },
  { "dense forward", "in sight: DeepGEMM on H100 times 1.1", "linear" },
  { "q_b, kv_b again", "in sight: the same" },
  { "dense dX", "in sight: the same", "linear_dx" },
  { "dense dW", "in sight: DeepGEMM on H800 times 1.2", "linear_dw" },
  { "experts forward", "in sight: DeepGEMM on H100 times 1.2", "expert_linear" },
  { "experts dX", "in sight: the same", "expert_linear_dx" },
  { "experts dW", "in sight: DeepGEMM on H800 times 1.2", "expert_linear_dw" },
  { "casts", "fitted: kernels, memory rate" },
  { "norms", "PyTorch's memory rate on H200", "rmsnorm", "rmsnorm_dx", "rmsnorm_dw" },
  { "rotary, heads", "data sheet's memory rate", "rope", "split_heads", "join_heads" },
  { "SwiGLU", "in sight: runs again; data sheet's rate", "silu_mul", "silu_mul_dx" },
  { "permutation", "data sheet's memory rate", "dispatch", "dispatch_dx", "combine", "combine_dx",
    "combine_dweight", "pack_slots" },
  { "gate", "fitted: kernels", "gate", "gate_logits", "gate_dlogits" },
  { "sums", "none: inside products and norms" },
  { "other", "none" },
}

-- Class, region or "", least number of blocks, parts of kernels' names. The first match counts.
local KERNELS = {
  { "attention forward", "", 0, "compute_attn" }, { "attention backward", "", 0, "FlashAttnBwd" },
  { "experts forward", "mlp(F)", 0, "m_grouped_fp8" }, { "experts dX", "", 0, "m_grouped_fp8" },
  { "dense dW", "attn(W)", 0, "fp8_dptp128c_acc" }, { "experts dW", "", 0, "fp8_dptp128c_acc" },
  { "dense forward", "attn(F)", 0, "fp8_ptp128c" }, { "dense forward", "mlp(F)", 0, "fp8_ptp128c" },
  { "dense dX", "", 0, "fp8_ptp128c" }, { "casts", "", 0, "swiglu_and_per_channel_cast" },
  { "SwiGLU", "", 0, "swiglu" }, { "casts", "", 0, "cast", "transpose" },
  { "norms", "", 0, "layer_norm" }, { "rotary, heads", "", 0, "rotary_kernel", "_copy_tensor" },
  { "permutation", "", 0, "expand_to_fused", "reduce_fused", "get_fused_map", "clean_and_count" },
  { "sums", "", 0, "FillFunctor<c10::BF", "add<c10::BF", "AUnaryFunctor<c10::BF",
    "ReduceOp<c10::BF" },
  { "rotary, heads", "attn(F)", 512, "direct_copy_kernel" },
  { "rotary, heads", "attn(B)", 0, "direct_copy_kernel" },
  { "gate", "attn(F)", 0, "" }, { "gate", "attn(B)", 0, "" }, { "other", "", 0, "" },
}
-- Kernels whose class only their order in a region tells. By class and region: the kernels of a
-- group, the class of some of them, and the places of these.
local ORDER = {
  ["experts dW mlp(W)"] = { 10, "dense dW", { [1] = true, [10] = true } },  -- of shared experts
  ["dense dX attn(B)"] = { 7, "q_b, kv_b again", { [2] = true, [3] = true } },
}

-- Adds us and a number of kernels to a class.
local function add(to, class, us, kernels)
  to[class] = to[class] or { us = 0, kernels = 0 }
  to[class].us, to[class].kernels = to[class].us + us, to[class].kernels + kernels
end

-- Returns the trace's kernels in the order of their start, with their regions.
local function read_kernels()
  local launches, regions, kernels = {}, {}, {}
  local there, trace = pcall(moe.read_json, FILE)
  if not there then print(("No %s in a folder of --read: nothing is measured.\n"):format(FILE)) end
  for _, e in ipairs(there and trace.traceEvents or {}) do
    if e.cat == "cuda_runtime" or e.cat == "cuda_driver" then
      launches[e.args.correlation] = e.ts
    elseif e.cat == "user_annotation" and e.name:find("(", 1, true) then
      regions[#regions + 1] = e
    elseif e.cat == "kernel" or e.cat == "gpu_memcpy" or e.cat == "gpu_memset" then
      kernels[#kernels + 1] = e
    end
  end
  for _, k in ipairs(kernels) do
    local at = launches[k.args.correlation] or -1
    for _, r in ipairs(regions) do
      if r.ts <= at and at < r.ts + r.dur then k.region = r.name end
    end
  end
  table.sort(kernels, function(a, b) return a.ts < b.ts end)
  return kernels
end

local function class_of(k, seen)
  local blocks = k.args.grid and k.args.grid[1] or 0
  for _, of in ipairs(KERNELS) do
    for i = 4, (of[2] == "" or of[2] == k.region) and blocks >= of[3] and #of or 0 do
      if k.name:find(of[i], 1, true) then
        local key = ("%s %s"):format(of[1], k.region)
        local order = ORDER[key]
        seen[key] = order and (seen[key] or 0) % order[1] + 1
        return order and order[3][seen[key]] and order[2] or of[1]
      end
    end
  end
end

-- Returns { us, kernels } by class: of compute, and of communication by the kernels' names.
local function measure(kernels)
  local compute, wire, seen, streams = {}, {}, {}, {}
  for _, k in ipairs(kernels) do
    if k.name:find "internode::dispatch" then streams[k.tid] = true end
  end
  for i, k in ipairs(kernels) do
    local us = k.dur
    for j = math.max(1, i - 30), math.min(#kernels, i + 30) do
      local o = kernels[j]
      if not streams[o.tid] and o.tid ~= k.tid then
        us = us - math.max(0, math.min(k.ts + k.dur, o.ts + o.dur) - math.max(k.ts, o.ts)) / 2
      end
    end
    if streams[k.tid] then
      add(wire, k.name:match "internode::([%a_]+)" or "others", k.dur, 1)
    else
      add(compute, class_of(k, seen), us, 1)
    end
  end
  return compute, wire
end

-- Returns the ops of an MoE layer: name -> { us, kind }.
local function planned(stack, launch_us)
  local device = moe.merged(moe.cluster.h800({ nodes = 8 }).device,
    { step_ratio = SMS, attention_backward = BACKWARD, launch_us = launch_us })
  local plan = moe.plan { cluster = moe.cluster.h800 { nodes = 8, device = device, stack = stack },
    model = moe.model.deepseek_v3 { layers = 1, dense_layers = 0, seq = 4096, batch_per_device = 1,
      ep = 64, capacity = "none", rows_bound = 1, dtypes = "megatron_fp8_block" },
    optimizer = { name = "adamw" }, system = moe.system "megatron" {} }
  local ops = {}
  for _, span in ipairs(plan:spans()) do
    if span.op:find "^b0%." then
      ops[span.op] = { us = 1e3 * (span.end_ms - span.begin_ms), kind = span.kind }
    end
  end
  return ops
end

-- Returns { us, kernels } by class of one layer. What the stack adds to products is casts.
local function predict()
  local own, all, counted = planned(false, 0), planned("deepseek", 0), planned("deepseek", 1)
  local classes, found = {}, {}
  for _, class in ipairs(CLASSES) do
    for i = 3, #class do classes[class[i]] = class[1] end
  end
  for name, op in pairs(own) do
    local class = name:find "%.logits" and "gate" or classes[op.kind]
    if class then
      local kernels = math.floor(counted[name].us - all[name].us + 0.5)
      local again = (op.kind == "rmsnorm" or op.kind == "silu_mul") and class
        or (name:find "%.q_b$" or name:find "%.kv_b$") and "q_b, kv_b again"
      local product = op.kind:find "linear" or op.kind:find "attend"
      local casts = product and class ~= "gate" and "casts" or class
      local own_us = op.us * (class:find "dW" and OLD_DW or class:find "dense" and OLD_DENSE
        or class:find "experts" and OLD_EXPERTS or 1)
      -- Run again in the backward: norms, q_b, kv_b, SwiGLU (DeepSeek-V3's report, 3.2.3, 3.3.3).
      for _, to in ipairs { class, again or nil } do
        add(found, to, own_us, 1)
        add(found, casts, all[name].us - op.us, kernels - 1)
      end
    end
  end
  return found
end

local NONE = { us = 0, kernels = 0 }
local compute, wire = measure(read_kernels())
local found, sums, good, free = predict(), { us = 0, kernels = 0 }, 0, 0
local here_sums = { us = 0, kernels = 0 }
local rows = { { "class", "measured", "kernels", "predicted", "kernels", "ratio", "from" } }
local function row(name, there, here, from)
  local ratio = there.us > 0 and here.us > 0 and here.us / there.us
  local close = ratio and math.abs(ratio - 1) <= WITHIN
  rows[#rows + 1] = { name, there.us / 1e3, there.kernels, here.us / 1e3, here.kernels,
    ratio and ("%.2f%s"):format(ratio, close and "" or " !") or "", from }
  return close and there.us or 0
end
for _, class in ipairs(CLASSES) do
  local there, here = compute[class[1]] or NONE, found[class[1]] or NONE
  there = { us = there.us / LAYERS, kernels = there.kernels / LAYERS }
  for key, sum in pairs(sums) do
    sums[key], here_sums[key] = sum + there[key], here_sums[key] + here[key]
  end
  local close = row(class[1], there, here, class[2])
  good = good + close
  if not (class[2]:find "^fitted" or class[2]:find "^in sight") then free = free + close end
end
row("compute", sums, here_sums, "")
print("An MoE layer of DeepSeek-V3, forward and backward, on one of 64 H800; kernels without gaps; "
  .. "!: beyond 15%\n")
print(moe.table(rows, { "", "%.2f ms", "%.0f", "%.2f ms", "%.0f" }))
print(("\n%.0f%% of the measured compute is in classes within 15%%, %.0f%% in those without a "
  .. "constant from the trace or in sight of it"):format(100 * good / math.max(sums.us, 1),
  100 * free / math.max(sums.us, 1)))
for _, name in ipairs { "dispatch", "combine" } do
  local there = wire[name] or { us = 0, kernels = 1 }
  local time = moe.op_time { cluster = moe.cluster.h100 { nodes = 8 }, op = name, nodes = 8,
    sms = 20, tokens = 4096, hidden = 7168, topk = 8 }
  print(("%s, with its waits: %.2f ms; %.2f ms in DeepEP's table of H100"):format(name,
    there.us / there.kernels / 1e3, time.ms))
end
