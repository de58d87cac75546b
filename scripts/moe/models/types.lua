-- What the fields of a config.json do not say of each model_type: how its attention, norms and
-- router are made, and where the tensors of a checkpoint stand. moe/models/configs.lua reads a
-- config by its fields, class_defaults.lua has the fields of each type's class in transformers.
--
--   like = the row from which entries that are not given are taken
--   latent = whether attention is latent (DeepSeek-V2's)
--   whole_head = whether head_dim counts also the columns of latent attention that do not turn
--   scores, choice_bias, group_score = of the router; renorm = whether its weights are divided by
--     their sum, or the field that says so
--   qk_norm = none, head or row, or { field that says whether, this }
--   qkv_bias, out_bias, ffn_bias = whether there are biases, or the field that says so; by default
--     attention_bias of those of attention
--   kinds = kind in layer_types -> letter of `attentions` (decoder.lua)
--   window_kv_heads = how many times as many heads of k and v blocks with a window have
--   norms, sinks, shared_gate, ... = fields of moe.model.decoder
--   set = field of the decoder -> field of the config
--   only = field of the class or of the hub's own code -> the one value that is built
--   also = field of the hub's own code that the class does not have -> its default
--   root_scale = the field that says whether the embedding is scaled by the root of its width
--   shared_of = the field with the width of a shared expert, if not that of the routed ones
--   hub = function(t): changes a config of the hub's own code to the fields of the class
--   stands = letter of `attentions` -> { name of the part, function of stand_ins.lua }, for blocks
--     for which only a stand-in can be simulated
--   layers_of, ffns_of = function(c, layers): layer_types and mlp_layer_types that follow from
--     other fields
--   no_rope = whether no block has rotary embeddings, or only such for which others stand in
--   reads = fields of the class without effect here; dense_ffn, eps = the field's name in the class
--   shared_count = number of shared experts that no field states
--   head_of_width = whether head_dim is hidden_size / num_attention_heads whatever is given
--   rotary_twice = whether the class has rotary_dim without reading it
--   norm_plus = what is added to the weights of norms: 1 if they multiply by 1 + w
--   longest = function(rope): the most tokens of a sequence for which the model is as built, or nil
--
-- tensors.json has the names of tensors: { names =, transposed =, interleaved = }, where {i} is the
-- block and %d the expert, or the list of names alone, or the name in the block.
local core = require "moe.core"
local merged = require("moe.models.config").merged
local stand_ins = require "moe.models.stand_ins"

local NULL = core.null

local function block(name) return "model.layers.{i}." .. name end

local function one(name) return { names = { name } } end

-- Model_type -> the tensors that differ from those that most checkpoints share (common).
local NAMES = core.library_json "models/tensors.json"

-- Returns a list with one of two words per block, by a list of 0 and 1.
local function chosen(list, of_0, of_1)
  local out = {}
  for i, x in ipairs(list) do out[i] = x == 0 and of_0 or of_1 end
  return out
end

-- Returns kind(i) of each block i, from 0.
local function listed(layers, kind)
  local out = {}
  for i = 1, layers do out[i] = kind(i - 1) end
  return out
end

local SEEN = { full_attention = "f", sliding_attention = "w" }
local NOPE = { full_attention = "n", sliding_attention = "w" }  -- full without rotary embeddings
-- What DeepSeek's own code and its successors' reads besides the fields of the class.
local DEEPSEEK = { moe_layer_freq = 1, attention_bias = false }
local NOAUX = merged(DEEPSEEK, { scoring_func = "sigmoid", topk_method = "noaux_tc" })

-- Parts for which a stand-in can be simulated, by letter.
local DELTA = { s = { "linear_attention", stand_ins.delta } }
local INDEXED = { s = { "sparse_attention", stand_ins.indexed } }
local CONVOLUTION = { s = { "short_convolution", stand_ins.convolution } }

local TYPES = {
  mixtral = { renorm = true, windows = true },
  qwen2_moe = { renorm = "norm_topk_prob", qkv_bias = "qkv_bias", shared_gate = true },
  qwen3_moe = { renorm = "norm_topk_prob", qk_norm = "head" },
  qwen3_vl_moe_text = { like = "qwen3_moe", renorm = true, only = { norm_topk_prob = true } },
  qwen3_omni_moe_text = { like = "qwen3_moe" },
  qwen3_omni_moe_talker_text = { like = "qwen3_moe", shared_gate = true },
  mellum = { like = "qwen3_moe", kinds = SEEN, only = {} },
  olmoe = { renorm = "norm_topk_prob", qk_norm = "row" },
  flex_olmo = { like = "olmoe", norms = "after" },
  deepseek_v2 = { latent = true, group_score = "max",
    only = merged(DEEPSEEK, { scoring_func = "softmax", norm_topk_prob = false }) },
  deepseek_v3 = { latent = true, scores = "sigmoid", choice_bias = true, group_score = "top2",
    renorm = "norm_topk_prob", only = NOAUX },
  kimi_k2 = { like = "deepseek_v3", class = "deepseek_v3" },
  axk1 = { like = "deepseek_v3", norms = "experts", also = { first_k_dense_replace = 1 } },
  sarvam_mla = { like = "deepseek_v3" },
  mistral4 = { latent = true, group_score = "top2", renorm = "norm_topk_prob", only = DEEPSEEK,
    whole_head = true,
    -- q is scaled by 1 + beta log(1 + floor(position / original_max_position_embeddings))
    longest = function(rope)
      return (rope.llama_4_scaling_beta or 0) ~= 0 and rope.original_max_position_embeddings or nil
    end },
  glm4_moe = { like = "deepseek_v3", latent = false, qk_norm = { "use_qk_norm", "head" },
    out_bias = false, only = { scoring_func = "sigmoid", topk_method = "noaux_tc" } },
  glm4_moe_lite = { like = "deepseek_v3", also = { first_k_dense_replace = 1 },
    only = merged(NOAUX, { first_k_dense_replace = 1 }) },
  glm4v_moe_text = { like = "glm4_moe", qk_norm = "none" },
  sarvam_moe = { like = "glm4_moe" },
  solar_open = { like = "glm4_moe", qk_norm = "none", only = { first_k_dense_replace = 0 } },
  dots1 = { like = "glm4_moe", out_bias = "attention_bias", qk_norm = "head", kinds = SEEN,
    only = { scoring_func = "noaux_tc", moe_layer_freq = 1 } },
  hy_v3 = { like = "glm4_moe", out_bias = "attention_bias", qk_norm = "head", renorm = true,
    also = { first_k_dense_replace = 1 }, only = { first_k_dense_replace = 1 } },
  exaone_moe = { like = "deepseek_v3", latent = false, qk_norm = "head", kinds = NOPE, only = {} },
  mimo_v2_flash = { like = "deepseek_v3", latent = false, kinds = SEEN, out_bias = false,
    sinks = true, window_sinks = true,
    set = { value_dim = "v_head_dim", value_scale = "attention_value_scale" },
    also = { first_k_dense_replace = 1 }, only = { first_k_dense_replace = 1,
      scoring_func = "sigmoid", topk_method = "noaux_tc", add_swa_attention_sink_bias = true,
      add_full_attention_sink_bias = false },
    hub = function(t)
      if type(t.hybrid_layer_pattern) ~= "table" then return end
      local full = { rope_theta = t.rope_theta, partial_rotary_factor = t.partial_rotary_factor }
      t.rope_parameters = { full_attention = full,
        sliding_attention = merged(full, { rope_theta = t.swa_rope_theta }) }
      t.layer_types = chosen(t.hybrid_layer_pattern, "full_attention", "sliding_attention")
      t.mlp_layer_types = chosen(t.moe_layer_freq, "dense", "sparse")
      t.rms_norm_eps, t.sliding_window = t.layernorm_epsilon, t.sliding_window_size + 1
      if t.swa_num_key_value_heads == 2 * t.num_key_value_heads
          and t.swa_num_attention_heads == t.num_attention_heads and t.swa_head_dim == t.head_dim
          and t.swa_v_head_dim == t.v_head_dim then
        t.swa_num_key_value_heads, t.swa_num_attention_heads = nil, nil
        t.swa_head_dim, t.swa_v_head_dim = nil, nil
      end
      for _, key in ipairs { "hybrid_layer_pattern", "moe_layer_freq", "layernorm_epsilon",
        "sliding_window_size", "attention_chunk_size", "swa_rope_theta", "rope_theta",
        "partial_rotary_factor" } do t[key] = nil end
    end,
    window_kv_heads = 2 },
  ernie4_5_moe = { choice_bias = true, renorm = true, qkv_bias = "use_bias", out_bias = "use_bias",
    rope_form = "interleaved", only = { use_bias = false, moe_norm_min = 1e-12 } },
  afmoe = { scores = "sigmoid", choice_bias = true, renorm = true, qk_norm = "head", kinds = NOPE,
    norms = "both", attention_gate = true, root_scale = "mup_enabled" },
  flint = { scores = "sigmoid", renorm = "norm_topk_prob", qk_norm = "head", kinds = NOPE,
    sinks = true },
  aria_text = { renorm = true },
  gpt_oss = { renorm = true, sinks = true, kinds = SEEN, router_bias = true, ffn_bias = true,
    act_offset = 1, set = { act_limit = "swiglu_limit", act_alpha = "swiglu_alpha" } },
  granitemoe = { renorm = true, set = { embedding_scale = "embedding_multiplier",
    residual_scale = "residual_multiplier", attention_scale = "attention_multiplier" } },
  granitemoeshared = { like = "granitemoe" },
  granitemoe_swa = { like = "granitemoe", kinds = SEEN, sinks = true },
  hunyuan_v1_moe = { renorm = true, qk_norm = "head", norm_after_rope = true,
    shared_of = "intermediate_size",
    also = { moe_intermediate_size = NULL, num_shared_expert = 1 },
    only = { use_qk_norm = true, norm_type = "rms", use_mixed_mlp_moe = true,
      use_rotary_pos_emb = true, norm_topk_prob = true, moe_layer_num_skipped = 0 },
    hub = function(t)
      t.head_dim, t.attention_head_dim = t.head_dim or t.attention_head_dim, nil
    end },
  minimax_m2 = { scores = "sigmoid", choice_bias = true, renorm = true, qk_norm = "row",
    also = { rotary_dim = NULL },
    only = { use_qk_norm = true, scoring_func = "sigmoid", qk_norm_type = "per_layer",
      use_routing_bias = true, attn_type_list = 1, shared_intermediate_size = 0,
      layernorm_full_attention_beta = 1, layernorm_linear_attention_beta = 1,
      layernorm_mlp_beta = 1 } },
  minimax_m3_vl_text = { scores = "sigmoid", choice_bias = true, renorm = true, qk_norm = "head",
    norm_plus = 1, dense_ffn = "dense_intermediate_size", act_offset = 1, rotary_twice = true,
    kinds = { full_attention = "f" }, also = { n_shared_experts = 1 },
    only = { n_shared_experts = 1 },
    reads = { "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks",
      "index_local_blocks" },
    set = { act_limit = "swiglu_limit", act_alpha = "swiglu_alpha" } },
  kolibri1 = { scores = "sigmoid", choice_bias = true, bias_on = "logits",
    renorm = "norm_topk_prob", qk_norm = "head", norms = "both", kinds = NOPE },
  unlimited_ocr_text = { like = "deepseek_v2", latent = false, head_of_width = true,
    kinds = { reference_sliding_attention = "f", full_attention = "f" },
    reads = { "sliding_window" }, also = { first_k_dense_replace = 1 }, only = {} },
  deepseek_ocr2_text = { like = "deepseek_v2", latent = false, head_of_width = true, only = {} },
  -- Of these only a simulation with a stand-in.
  qwen3_next = { like = "qwen3_moe", shared_gate = true, attention_gate = true, stands = DELTA,
    kinds = { linear_attention = "s", full_attention = "f" },
    also = { full_attention_interval = 4 }, only = { full_attention_interval = 4 } },
  qwen3_5_moe_text = { like = "qwen3_next", renorm = true,
    only = { full_attention_interval = 4, attn_output_gate = true, mamba_ssm_dtype = "float32" } },
  lara_mini = { like = "qwen3_next", shared_gate = false, attention_gate = false, also = {},
    only = {}, kinds = { linear_attention = "s", full_attention = "f", sliding_attention = "w" } },
  kimi_linear = { like = "deepseek_v3", renorm = "moe_renormalize",
    stands = { s = { "linear_attention", stand_ins.kimi } }, no_rope = true,
    kinds = { linear_attention = "s", full_attention = "f" },
    only = { moe_layer_freq = 1, moe_router_activation_func = "sigmoid", use_grouped_topk = true,
      mla_use_nope = true },
    also = { first_k_dense_replace = 1 },
    reads = { "model_max_length", "qk_head_dim", "rope_theta" },
    hub = function(t)
      local own = t.linear_attn_config
      if type(own) ~= "table" then return end
      t.linear_attn_config, t.layer_types = nil, {}
      for _, i in ipairs(own.kda_layers or {}) do t.layer_types[i] = "linear_attention" end
      for _, i in ipairs(own.full_attn_layers or {}) do t.layer_types[i] = "full_attention" end
      t.linear_head_dim, t.linear_num_heads = own.head_dim, own.num_heads
      t.linear_conv_kernel_dim = own.short_conv_kernel_size
    end,
    layers_of = function(_, layers)
      return listed(layers, function(i)
        return i > 0 and i % 4 == 0 and "full_attention" or "linear_attention"
      end)
    end },
  bailing_hybrid = { like = "kimi_linear", latent = false, also = {},
    stands = { s = { "linear_attention", stand_ins.ling },
      t = { "gated_attention", stand_ins.gated_latent } },
    kinds = { linear_attention = "s", full_attention = "t" },
    reads = { "model_max_length", "qk_head_dim", "kda_safe_gate", "kda_lower_bound",
      "mtp_loss_scaling_factor", "short_conv_kernel_size", "head_dim" },
    layers_of = function(c, layers)
      local every = c:need "layer_group_size"
      return listed(layers, function(i)
        return (i + 1) % every == 0 and "full_attention" or "linear_attention"
      end)
    end },
  minimax = { like = "mixtral", windows = false,
    stands = { s = { "linear_attention", stand_ins.lightning } }, reads = { "block_size" },
    kinds = { linear_attention = "s", full_attention = "f" },
    only = { full_attn_alpha_factor = 1, full_attn_beta_factor = 1, linear_attn_alpha_factor = 1,
      linear_attn_beta_factor = 1, mlp_alpha_factor = 1, mlp_beta_factor = 1 } },
  granitemoehybrid = { like = "granitemoe", stands = { s = { "mamba", stand_ins.mamba2 } },
    kinds = { linear_attention = "s", mamba = "s", attention = "n", full_attention = "n" },
    only = { position_embedding_type = "nope", mamba_proj_bias = false,
      normalization_function = "rmsnorm" },
    reads = { "mamba_chunk_size", "layers_block_type" } },
  jamba = { stands = { s = { "mamba", stand_ins.mamba1 } }, no_rope = true,
    kinds = { linear_attention = "s", full_attention = "n" }, only = { mamba_proj_bias = false },
    reads = { "use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep" },
    layers_of = function(c, layers)
      local every, first = c:need "attn_layer_period", c:need "attn_layer_offset"
      return listed(layers, function(i)
        return i % every == first and "full_attention" or "linear_attention"
      end)
    end,
    ffns_of = function(c, layers)
      local every, first = c:need "expert_layer_period", c:need "expert_layer_offset"
      return listed(layers, function(i) return i % every == first and "sparse" or "dense" end)
    end },
  deepseek_v32 = { like = "deepseek_v3", latent = false, no_rope = true, stands = INDEXED,
    kinds = { indexed_attention = "s" }, reads = { "qk_head_dim", "rope_interleave" } },
  glm_moe_dsa = { like = "deepseek_v32", only = merged(NOAUX, { indexer_types = "full" }),
    also = { index_topk_freq = 1, index_skip_topk_offset = 2, index_topk_pattern = NULL } },
  dots3_note_text = { like = "deepseek_v3", latent = false, no_rope = true,
    shared_of = "shared_experts_intermediate_size", also = { first_k_dense_replace = 1 },
    stands = { s = { "sparse_attention", stand_ins.gated_indexed },
      t = { "gated_attention", stand_ins.gated_window } },
    kinds = { indexed_attention = "s", sliding_attention = "t" },
    reads = { "qk_head_dim", "sliding_window" }, only = { moe_layer_freq = 1 },
    hub = function(t)
      if type(t.per_layer_config) ~= "table" then return end
      for _, sizes in pairs(t.per_layer_config) do
        for key, size in pairs(type(sizes) == "table" and sizes or { sizes }) do
          if stand_ins.DOTS_WINDOW[key] ~= size then return end
        end
      end
      t.per_layer_config = nil
    end,
    layers_of = function(_, layers)
      return listed(layers, function(i)
        return (i < 2 or i % 4 == 1) and "indexed_attention" or "sliding_attention"
      end)
    end },
  laguna = { scores = "sigmoid", choice_bias = true, renorm = true, no_rope = true,
    stands = { s = { "gated_attention", stand_ins.grouped(true, true) },
      t = { "gated_attention", stand_ins.grouped(true, true) } },
    kinds = { full_attention = "s", sliding_attention = "t" }, reads = { "sliding_window" },
    also = { first_k_dense_replace = 1 },
    only = { gating = true, moe_router_logit_softcapping = 0,
      moe_apply_router_weight_on_input = false, attention_bias = false } },
  llama4_text = { scores = "sigmoid", shared_count = 1, dense_ffn = "intermediate_size_mlp",
    stands = { s = { "chunked_attention", stand_ins.grouped(false, false) } },
    kinds = { chunked_attention = "s", full_attention = "n" }, no_rope = true,
    hub = function(t)
      if type(t.moe_layers) ~= "table" or type(t.num_hidden_layers) ~= "number" then return end
      local moe = {}
      for _, i in ipairs(t.moe_layers) do moe[i] = true end
      t.mlp_layer_types = listed(t.num_hidden_layers, function(i)
        return moe[i] and "sparse" or "dense"
      end)
      t.moe_layers = nil
    end,
    only = { attention_bias = false },
    reads = { "no_rope_layer_interval", "no_rope_layers", "attention_chunk_size", "floor_scale",
      "attn_scale", "attn_temperature_tuning", "use_qk_norm" } },
  lfm2_moe = { scores = "sigmoid", choice_bias = true, renorm = "norm_topk_prob", eps = "norm_eps",
    qk_norm = "head", stands = CONVOLUTION, kinds = { conv = "s", full_attention = "f" },
    only = { conv_bias = false, use_expert_bias = true } },
}

-- Returns the row with the entries of those that it is like.
local function complete(name)
  local row = TYPES[name]
  local base = row.like and complete(row.like) or { tensors = NAMES.common }
  return merged(base, row, { tensors = merged(base.tensors, NAMES[name] or {}) })
end

-- Returns where else the tensor that stands at `place` is: experts of a layer in one tensor or each
-- by itself, and the MoE layer below "mlp", where transformers has all of them in memory.
local function elsewhere(ours, place)
  local name, others = place.names[1], {}
  local path = name:match "^(.*%.experts)%.%%d%."
  if path then
    for _, of in ipairs { path, (path:gsub("block_sparse_moe", "mlp")) } do
      others[#others + 1] = one(of .. (ours == "ex.fc1.w" and ".gate_up_proj" or ".down_proj"))
    end
  elseif name:find "experts%.gate_up_proj$" and not place.transposed then
    others[1] = { names = { (name:gsub("gate_up_proj", "%%%%d.gate_proj.weight")),
      (name:gsub("gate_up_proj", "%%%%d.up_proj.weight")) } }
  elseif name:find "experts%.down_proj$" and not place.transposed then
    others[1] = one((name:gsub("down_proj", "%%%%d.down_proj.weight")))
  elseif name:find "block_sparse_moe" then
    others[1] = one((name:gsub("block_sparse_moe", "mlp")))
  end
  return others[1] and others or nil
end

local rows = {}
for name, row in pairs(TYPES) do
  rows[name] = complete(name)
  rows[name].class = row.class or name
  for ours, place in pairs(rows[name].tensors) do
    if type(place) == "string" then place = { names = { block(place) } } end
    if place[1] then place = { names = place } end
    local norm = ours:find "norm%.w$" or ours:find "^ln"
    rows[name].tensors[ours] = merged(place, { others = elsewhere(ours, place),
      plus = norm and rows[name].norm_plus or nil })
  end
end

return rows
