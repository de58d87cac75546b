-- Open MoE models by name: the entries of their config.json that decide sizes and logits, which
-- moe/models/configs.lua reads as it reads a config.json. The comment above a model has the source
-- of its sizes, the one in it the repository on huggingface.co with the rest. published: parameters
-- in all and active per token, in units of 10^9, of models with parts that are not built here, from
-- the sizes that their sources state.

-- rope_scaling of DeepSeek-V2-Lite (mscale = 0.707), DeepSeek-V3 (1) and Kimi-K2.
local function yarn(factor, mscale, beta_fast)
  return { type = "yarn", factor = factor, beta_fast = beta_fast, beta_slow = 1, mscale = mscale,
    mscale_all_dim = mscale, original_max_position_embeddings = 4096 }
end

local GPT_OSS = { rope_type = "yarn", factor = 32, beta_fast = 32, beta_slow = 1, truncate = false,
  original_max_position_embeddings = 4096 }

return {
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/mixtral-8x7b.yml (e591f30cb,
  -- 2026-08-22)
  mixtral_8x7b = { model_type = "mixtral", vocab_size = 32000, num_hidden_layers = 32, hidden_size =
    4096, num_attention_heads = 32, num_key_value_heads = 8, num_experts_per_tok = 2,
    intermediate_size = 14336, num_local_experts = 8,
    -- mistralai/Mixtral-8x7B-v0.1
    rope_theta = 1e6, rms_norm_eps = 1e-5 },
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/mixtral-8x22b.yml (e591f30cb,
  -- 2026-08-22); github.com/yanring/Megatron-MoE-ModelZoo
  -- model_configs/benchmarking/Mixtral-8x22B.yaml (e865051)
  mixtral_8x22b = { model_type = "mixtral", vocab_size = 32768, num_hidden_layers = 56, hidden_size
    = 6144, num_attention_heads = 48, num_key_value_heads = 8, num_experts_per_tok = 2,
    intermediate_size = 16384, num_local_experts = 8,
    -- mistralai/Mixtral-8x22B-v0.3
    rope_theta = 1e6, rms_norm_eps = 1e-5 },
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/deepseek2-16b.yml (e591f30cb,
  -- 2026-08-22); github.com/yanring/Megatron-MoE-ModelZoo
  -- model_configs/benchmarking/DeepSeek-V2-Lite.yaml (e865051)
  deepseek_v2_lite = { model_type = "deepseek_v2", vocab_size = 102400, num_hidden_layers = 27,
    hidden_size = 2048, num_attention_heads = 16, num_experts_per_tok = 6, intermediate_size =
    10944, moe_intermediate_size = 1408, n_routed_experts = 64, n_shared_experts = 2,
    first_k_dense_replace = 1, norm_topk_prob = false, kv_lora_rank = 512, qk_nope_head_dim = 128,
    qk_rope_head_dim = 64, v_head_dim = 128,
    -- deepseek-ai/DeepSeek-V2-Lite
    rope_theta = 1e4, rms_norm_eps = 1e-6, rope_scaling = yarn(40, 0.707, 32), q_lora_rank = 0,
    routed_scaling_factor = 1, topk_method = "greedy" },
  -- github.com/deepseek-ai/DeepSeek-V3 inference/configs/config_671B.json; github.com/AI-
  -- Hypercomputer/maxtext src/maxtext/configs/models/deepseek3-671b.yml (e591f30cb, 2026-08-22)
  deepseek_v3 = { model_type = "deepseek_v3", vocab_size = 129280, num_hidden_layers = 61,
    hidden_size = 7168, num_attention_heads = 128, num_experts_per_tok = 8, intermediate_size =
    18432, moe_intermediate_size = 2048, n_routed_experts = 256, n_shared_experts = 1,
    first_k_dense_replace = 3, norm_topk_prob = true, q_lora_rank = 1536, kv_lora_rank = 512,
    qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128, routed_scaling_factor = 2.5,
    n_group = 8, topk_group = 4,
    -- deepseek-ai/DeepSeek-V3
    rope_theta = 1e4, rms_norm_eps = 1e-6, rope_scaling = yarn(40, 1, 32) },
  -- github.com/THUDM/slime scripts/models/moonlight.sh (624b824a8, 2026-08-21)
  moonlight_16b_a3b = { model_type = "deepseek_v3", vocab_size = 163840, num_hidden_layers = 27,
    hidden_size = 2048, num_attention_heads = 16, num_experts_per_tok = 6, intermediate_size =
    11264, moe_intermediate_size = 1408, n_routed_experts = 64, n_shared_experts = 2,
    first_k_dense_replace = 1, norm_topk_prob = true, kv_lora_rank = 512, qk_nope_head_dim = 128,
    qk_rope_head_dim = 64, v_head_dim = 128, routed_scaling_factor = 2.446,
    -- moonshotai/Moonlight-16B-A3B
    rope_theta = 5e4, rms_norm_eps = 1e-5, q_lora_rank = 0, n_group = 1, topk_group = 1 },
  -- huggingface.co/MaziyarPanahi/Qwen1.5-MoE-A2.7B-Wikihow config.json (copy of
  -- Qwen/Qwen1.5-MoE-A2.7B)
  qwen1_5_moe_a2_7b = { model_type = "qwen2_moe", vocab_size = 151936, num_hidden_layers = 24,
    hidden_size = 2048, num_attention_heads = 16, num_key_value_heads = 16, num_experts_per_tok =
    4, moe_intermediate_size = 1408, num_experts = 60, norm_topk_prob = false,
    shared_expert_intermediate_size = 5632,
    -- Qwen/Qwen1.5-MoE-A2.7B
    rope_theta = 1e6, rms_norm_eps = 1e-6 },
  -- github.com/yanring/Megatron-MoE-ModelZoo model_configs/benchmarking/Qwen2-57B-A14B.yaml
  -- (e865051)
  qwen2_57b_a14b = { model_type = "qwen2_moe", vocab_size = 151936, num_hidden_layers = 28,
    hidden_size = 3584, num_attention_heads = 28, num_key_value_heads = 4, num_experts_per_tok =
    8, moe_intermediate_size = 2560, num_experts = 64, norm_topk_prob = false,
    shared_expert_intermediate_size = 20480,
    -- Qwen/Qwen2-57B-A14B
    rope_theta = 1e6, rms_norm_eps = 1e-6 },
  -- github.com/THUDM/slime scripts/models/qwen3-30B-A3B.sh (624b824a8, 2026-08-21); github.com/AI-
  -- Hypercomputer/maxtext src/maxtext/configs/models/qwen3-30b-a3b.yml (e591f30cb, 2026-08-22)
  qwen3_30b_a3b = { model_type = "qwen3_moe", vocab_size = 151936, num_hidden_layers = 48,
    hidden_size = 2048, num_attention_heads = 32, num_key_value_heads = 4, head_dim = 128,
    num_experts_per_tok = 8, moe_intermediate_size = 768, num_experts = 128, norm_topk_prob = true,
    -- Qwen/Qwen3-30B-A3B
    rope_theta = 1e6, rms_norm_eps = 1e-6 },
  -- github.com/THUDM/slime scripts/models/qwen3-235B-A22B.sh (624b824a8, 2026-08-21);
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/qwen3-235b-a22b.yml (e591f30cb,
  -- 2026-08-22)
  qwen3_235b_a22b = { model_type = "qwen3_moe", vocab_size = 151936, num_hidden_layers = 94,
    hidden_size = 4096, num_attention_heads = 64, num_key_value_heads = 4, head_dim = 128,
    num_experts_per_tok = 8, moe_intermediate_size = 1536, num_experts = 128, norm_topk_prob =
    true,
    -- Qwen/Qwen3-235B-A22B
    rope_theta = 1e6, rms_norm_eps = 1e-6 },
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/gpt-oss-20b.yml (e591f30cb,
  -- 2026-08-22)
  gpt_oss_20b = { model_type = "gpt_oss", vocab_size = 201088, num_hidden_layers = 24, hidden_size =
    2880, num_attention_heads = 64, num_key_value_heads = 8, head_dim = 64, num_experts_per_tok =
    4, intermediate_size = 2880, num_local_experts = 32, sliding_window = 128,
    -- openai/gpt-oss-20b
    rope_theta = 150000, rms_norm_eps = 1e-5, rope_scaling = GPT_OSS },
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/gpt-oss-120b.yml (e591f30cb,
  -- 2026-08-22)
  gpt_oss_120b = { model_type = "gpt_oss", vocab_size = 201088, num_hidden_layers = 36, hidden_size
    = 2880, num_attention_heads = 64, num_key_value_heads = 8, head_dim = 64, num_experts_per_tok
    = 4, intermediate_size = 2880, num_local_experts = 128, sliding_window = 128,
    -- openai/gpt-oss-120b
    rope_theta = 150000, rms_norm_eps = 1e-5, rope_scaling = GPT_OSS },
  -- github.com/THUDM/slime scripts/models/kimi-k2.sh (624b824a8, 2026-08-21); github.com/AI-
  -- Hypercomputer/maxtext src/maxtext/configs/models/kimi-k2-1t.yml (e591f30cb, 2026-08-22)
  kimi_k2 = { model_type = "deepseek_v3", vocab_size = 163840, num_hidden_layers = 61, hidden_size =
    7168, num_attention_heads = 64, num_experts_per_tok = 8, intermediate_size = 18432,
    moe_intermediate_size = 2048, n_routed_experts = 384, n_shared_experts = 1,
    first_k_dense_replace = 1, norm_topk_prob = true, q_lora_rank = 1536, kv_lora_rank = 512,
    qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128, routed_scaling_factor = 2.827,
    -- moonshotai/Kimi-K2-Instruct
    rope_theta = 5e4, rms_norm_eps = 1e-6, rope_scaling = yarn(32, 1, 1), n_group = 1, topk_group =
    1 },
  -- github.com/THUDM/slime scripts/models/glm4.5-355B-A32B.sh (624b824a8, 2026-08-21); same sizes
  -- in huggingface.co/zai-org/GLM-4.7 config.json
  glm_4_5 = { model_type = "glm4_moe", vocab_size = 151552, num_hidden_layers = 92, hidden_size =
    5120, num_attention_heads = 96, num_key_value_heads = 8, head_dim = 128, num_experts_per_tok =
    8, intermediate_size = 12288, moe_intermediate_size = 1536, n_routed_experts = 160,
    n_shared_experts = 1, first_k_dense_replace = 3, attention_bias = true, partial_rotary_factor
    = 0.5, use_qk_norm = true, routed_scaling_factor = 2.5,
    -- zai-org/GLM-4.5
    rope_theta = 1e6, rms_norm_eps = 1e-5, norm_topk_prob = true },
  -- huggingface.co/PrimeIntellect/INTELLECT-3-Base config.json; github.com/THUDM/slime
  -- scripts/models/glm4.5-106B-A12B.sh (624b824a8, 2026-08-21)
  glm_4_5_air = { model_type = "glm4_moe", vocab_size = 151552, num_hidden_layers = 46, hidden_size
    = 4096, num_attention_heads = 96, num_key_value_heads = 8, head_dim = 128, num_experts_per_tok
    = 8, intermediate_size = 10944, moe_intermediate_size = 1408, n_routed_experts = 128,
    n_shared_experts = 1, first_k_dense_replace = 1, attention_bias = true, partial_rotary_factor
    = 0.5,
    -- zai-org/GLM-4.5-Air
    rope_theta = 1e6, rms_norm_eps = 1e-5, norm_topk_prob = true, use_qk_norm = false,
    routed_scaling_factor = 1 },
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/llama4-17b-16e.yml (e591f30cb,
  -- 2026-08-22); head_dim 128 = 5120/40
  llama4_scout = { model_type = "llama4", vocab_size = 202048, num_hidden_layers = 48, hidden_size =
    5120, num_attention_heads = 40, num_key_value_heads = 8, num_experts_per_tok = 1,
    num_local_experts = 16, intermediate_size = 8192, published = { 107.77, 17.17 } },
  -- github.com/AI-Hypercomputer/maxtext src/maxtext/configs/models/llama4-17b-128e.yml (e591f30cb,
  -- 2026-08-22)
  llama4_maverick = { model_type = "llama4", vocab_size = 202048, num_hidden_layers = 48,
    hidden_size = 5120, num_attention_heads = 40, num_key_value_heads = 8, num_experts_per_tok =
    1, num_local_experts = 128, intermediate_size = 8192, published = { 400.71, 17.18 } },
  -- huggingface.co/allenai/OLMoE-1B-7B-0924-SFT config.json
  olmoe_1b_7b = { model_type = "olmoe", vocab_size = 50304, num_hidden_layers = 16, hidden_size =
    2048, num_attention_heads = 16, num_key_value_heads = 16, num_experts_per_tok = 8,
    intermediate_size = 1024, num_experts = 64, norm_topk_prob = false,
    -- allenai/OLMoE-1B-7B-0924
    rope_theta = 1e4, rms_norm_eps = 1e-5 },
  -- huggingface.co/allura-org/MoE-Girl_400MA_1BT config.json (copy of granite-3.0-1b-a400m-base)
  granite_3_1b_a400m = { model_type = "granitemoe", vocab_size = 49155, num_hidden_layers = 24,
    hidden_size = 1024, num_attention_heads = 16, num_key_value_heads = 8, tie_word_embeddings =
    true, num_experts_per_tok = 8, intermediate_size = 512, num_local_experts = 32,
    -- ibm-granite/granite-3.0-1b-a400m-base
    rope_theta = 1e4, rms_norm_eps = 1e-6, embedding_multiplier = 12, residual_multiplier = 0.22,
    logits_scaling = 6, attention_multiplier = 0.015625 },
  -- huggingface.co/nm-testing/granite-3.1-3b-a800m-instruct-w4a16 config.json
  granite_3_3b_a800m = { model_type = "granitemoe", vocab_size = 49155, num_hidden_layers = 32,
    hidden_size = 1536, num_attention_heads = 24, num_key_value_heads = 8, tie_word_embeddings =
    true, num_experts_per_tok = 8, intermediate_size = 512, num_local_experts = 40,
    -- ibm-granite/granite-3.1-3b-a800m-instruct
    rope_theta = 1e7, rms_norm_eps = 1e-6, embedding_multiplier = 12, residual_multiplier = 0.22,
    logits_scaling = 6, attention_multiplier = 0.015625 },
  -- github.com/huggingface/transformers src/transformers/models/phimoe/configuration_phimoe.py
  -- (defaults)
  phi_3_5_moe = { model_type = "phimoe", vocab_size = 32064, num_hidden_layers = 32, hidden_size =
    4096, num_attention_heads = 32, num_key_value_heads = 8, num_experts_per_tok = 2,
    num_local_experts = 16, intermediate_size = 6400, published = { 41.87, 6.64 } },
  -- huggingface.co/MiniMaxAI/MiniMax-M1-40k refs/pr/1 config.json (excerpt: hidden, expert ffn,
  -- layer types, head_dim; heads, kv, experts, vocab from memory)
  minimax_m1 = { model_type = "minimax_m1", vocab_size = 200064, num_hidden_layers = 80, hidden_size
    = 6144, num_attention_heads = 64, num_key_value_heads = 8, head_dim = 128, num_experts_per_tok
    = 2, num_local_experts = 32, intermediate_size = 9216, published = { 446.4, 38.71 } },
  -- huggingface.co/QuixiAI/MiniMax-M2.1-bf16 config.json; github.com/THUDM/slime
  -- scripts/models/minimax-m2.sh (624b824a8, 2026-08-21)
  minimax_m2 = { model_type = "minimax_m2", vocab_size = 200064, num_hidden_layers = 62, hidden_size
    = 3072, num_attention_heads = 48, num_key_value_heads = 8, head_dim = 128, num_experts_per_tok
    = 8, intermediate_size = 1536, num_local_experts = 256, rotary_dim = 64,
    -- MiniMaxAI/MiniMax-M2
    rope_theta = 5e6, rms_norm_eps = 1e-6, use_qk_norm = true },
  -- raw.githubusercontent.com/Tencent-Hunyuan/Hunyuan-A13B README_CN.md; huggingface.co/mlx-
  -- community/Hunyuan-A13B-Instruct-8bit config.json (excerpt); kv heads, vocab from memory
  hunyuan_a13b = { model_type = "hunyuan_v1_moe", vocab_size = 128167, num_hidden_layers = 32,
    hidden_size = 4096, num_attention_heads = 32, num_key_value_heads = 8, intermediate_size =
    3072, moe_intermediate_size = 3072, num_experts = 64, moe_topk = 8, num_shared_expert = 1,
    -- tencent/Hunyuan-A13B-Instruct
    rope_theta = 1e4, rms_norm_eps = 1e-5, rope_scaling = { type = "dynamic", alpha = 1000 },
    head_dim = 128, tie_word_embeddings = true },
}
