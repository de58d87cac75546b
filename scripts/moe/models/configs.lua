-- config.json of Hugging Face -> fields of moe.model.decoder, and where the tensors of a checkpoint
-- are. One entry per model_type: fields(c) returns the fields that differ from those of all, where
-- c is a view that checks what is read of the config; `defaults` are the values of keys that the
-- config leaves out, `tensors` has the names of tensors that differ. A part that does not exist
-- here is refused by name.
--
-- Defaults are those of the configuration classes of transformers 5.24 (src/transformers/models/
-- TYPE/configuration_TYPE.py), except for sizes, eps and theta, which a config must state.
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
  rope_type = "string", type = "string", layer_types = "list", mlp_only_layers = "list",
  mlp_layer_types = "list", rope_parameters = "table", rope_scaling = "table",
  full_attention = "table", sliding_attention = "table", chunked_attention = "table" }
for _, key in ipairs { "attention_bias", "mlp_bias", "norm_topk_prob", "output_router_logits",
    "qkv_bias", "rope_interleave", "tie_word_embeddings", "truncate", "use_qk_norm",
    "use_sliding_window" } do
  KINDS[key] = "boolean"
end

-- Returns a view of a config in which a value of another kind is the user's error, as is a table in
-- it. A key that the config leaves out has the value in `defaults`; one that is null has none. A
-- list with the same number for each block is that number. what, at: as in M.fields.
local function checked(config, what, at, defaults)
  return setmetatable({}, { what = what, at = at, config = config, __index = function(_, key)
    local value, kind = config[key], KINDS[key] or "number"
    if value == nil then value = defaults[key] end
    if value == nil or value == core.null then return nil end
    if kind == "number" and type(value) == "table" and #value > 0 then
      for _, x in ipairs(value) do
        if x ~= value[1] then
          errors.user(("%s: %s: a number of its own per block is not built"):format(what, key), at)
        end
      end
      value = value[1]
    end
    local is = type(value)
    if is == "table" and (#value > 0 or next(value) == nil and kind == "list") then is = "list" end
    if is ~= kind then schema.refuse(("%s: %s"):format(what, key), value, "a " .. kind, at) end
    return kind == "table" and checked(value, what, at, {}) or value
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

-- Returns the value of the first of these keys that the config has. It must have one.
local function need(c, ...)
  local mt, missing, misspelt = getmetatable(c), ..., ""
  for _, key in ipairs { ... } do
    if c[key] ~= nil then return c[key] end
    local near = M.misspelt(mt.config, key)
    if near ~= "" then missing, misspelt = key, near end
  end
  errors.user(("%s: %s: is missing%s"):format(mt.what, missing, misspelt), mt.at)
end

local function softmax_router(renorm)
  return { scores = "softmax", weight = renorm and "renorm" or "prob" }
end

-- Returns why the blocks' kinds of attention are not built, or nil if all see all tokens.
local function windowed(c)
  for _, kind in ipairs(c.layer_types or {}) do
    if kind ~= "full_attention" then return "layer_types: windows are not built here" end
  end
  return c.use_sliding_window and "use_sliding_window: is not built" or nil
end

-- Returns moe_every and the number of dense first blocks of the Qwen family.
local function qwen_blocks(c)
  if #(c.mlp_only_layers or {}) > 0 then
    return nil, "mlp_only_layers: single dense blocks are not built"
  end
  local window = windowed(c)
  if window then return nil, window end
  return { moe_every = c.decoder_sparse_step, ffn = c.intermediate_size,
    expert_ffn = need(c, "moe_intermediate_size") }
end

-- Fields of Qwen3 and its successors, or nil and why they are not built.
local function qwen3(c, renorm)
  local own, why = qwen_blocks(c)
  return own and merged(own, { qkv_bias = c.attention_bias, out_bias = c.attention_bias,
    qk_norm = "head", router = softmax_router(renorm) }), why
end

-- Fields of the routers of DeepSeek-V3 and those after it.
local function sigmoid_router(c)
  return { choice_bias = true, router = { scores = "sigmoid",
    weight = c.norm_topk_prob and "renorm" or "prob",
    scale = c.routed_scaling_factor, groups = c.n_group, top_groups = c.topk_group,
    group_score = "top2" } }
end

-- Fields of the dense first blocks and the shared experts of DeepSeek and those after it.
local function deepseek_blocks(c)
  return { dense_layers = c.first_k_dense_replace, ffn = c.intermediate_size,
    expert_ffn = need(c, "moe_intermediate_size"),
    shared_ffn = need(c, "n_shared_experts") * need(c, "moe_intermediate_size") }
end

-- Fields of latent attention and of the blocks around it, or nil and why they are not built.
local function deepseek(c)
  for _, key in ipairs { "attention_bias", "mlp_bias" } do
    if c[key] then return nil, key .. ": models with latent attention have no biases here" end
  end
  if (c.moe_layer_freq or 1) ~= 1 then return nil, "moe_layer_freq: only 1 is built" end
  local rope = M.rope(c)
  local head, scale = need(c, "qk_nope_head_dim") + need(c, "qk_rope_head_dim"), 0
  local factor, all_dim = rope.factor or 1, rope.mscale_all_dim or 0
  if (rope.rope_type or rope.type or "default") ~= "default" and all_dim > 0 and factor > 1 then
    local mscale = 0.1 * all_dim * math.log(factor) + 1
    scale = mscale * mscale / math.sqrt(head)
  end
  return merged(deepseek_blocks(c), { kv_heads = false, head_dim = false,
    kv_rank = need(c, "kv_lora_rank"), q_rank = c.q_lora_rank or 0, nope = c.qk_nope_head_dim,
    rotary = c.qk_rope_head_dim, value_dim = need(c, "v_head_dim"), attention_scale = scale,
    rope_form = c.rope_interleave == false and "halves" or "interleaved" })
end

M.TYPES = {
  mixtral = {
    defaults = { num_key_value_heads = 8 },
    fields = function(c)
      return { expert_ffn = need(c, "intermediate_size"), window = c.sliding_window or 0,
        router = softmax_router(true) }
    end,
    tensors = SPARSE,
  },
  qwen2_moe = {
    defaults = { num_key_value_heads = 16, decoder_sparse_step = 1, qkv_bias = true,
      shared_expert_intermediate_size = 5632 },
    fields = function(c)
      local own, why = qwen_blocks(c)
      if not own then return nil, why end
      return merged(own, { qkv_bias = c.qkv_bias, shared_gate = true,
        shared_ffn = c.shared_expert_intermediate_size,
        router = softmax_router(c.norm_topk_prob) })
    end,
    tensors = { ["shared.fc1.w"] = gated "mlp.shared_expert",
      ["shared.fc2.w"] = one(block "mlp.shared_expert.down_proj.weight"),
      ["shared.gate.w"] = one(block "mlp.shared_expert_gate.weight") },
  },
  qwen3_moe = {
    defaults = { num_key_value_heads = 4, decoder_sparse_step = 1 },
    fields = function(c) return qwen3(c, c.norm_topk_prob) end,
  },
  qwen3_vl_moe_text = {
    defaults = { num_key_value_heads = 16, decoder_sparse_step = 1, tie_word_embeddings = true },
    fields = function(c) return qwen3(c, true) end,
    tensors = { ["ex.fc1.w"] = one(block "mlp.experts.gate_up_proj"),
      ["ex.fc2.w"] = one(block "mlp.experts.down_proj") },
  },
  olmoe = {
    fields = function(c)
      if c.clip_qkv then return nil, "clip_qkv: is not built" end
      return { expert_ffn = need(c, "intermediate_size"), qkv_bias = c.attention_bias,
        out_bias = c.attention_bias, qk_norm = "row", router = softmax_router(c.norm_topk_prob) }
    end,
  },
  deepseek_v2 = {
    defaults = { n_shared_experts = 2, routed_scaling_factor = 1, topk_method = "greedy",
      q_lora_rank = 1536, first_k_dense_replace = 0 },
    fields = function(c)
      local limited = c.topk_method == "group_limited_greedy"
      if not limited and c.topk_method ~= "greedy" then
        return nil, "topk_method: only greedy and group_limited_greedy are built"
      end
      local own, why = deepseek(c)
      if not own then return nil, why end
      -- transformers ignores norm_topk_prob, which is false in all published models.
      return merged(own, { router = { scores = "softmax", weight = "prob",
        scale = c.routed_scaling_factor, groups = limited and need(c, "n_group") or 1,
        top_groups = limited and need(c, "topk_group") or 1, group_score = "max" } })
    end,
  },
  deepseek_v3 = {
    defaults = { n_shared_experts = 1, routed_scaling_factor = 2.5, n_group = 8, topk_group = 4,
      norm_topk_prob = true, q_lora_rank = 1536, first_k_dense_replace = 3 },
    fields = function(c)
      local own, why = deepseek(c)
      return own and merged(own, sigmoid_router(c)), why
    end,
  },
  glm4_moe = {
    defaults = { num_key_value_heads = 8, n_shared_experts = 1, routed_scaling_factor = 1,
      n_group = 1, topk_group = 1, norm_topk_prob = true, first_k_dense_replace = 1,
      partial_rotary_factor = 0.5 },
    fields = function(c)
      return merged(sigmoid_router(c), deepseek_blocks(c), { qkv_bias = c.attention_bias,
        qk_norm = c.use_qk_norm and "head" or "none" })
    end,
  },
  glm4_moe_lite = {
    defaults = { n_shared_experts = 1, routed_scaling_factor = 1.8, n_group = 1, topk_group = 1,
      norm_topk_prob = true, q_lora_rank = 768 },
    fields = function(c)
      local own, why = deepseek(c)
      if not own then return nil, why end
      local dense, kinds = 1, c.mlp_layer_types  -- transformers ignores first_k_dense_replace
      for i, kind in ipairs(kinds or {}) do
        if i == 1 then dense = 0 end
        if kind == "dense" and dense == i - 1 then
          dense = i
        elseif kind ~= "sparse" then
          return nil, "mlp_layer_types: only dense first blocks are built"
        end
      end
      return merged(own, sigmoid_router(c), { dense_layers = dense })
    end,
  },
  solar_open = {
    defaults = { num_key_value_heads = 8, head_dim = 128, n_shared_experts = 1,
      routed_scaling_factor = 1, n_group = 1, topk_group = 1, norm_topk_prob = true },
    fields = function(c)
      return merged(sigmoid_router(c), deepseek_blocks(c), { dense_layers = 0,
        qkv_bias = c.attention_bias })
    end,
  },
  dots1 = {
    defaults = { num_key_value_heads = 32, routed_scaling_factor = 1, n_group = 1, topk_group = 1,
      first_k_dense_replace = 0, sliding_window = 4096, max_window_layers = 62 },
    fields = function(c)
      local window = windowed(c)
      if not window and not c.layer_types and c.sliding_window
          and need(c, "num_hidden_layers") > need(c, "max_window_layers") then
        window = "max_window_layers: windows are not built here"
      end
      if window then return nil, window end
      return merged(sigmoid_router(c), deepseek_blocks(c), { qkv_bias = c.attention_bias,
        out_bias = c.attention_bias, qk_norm = "head" })
    end,
  },
  gpt_oss = {
    defaults = { num_key_value_heads = 8, head_dim = 64, sliding_window = 128, swiglu_limit = 7,
      swiglu_alpha = 1.702, attention_bias = true, rope_parameters = { rope_type = "yarn",
        factor = 32, beta_fast = 32, beta_slow = 1, truncate = false,
        original_max_position_embeddings = 4096 } },
    fields = function(c)
      local every = 2
      for i, kind in ipairs(c.layer_types or {}) do
        if kind ~= (i % every == 0 and "full_attention" or "sliding_attention") then
          return nil, "layer_types: only windows in every other block are built"
        end
      end
      return { expert_ffn = need(c, "intermediate_size"), qkv_bias = c.attention_bias,
        out_bias = c.attention_bias, sinks = true, window = c.sliding_window or 0,
        full_every = every, router_bias = true, ffn_bias = true, act_limit = c.swiglu_limit,
        act_alpha = c.swiglu_alpha, act_offset = 1, router = softmax_router(true) }
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
    defaults = { embedding_multiplier = 1, residual_multiplier = 1, logits_scaling = 1,
      attention_multiplier = 1 },
    fields = function(c)
      return { expert_ffn = need(c, "intermediate_size"), qkv_bias = c.attention_bias,
        out_bias = c.attention_bias, embedding_scale = c.embedding_multiplier,
        residual_scale = c.residual_multiplier, logit_scale = 1 / need(c, "logits_scaling"),
        attention_scale = need(c, "attention_multiplier"), router = softmax_router(true) }
    end,
    tensors = { ["gate.w"] = one(block "block_sparse_moe.router.layer.weight"),
      ["ex.fc1.w"] = one(block "block_sparse_moe.input_linear.weight"),
      ["ex.fc2.w"] = one(block "block_sparse_moe.output_linear.weight") },
  },
  hunyuan_v1_moe = {
    fields = function(c)
      local ffn = need(c, "intermediate_size")
      return { expert_ffn = c.moe_intermediate_size or ffn,
        k = c.num_experts_per_tok or need(c, "moe_topk"),
        shared_ffn = (c.num_shared_expert or 1) * ffn, qkv_bias = c.attention_bias,
        out_bias = c.attention_bias, qk_norm = "head", norm_after_rope = true,
        router = softmax_router(true) }
    end,
    tensors = { ["attn.q_norm.w"] = one(block "self_attn.query_layernorm.weight"),
      ["attn.k_norm.w"] = one(block "self_attn.key_layernorm.weight"),
      ["gate.w"] = one(block "mlp.gate.wg.weight"), ["shared.fc1.w"] = gated "mlp.shared_mlp",
      ["shared.fc2.w"] = one(block "mlp.shared_mlp.down_proj.weight") },
  },
  minimax_m2 = {
    defaults = { num_key_value_heads = 8, head_dim = 128, use_qk_norm = true },
    fields = function(c)
      return { expert_ffn = need(c, "intermediate_size"),
        qk_norm = c.use_qk_norm and "row" or "none", choice_bias = true,
        router = { scores = "sigmoid", weight = "renorm" } }
    end,
    tensors = SPARSE,
  },
}

M.TYPES.kimi_k2 = M.TYPES.deepseek_v3  -- the class that its config.json on the hub names

local LLAMA4 = "chunked attention, L2 norms of q and k, and experts whose input the router scales"

--- Models with parts that do not exist here: model_type -> the part.
M.MISSING = {
  llama4 = LLAMA4, llama4_text = LLAMA4, phimoe = "the SparseMixer router",
  minimax = "lightning attention",
  minimax_m1 = "lightning attention", jamba = "Mamba blocks", dbrx = "clipped q, k and v",
  qwen3_next = "gated delta networks", qwen3_5_moe_text = "gated delta networks",
}

-- Returns the settings of rotary embeddings: those of rope_scaling, the older name, if it has any.
function M.rope(c)
  local old = c.rope_scaling
  return old and next(getmetatable(old).config) and old or c.rope_parameters
    or checked({}, getmetatable(c).what, getmetatable(c).at, {})
end

-- Returns the fields of rotary embeddings, or nil and why they cannot be built. dim: columns of a
-- head that turn.
local function rope_fields(c, dim)
  local r = M.rope(c)
  for _, kind in ipairs { "full_attention", "sliding_attention", "chunked_attention" } do
    if r[kind] then
      return nil, ("rope_parameters.%s: rotary embeddings of their own per kind of block are not "
        .. "built"):format(kind)
    end
  end
  local kind, theta = r.rope_type or r.type or "default", r.rope_theta or c.rope_theta
  if kind == "default" then return { theta = theta, rope_scaling = "none" } end
  if kind == "dynamic" then
    -- With alpha (Hunyuan) the base is another one; else it grows beyond max_position_embeddings.
    if c.model_type == "hunyuan_v1_moe" and (r.alpha or 0) ~= 0 then
      theta = theta and theta * r.alpha ^ (dim / (dim - 2))
      return { theta = theta, rope_scaling = "none" }
    end
    return { theta = theta, rope_scaling = "none", longest = need(c, "max_position_embeddings") }
  end
  if kind ~= "linear" and kind ~= "yarn" and kind ~= "llama3" then
    return nil, ("rope_type = '%s': is not built"):format(kind)
  end
  if kind == "llama3" then need(r, "low_freq_factor") need(r, "high_freq_factor") end
  return { theta = theta, rope_scaling = kind, rope_factor = need(r, "factor"),
    original_seq = kind ~= "linear" and (c.original_max_position_embeddings
      or r.original_max_position_embeddings or need(c, "max_position_embeddings")) or nil,
    beta_fast = r.beta_fast, beta_slow = r.beta_slow, truncate = r.truncate,
    attention_factor = r.attention_factor, mscale = r.mscale, mscale_all_dim = r.mscale_all_dim,
    low_freq_factor = r.low_freq_factor, high_freq_factor = r.high_freq_factor }
end

-- Returns which part of the model is not built, or nil.
local function not_built(c)
  if (c.hidden_act or "silu") ~= "silu" then
    return ("hidden_act = '%s': only silu is built"):format(c.hidden_act)
  end
  for _, key in ipairs { "attention_dropout", "router_jitter_noise" } do
    if (c[key] or 0) ~= 0 then
      return ("%s = %g: is not built; only 0 is"):format(key, c[key])
    end
  end
  if c.output_router_logits then
    return "output_router_logits: the loss of the router that it adds is not built"
  end
end

--- Returns the config of the language model of a config.json (as a table with core.null), which is
--- its text_config if it has one, and then the model_type of the whole.
function M.language_model(config)
  local text, tied = config.text_config, config.tie_word_embeddings
  if type(text) ~= "table" or #text > 0 then return config end
  if tied == nil or tied == core.null then tied = false end
  return merged(text, { tie_word_embeddings = tied }), config.model_type
end

--- Returns the fields of the model of a config (as a table with core.null), or nil and why it
--- cannot be built; and the most tokens of a sequence, or nil. what: names the model in errors
--- about single keys; at: where it is named.
function M.fields(config, what, at)
  local kind = M.TYPES[config.model_type]
  local c = checked(config, what, at, kind and kind.defaults or {})
  if not kind then
    local missing = M.MISSING[c.model_type]
    if missing then return nil, ("model_type = '%s': needs %s"):format(c.model_type, missing) end
    return nil, ("model_type = '%s': is not known, have: %s"):format(c.model_type,
      table.concat(schema.keys_of(M.TYPES), ", "))
  end
  local why = not_built(c)
  if why then return nil, why end
  local own
  own, why = kind.fields(c)
  if not own then return nil, why end
  local head = c.head_dim or need(c, "hidden_size") / need(c, "num_attention_heads")
  local turning = M.rope(c).partial_rotary_factor or c.partial_rotary_factor
    or c.rotary_dim and c.rotary_dim / head or 1
  local rope, no_rope = rope_fields(c, math.floor(turning * head))
  if not rope then return nil, no_rope end
  local longest = rope.longest
  rope.longest = nil
  local fields = merged({ name = c.model_type, vocab = need(c, "vocab_size"),
    layers = need(c, "num_hidden_layers"), hidden = c.hidden_size, heads = c.num_attention_heads,
    kv_heads = c.num_key_value_heads, head_dim = c.head_dim, eps = c.rms_norm_eps,
    experts = need(c, "num_local_experts", "num_experts", "n_routed_experts"),
    k = own.k or need(c, "num_experts_per_tok"), tied = c.tie_word_embeddings,
    rotary = turning < 1 and math.floor(turning * head) or nil }, rope, own)
  for name, value in pairs(fields) do
    if value == false and (name == "kv_heads" or name == "head_dim") then fields[name] = nil end
  end
  return fields, longest
end

--- Returns where the tensors of a model_type are in a checkpoint: name without the block's prefix
--- -> { names, transposed, interleaved }. whole: the model_type of which it is the language model,
--- or nil.
function M.tensors(model_type, whole)
  local all = merged(COMMON, M.TYPES[model_type].tensors or {})
  if not whole then return all end
  for ours, place in pairs(all) do
    local names = {}
    for i, name in ipairs(place.names) do
      names[i] = whole == "kimi_k25" and "language_model." .. name
        or name:gsub("^model%.", "model.language_model.")
    end
    all[ours] = merged(place, { names = names })
  end
  return all
end

return M
