-- Keys that a config.json leaves out: their values are those of the configuration classes of
-- transformers 5.24, read from its classes; NULL is None there, null in JSON.
local configs = require "moe.models.configs"
local test = require "test"

local NULL = require("moe.core").null
local ALL = { hidden_act = "silu", attention_dropout = 0, tie_word_embeddings = false,
  output_router_logits = false }
local CLASSES = {
  mixtral = { head_dim = NULL, num_key_value_heads = 8, router_jitter_noise = 0,
    sliding_window = NULL },
  qwen2_moe = { decoder_sparse_step = 1, layer_types = NULL, mlp_only_layers = NULL,
    norm_topk_prob = false, num_key_value_heads = 16, qkv_bias = true,
    shared_expert_intermediate_size = 5632, use_sliding_window = false },
  qwen3_moe = { attention_bias = false, decoder_sparse_step = 1, mlp_only_layers = NULL,
    norm_topk_prob = false, num_key_value_heads = 4, use_sliding_window = false },
  qwen3_vl_moe_text = { attention_bias = false, decoder_sparse_step = 1, head_dim = NULL,
    mlp_only_layers = NULL, num_key_value_heads = 16, tie_word_embeddings = true },
  olmoe = { attention_bias = false, clip_qkv = NULL, norm_topk_prob = false,
    num_key_value_heads = NULL },
  deepseek_v2 = { attention_bias = false, first_k_dense_replace = 0, mlp_bias = false,
    n_shared_experts = 2, q_lora_rank = 1536, routed_scaling_factor = 1, topk_method = "greedy" },
  deepseek_v3 = { attention_bias = false, first_k_dense_replace = 3, n_group = 8,
    n_shared_experts = 1, norm_topk_prob = true, q_lora_rank = 1536, rope_interleave = true,
    routed_scaling_factor = 2.5, topk_group = 4 },
  glm4_moe = { attention_bias = false, first_k_dense_replace = 1, n_group = 1,
    n_shared_experts = 1, norm_topk_prob = true, num_key_value_heads = 8,
    partial_rotary_factor = 0.5, routed_scaling_factor = 1, topk_group = 1, use_qk_norm = false },
  glm4_moe_lite = { attention_bias = false, mlp_layer_types = NULL, n_group = 1,
    n_shared_experts = 1, norm_topk_prob = true, q_lora_rank = 768, rope_interleave = true,
    routed_scaling_factor = 1.8, topk_group = 1 },
  solar_open = { attention_bias = false, head_dim = 128, n_group = 1, n_shared_experts = 1,
    norm_topk_prob = true, num_key_value_heads = 8, routed_scaling_factor = 1, topk_group = 1 },
  dots1 = { attention_bias = false, first_k_dense_replace = 0, layer_types = NULL,
    max_window_layers = 62, n_group = 1, norm_topk_prob = false, num_key_value_heads = 32,
    routed_scaling_factor = 1, sliding_window = 4096, topk_group = 1 },
  gpt_oss = { attention_bias = true, head_dim = 64, layer_types = NULL, num_key_value_heads = 8,
    sliding_window = 128, swiglu_alpha = 1.702, swiglu_limit = 7,
    rope_parameters = { rope_type = "yarn", factor = 32, beta_fast = 32, beta_slow = 1,
      truncate = false, original_max_position_embeddings = 4096 } },
  granitemoe = { attention_bias = false, attention_multiplier = 1, embedding_multiplier = 1,
    logits_scaling = 1, num_key_value_heads = NULL, residual_multiplier = 1 },
  hunyuan_v1_moe = { attention_bias = false, head_dim = NULL, num_key_value_heads = NULL },
  minimax_m2 = { head_dim = 128, num_key_value_heads = 8, router_jitter_noise = 0 },
}
CLASSES.kimi_k2 = CLASSES.deepseek_v3

-- What a config must state.
local STATED = { vocab_size = 96, hidden_size = 64, num_hidden_layers = 4, num_attention_heads = 64,
  num_experts_per_tok = 2, intermediate_size = 48, moe_intermediate_size = 20,
  num_local_experts = 16, kv_lora_rank = 8, qk_nope_head_dim = 8, qk_rope_head_dim = 4,
  v_head_dim = 8, rms_norm_eps = 1e-6, rope_theta = 1e4 }

-- A flag that is off is one that is not given.
local function text(v)
  if type(v) ~= "table" then return tostring(v) end
  local parts = {}
  for k, x in pairs(v) do
    if x ~= false then parts[#parts + 1] = tostring(k) .. "=" .. text(x) end
  end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end

-- The fields of a config of STATED and `own`, or the reason against it, as a text.
local function fields(model_type, own)
  local config = { model_type = model_type }
  if model_type == "dots1" then config.n_shared_experts = 1 end
  for _, t in ipairs { STATED, own } do for k, v in pairs(t) do config[k] = v end end
  local ok, made, why = pcall(configs.fields, config, "config.json", nil)
  return ok and text(made or why) or "refused: " .. text(made)
end

local function another(value)
  if type(value) == "boolean" then return not value end
  return type(value) == "number" and value + 1 or value == "silu" and "gelu" or nil
end

test("a key that a config leaves out has the value of transformers", function()
  for model_type in pairs(configs.TYPES) do
    local class = assert(CLASSES[model_type], model_type)
    local plain = fields(model_type, {})
    assert(plain:find "^{", model_type .. ": " .. plain)
    for _, keys in ipairs { ALL, class } do
      for key, value in pairs(keys) do
        if class[key] == nil or keys == class then
          local where = model_type .. "." .. key
          local stated = fields(model_type, { [key] = value })
          assert(stated == plain, ("%s: %s\n%s"):format(where, stated, plain))
          local other = another(value)
          -- Windows that begin beyond the last block change nothing.
          if other ~= nil and not (model_type == "dots1" and key:find "window") then
            assert(fields(model_type, { [key] = other }) ~= plain, where .. " is not read")
          end
        end
      end
    end
  end
end)

test("a default is given to a key that is left out, and not to one that is null", function()
  local function of(model_type, own, pattern)
    local made = fields(model_type, own)
    assert(made:find(pattern, 1, true), made)
  end
  of("gpt_oss", { sliding_window = NULL }, "window=0")
  of("deepseek_v3", { q_lora_rank = NULL, norm_topk_prob = NULL }, "q_rank=0")
  of("deepseek_v3", { norm_topk_prob = NULL }, "weight=prob")
  of("glm4_moe", { head_dim = 8 }, "rotary=4")
  of("glm4_moe", { partial_rotary_factor = NULL }, "rope_scaling=none,router")
  of("glm4_moe", { rope_parameters = { partial_rotary_factor = 0.25 }, head_dim = 8 },
    "rotary=2")
  of("minimax_m2", { rotary_dim = 64 }, "rotary=64")
  of("mixtral", { num_key_value_heads = NULL }, "layers=4,name=mixtral")
end)

test("what would change logits in silence is refused by its name", function()
  for _, row in ipairs {
    { "dots1", { num_hidden_layers = 63 }, "max_window_layers" },
    { "dots1", { n_shared_experts = NULL }, "n_shared_experts: is missing" },
    { "qwen2_moe", { layer_types = { "sliding_attention" } }, "layer_types" },
    { "deepseek_v3", { kv_lora_rank = NULL }, "kv_lora_rank: is missing" },
    { "deepseek_v3", { moe_layer_freq = 2 }, "moe_layer_freq: only 1 is built" },
    { "deepseek_v2", { mlp_bias = true }, "mlp_bias" },
    { "deepseek_v2", { topk_method = "noaux_tc" }, "topk_method" },
    { "mixtral", { rope_scaling = { type = "yarn" } }, "factor: is missing" },
    { "mixtral", { rope_scaling = { 1, 2 } }, "rope_scaling" },
    { "mixtral", { rope_scaling = { type = "llama3", factor = 2 } }, "low_freq_factor: is" },
    { "mixtral", { rope_scaling = { type = "yarn", factor = 2 } }, "max_position_embeddings: is" },
    { "glm4_moe_lite", { mlp_layer_types = { "sparse", "dense" } }, "mlp_layer_types" },
  } do
    local why = fields(row[1], row[2])
    assert(not why:find "^{layers" and why:find(row[3], 1, true), row[1] .. ": " .. why)
  end
end)
