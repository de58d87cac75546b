-- config.json of Hugging Face -> fields of moe.model.decoder, and where the tensors of a checkpoint
-- are. One entry per model_type: fields(c) returns the fields that differ from those of all, where
-- c is a view that checks what is read of the config; `tensors` has the names of tensors that
-- differ. A part that does not exist here is refused by name.
local core = require "moe.core"
local errors = require "moe.base.errors"
local open_models = require "moe.models.open"
local schema = require "moe.base.schema"

local M = {}

-- In names, {i} is the block and %d the expert.
local function block(name) return "model.layers.{i}." .. name end

local function gated(path)
  return { names = { block(path .. ".gate_proj.weight"), block(path .. ".up_proj.weight") } }
end

local function one(name) return { names = { name } } end

local function merged(...)
  local out = {}
  for _, t in ipairs { ... } do
    for k, v in pairs(t) do out[k] = v end
  end
  return out
end

-- The names that most checkpoints share.
local COMMON = {
  wte = one "model.embed_tokens.weight", ["lnf.w"] = one "model.norm.weight",
  ["head.w"] = one "lm_head.weight",
  ["ln1.w"] = one(block "input_layernorm.weight"),
  ["ln2.w"] = one(block "post_attention_layernorm.weight"),
  ["attn.sinks"] = one(block "self_attn.sinks"),
  ["fc1.w"] = gated "mlp", ["fc2.w"] = one(block "mlp.down_proj.weight"),
  ["shared.fc1.w"] = gated "mlp.shared_experts",
  ["shared.fc2.w"] = one(block "mlp.shared_experts.down_proj.weight"),
  ["gate.w"] = one(block "mlp.gate.weight"),
  ["gate.bias"] = one(block "mlp.gate.e_score_correction_bias"),
  ["ex.fc1.w"] = gated "mlp.experts.%d",
  ["ex.fc2.w"] = one(block "mlp.experts.%d.down_proj.weight"),
}
for ours, theirs in pairs { ["attn.q"] = "q_proj", ["attn.k"] = "k_proj", ["attn.v"] = "v_proj",
    ["attn.out"] = "o_proj", ["attn.q_norm"] = "q_norm", ["attn.k_norm"] = "k_norm",
    ["attn.q_a"] = "q_a_proj", ["attn.q_a_norm"] = "q_a_layernorm", ["attn.q_b"] = "q_b_proj",
    ["attn.kv_a"] = "kv_a_proj_with_mqa", ["attn.kv_a_norm"] = "kv_a_layernorm",
    ["attn.kv_b"] = "kv_b_proj" } do
  COMMON[ours .. ".w"] = one(block("self_attn." .. theirs .. ".weight"))
  COMMON[ours .. ".b"] = one(block("self_attn." .. theirs .. ".bias"))
end

-- The experts of Mixtral and MiniMax-M2.
local SPARSE = {
  ["gate.w"] = one(block "block_sparse_moe.gate.weight"),
  ["gate.bias"] = one(block "block_sparse_moe.e_score_correction_bias"),
  ["ex.fc1.w"] = { names = { block "block_sparse_moe.experts.%d.w1.weight",
    block "block_sparse_moe.experts.%d.w3.weight" } },
  ["ex.fc2.w"] = one(block "block_sparse_moe.experts.%d.w2.weight"),
}

-- What the keys of a config.json are in JSON; those that do not stand here are numbers.
local KINDS = { model_type = "string", hidden_act = "string", topk_method = "string",
  rope_type = "string", type = "string", layer_types = "table", mlp_only_layers = "table",
  rope_parameters = "table", rope_scaling = "table", full_attention = "table",
  sliding_attention = "table", chunked_attention = "table" }
for _, key in ipairs { "attention_bias", "norm_topk_prob", "output_router_logits", "qkv_bias",
    "rope_interleave", "tie_word_embeddings", "truncate", "use_qk_norm", "use_sliding_window" } do
  KINDS[key] = "boolean"
end

-- Returns a view of a config in which a value of another kind is the user's error, as is a table in
-- it. A list with the same number for each block is that number. what, at: as in M.fields.
local function checked(config, what, at)
  return setmetatable({}, { what = what, at = at, config = config, __index = function(_, key)
    local value, kind = config[key], KINDS[key] or "number"
    if kind == "number" and type(value) == "table" and #value > 0 then
      for _, x in ipairs(value) do
        if x ~= value[1] then
          errors.user(("%s: %s: a number of its own per block is not built"):format(what, key), at)
        end
      end
      value = value[1]
    end
    if value ~= nil and type(value) ~= kind then
      schema.refuse(("%s: %s"):format(what, key), value, "a " .. kind, at)
    end
    return kind == "table" and value and #value == 0 and checked(value, what, at) or value
  end })
end

local known = {}  -- keys of the configs of published models
for _, config in pairs(open_models) do
  for key in pairs(config) do known[key] = true end
end

--- Returns a text for the error on a key that a config lacks, if it may be there misspelt; else "".
function M.misspelt(config, key)
  local unknown = {}
  for _, name in ipairs(schema.keys_of(config)) do
    if not known[name] then unknown[#unknown + 1] = name end
  end
  local near = core.nearest(key, unknown)
  return near ~= "" and ("; is it misspelt as '%s'?"):format(near) or ""
end

-- Returns the value of `key`, or of the other name that it may have. The config must have one.
local function need(c, key, other)
  if c[key] ~= nil then return c[key] end
  if other and c[other] ~= nil then return c[other] end
  local mt = getmetatable(c)
  errors.user(("%s: %s: is missing%s"):format(mt.what, key, M.misspelt(mt.config, key)), mt.at)
end

-- Returns moe_every and the number of dense first blocks of the Qwen family.
local function qwen_blocks(c)
  if #(c.mlp_only_layers or {}) > 0 then
    return nil, "mlp_only_layers: single dense blocks are not built"
  end
  return { moe_every = c.decoder_sparse_step or 1, ffn = c.intermediate_size,
    expert_ffn = need(c, "moe_intermediate_size"),
    experts = need(c, "num_experts", "num_local_experts") }
end

-- Fields of the routers of DeepSeek-V3 and those after it.
local function sigmoid_router(c)
  return { choice_bias = true, router = { scores = "sigmoid",
    weight = c.norm_topk_prob ~= false and "renorm" or "prob",
    scale = c.routed_scaling_factor or 1, groups = c.n_group or 1, top_groups = c.topk_group or 1,
    group_score = "top2" } }
end

local function softmax_router(renorm)
  return { scores = "softmax", weight = renorm and "renorm" or "prob" }
end

local function deepseek(c)
  local rope = c.rope_parameters or c.rope_scaling or {}
  local head, scale = need(c, "qk_nope_head_dim") + need(c, "qk_rope_head_dim"), 0
  local factor, all_dim = rope.factor or 1, rope.mscale_all_dim or 0
  if (rope.rope_type or rope.type) == "yarn" and all_dim > 0 and factor > 1 then
    local mscale = 0.1 * all_dim * math.log(factor) + 1
    scale = mscale * mscale / math.sqrt(head)
  end
  return { dense_layers = c.first_k_dense_replace, ffn = c.intermediate_size,
    moe_every = c.moe_layer_freq or 1, expert_ffn = need(c, "moe_intermediate_size"),
    experts = need(c, "n_routed_experts"),
    shared_ffn = (c.n_shared_experts or 0) * need(c, "moe_intermediate_size"),
    kv_heads = false, head_dim = false, kv_rank = need(c, "kv_lora_rank"),
    q_rank = c.q_lora_rank or 0, nope = c.qk_nope_head_dim, rotary = c.qk_rope_head_dim,
    value_dim = need(c, "v_head_dim"), attention_scale = scale,
    rope_form = c.rope_interleave == false and "halves" or "interleaved" }
end

M.TYPES = {
  mixtral = {
    fields = function(c)
      return { expert_ffn = need(c, "intermediate_size"), experts = need(c, "num_local_experts"),
        window = c.sliding_window or 0, router = softmax_router(true) }
    end,
    tensors = SPARSE,
  },
  qwen2_moe = {
    fields = function(c)
      local own, why = qwen_blocks(c)
      if not own then return nil, why end
      if c.use_sliding_window then return nil, "use_sliding_window: is not built" end
      return merged(own, { qkv_bias = c.qkv_bias ~= false, shared_gate = true,
        shared_ffn = c.shared_expert_intermediate_size,
        router = softmax_router(c.norm_topk_prob) })
    end,
    tensors = { ["shared.fc1.w"] = gated "mlp.shared_expert",
      ["shared.fc2.w"] = one(block "mlp.shared_expert.down_proj.weight"),
      ["shared.gate.w"] = one(block "mlp.shared_expert_gate.weight") },
  },
  qwen3_moe = {
    fields = function(c)
      local own, why = qwen_blocks(c)
      if not own then return nil, why end
      if c.use_sliding_window then return nil, "use_sliding_window: is not built" end
      return merged(own, { qkv_bias = c.attention_bias or false,
        out_bias = c.attention_bias or false, qk_norm = "head",
        router = softmax_router(c.norm_topk_prob) })
    end,
  },
  olmoe = {
    fields = function(c)
      if c.clip_qkv then return nil, "clip_qkv: is not built" end
      return { expert_ffn = need(c, "intermediate_size"), experts = need(c, "num_experts"),
        qkv_bias = c.attention_bias or false, out_bias = c.attention_bias or false, qk_norm = "row",
        router = softmax_router(c.norm_topk_prob) }
    end,
  },
  deepseek_v2 = {
    fields = function(c)
      if c.attention_bias then return nil, "attention_bias: latent attention has no biases here" end
      local limited = c.topk_method == "group_limited_greedy"
      -- transformers ignores norm_topk_prob, which is false in all published models.
      return merged(deepseek(c), { router = { scores = "softmax", weight = "prob",
        scale = c.routed_scaling_factor or 1, groups = limited and c.n_group or 1,
        top_groups = limited and c.topk_group or 1,
        group_score = "max" } })
    end,
  },
  deepseek_v3 = {
    fields = function(c)
      if c.attention_bias then return nil, "attention_bias: latent attention has no biases here" end
      return merged(deepseek(c), sigmoid_router(c))
    end,
  },
  glm4_moe = {
    fields = function(c)
      return merged(sigmoid_router(c), { dense_layers = c.first_k_dense_replace,
        ffn = c.intermediate_size, expert_ffn = need(c, "moe_intermediate_size"),
        experts = need(c, "n_routed_experts"),
        shared_ffn = (c.n_shared_experts or 0) * need(c, "moe_intermediate_size"),
        qkv_bias = c.attention_bias or false, qk_norm = c.use_qk_norm and "head" or "none" })
    end,
  },
  dots1 = {
    fields = function(c)
      for _, kind in ipairs(c.layer_types or {}) do
        if kind ~= "full_attention" then return nil, "layer_types: windows are not built here" end
      end
      return merged(sigmoid_router(c), { dense_layers = c.first_k_dense_replace,
        ffn = c.intermediate_size, expert_ffn = need(c, "moe_intermediate_size"),
        experts = need(c, "n_routed_experts"),
        shared_ffn = (c.n_shared_experts or 0) * need(c, "moe_intermediate_size"),
        qkv_bias = c.attention_bias or false, out_bias = c.attention_bias or false,
        qk_norm = "head" })
    end,
  },
  gpt_oss = {
    fields = function(c)
      local every = 2
      for i, kind in ipairs(c.layer_types or {}) do
        if kind ~= (i % every == 0 and "full_attention" or "sliding_attention") then
          return nil, "layer_types: only windows in every other block are built"
        end
      end
      return { expert_ffn = need(c, "intermediate_size"), experts = need(c, "num_local_experts"),
        qkv_bias = c.attention_bias ~= false,
        out_bias = c.attention_bias ~= false, sinks = true, window = c.sliding_window,
        full_every = every, router_bias = true, ffn_bias = true, act_limit = c.swiglu_limit or 7,
        act_alpha = c.swiglu_alpha or 1.702, act_offset = 1, router = softmax_router(true) }
    end,
    tensors = {
      ["gate.w"] = one(block "mlp.router.weight"), ["gate.b"] = one(block "mlp.router.bias"),
      ["ex.fc1.w"] = { names = { block "mlp.experts.gate_up_proj" }, transposed = true,
        interleaved = true },
      ["ex.fc1.b"] = { names = { block "mlp.experts.gate_up_proj_bias" }, interleaved = true },
      ["ex.fc2.w"] = { names = { block "mlp.experts.down_proj" }, transposed = true },
      ["ex.fc2.b"] = one(block "mlp.experts.down_proj_bias"),
    },
  },
  granitemoe = {
    fields = function(c)
      return { expert_ffn = need(c, "intermediate_size"), experts = need(c, "num_local_experts"),
        qkv_bias = c.attention_bias or false,
        out_bias = c.attention_bias or false, embedding_scale = c.embedding_multiplier or 1,
        residual_scale = c.residual_multiplier or 1, logit_scale = 1 / (c.logits_scaling or 1),
        attention_scale = c.attention_multiplier or 0, router = softmax_router(true) }
    end,
    tensors = { ["gate.w"] = one(block "block_sparse_moe.router.layer.weight"),
      ["ex.fc1.w"] = one(block "block_sparse_moe.input_linear.weight"),
      ["ex.fc2.w"] = one(block "block_sparse_moe.output_linear.weight") },
  },
  hunyuan_v1_moe = {
    fields = function(c)
      local ffn = need(c, "intermediate_size")
      return { expert_ffn = c.moe_intermediate_size or ffn, experts = need(c, "num_experts"),
        k = need(c, "moe_topk"), shared_ffn = (c.num_shared_expert or 1) * ffn,
        qkv_bias = c.attention_bias or false, out_bias = c.attention_bias or false,
        qk_norm = "head", norm_after_rope = true, router = softmax_router(true) }
    end,
    tensors = { ["attn.q_norm.w"] = one(block "self_attn.query_layernorm.weight"),
      ["attn.k_norm.w"] = one(block "self_attn.key_layernorm.weight"),
      ["gate.w"] = one(block "mlp.gate.wg.weight"), ["shared.fc1.w"] = gated "mlp.shared_mlp",
      ["shared.fc2.w"] = one(block "mlp.shared_mlp.down_proj.weight") },
  },
  minimax_m2 = {
    fields = function(c)
      return { expert_ffn = need(c, "intermediate_size"), experts = need(c, "num_local_experts"),
        qk_norm = c.use_qk_norm ~= false and "row" or "none",
        rotary = c.rotary_dim, choice_bias = true,
        router = { scores = "sigmoid", weight = "renorm" } }
    end,
    tensors = SPARSE,
  },
}

local LLAMA4 = "chunked attention, L2 norms of q and k, and experts whose input the router scales"

--- Models with parts that do not exist here: model_type -> the part.
M.MISSING = {
  llama4 = LLAMA4, llama4_text = LLAMA4, phimoe = "the SparseMixer router",
  minimax = "lightning attention",
  minimax_m1 = "lightning attention", jamba = "Mamba blocks", dbrx = "clipped q, k and v",
  qwen3_next = "gated delta networks",
}

-- Returns the fields of rotary embeddings, or nil and why they cannot be built.
local function rope_fields(c)
  local r = c.rope_parameters or {}
  local old = c.rope_scaling or {}
  for _, kind in ipairs { "full_attention", "sliding_attention", "chunked_attention" } do
    if r[kind] then
      return nil, ("rope_parameters.%s: rotary embeddings of their own per kind of block are not "
        .. "built"):format(kind)
    end
  end
  local kind = r.rope_type or old.rope_type or old.type or "default"
  if kind == "default" then kind = "none" end
  if kind ~= "none" and kind ~= "linear" and kind ~= "yarn" and kind ~= "llama3" then
    return nil, ("rope_type = '%s': is not built"):format(kind)
  end
  local function either(name) return r[name] or old[name] end
  local truncate = r.truncate
  if truncate == nil then truncate = old.truncate end
  return { theta = r.rope_theta or c.rope_theta, rope_scaling = kind, rope_factor = either "factor",
    original_seq = kind ~= "none" and kind ~= "linear"
      and (either "original_max_position_embeddings" or c.max_position_embeddings) or nil,
    beta_fast = either "beta_fast", beta_slow = either "beta_slow", truncate = truncate,
    attention_factor = either "attention_factor", mscale = either "mscale",
    mscale_all_dim = either "mscale_all_dim", low_freq_factor = either "low_freq_factor",
    high_freq_factor = either "high_freq_factor" }
end

--- Returns the fields of the model of a config.json (as a table, null left out), or nil and why it
--- cannot be built. what: names the model in errors about single keys; at: where it is named.
function M.fields(config, what, at)
  local c = checked(config, what, at)
  local kind = M.TYPES[c.model_type]
  if not kind then
    local missing = M.MISSING[c.model_type]
    if missing then return nil, ("model_type = '%s': needs %s"):format(c.model_type, missing) end
    return nil, ("model_type = '%s': is not known, have: %s"):format(c.model_type,
      table.concat(schema.keys_of(M.TYPES), ", "))
  end
  if (c.hidden_act or "silu") ~= "silu" then
    return nil, ("hidden_act = '%s': only silu is built"):format(c.hidden_act)
  end
  for _, key in ipairs { "attention_dropout", "router_jitter_noise" } do
    if (c[key] or 0) ~= 0 then
      return nil, ("%s = %g: is not built; only 0 is"):format(key, c[key])
    end
  end
  if c.output_router_logits then
    return nil, "output_router_logits: the loss of the router that it adds is not built"
  end
  local own, why = kind.fields(c)
  if not own then return nil, why end
  local rope, no_rope = rope_fields(c)
  if not rope then return nil, no_rope end
  local head_dim = c.head_dim or nil
  local turning = (c.rope_parameters or {}).partial_rotary_factor or c.partial_rotary_factor
  local fields = merged({ name = c.model_type, vocab = need(c, "vocab_size"),
    layers = need(c, "num_hidden_layers"), hidden = need(c, "hidden_size"),
    heads = need(c, "num_attention_heads"), kv_heads = c.num_key_value_heads,
    head_dim = head_dim, eps = c.rms_norm_eps, tied = c.tie_word_embeddings or false,
    rotary = turning and turning < 1 and math.floor(turning
      * (head_dim or c.hidden_size / c.num_attention_heads)) or nil },
    rope, own)
  for name, value in pairs(fields) do
    if value == false and (name == "kv_heads" or name == "head_dim") then fields[name] = nil end
  end
  fields.k = own.k or need(c, "num_experts_per_tok")
  return fields
end

--- Returns where the tensors of a model_type are in a checkpoint: name without the block's prefix
--- -> { names, transposed, interleaved }.
function M.tensors(model_type) return merged(COMMON, M.TYPES[model_type].tensors or {}) end

return M
