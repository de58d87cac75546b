-- Fields of a config.json: what the classes of transformers 5.24 say of those that it leaves out,
-- and that none is ignored in silence. tests/models/config_fields.py compares with transformers.
local configs = require "moe.models.configs"
local core = require "moe.core"
local test = require "test"

local NULL = core.null
local CLASSES = core.library_json "models/class_defaults.json"

-- Sizes that all classes take, in place of those that a class leaves open.
local OPEN = { num_experts_per_tok = 2, n_routed_experts = 16, n_shared_experts = 1, head_dim = 64,
  num_key_value_heads = 4 }

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

-- The fields of a config, or the reason against it, as a text.
local function fields(model_type, own)
  local config = { model_type = model_type }
  for key, value in pairs(OPEN) do
    local latent = configs.TYPES[model_type].latent and key:find "head"
    local follows = configs.TYPES[model_type].head_of_width and key == "head_dim"
    local default = CLASSES[configs.TYPES[model_type].class].fields[key]
    if not latent and not follows and (default or value) == NULL then
      config[key] = value
    end
  end
  local row, stand_in = configs.TYPES[model_type], {}
  if row.kinds then
    config.layer_types, config.num_hidden_layers = {}, 4
    for i = 1, 4 do config.layer_types[i] = "full_attention" end
  end
  if row.rotary_twice then config.rope_parameters = { partial_rotary_factor = 0.5 } end
  -- A block of each kind that is stood in for.
  local at = 0
  for letter, part in pairs(row.stands or {}) do
    stand_in[part[1]], at = { flops = 1, bytes = 1 }, at + 1
    for kind, of in pairs(row.kinds) do
      if of == letter then config.layer_types[at] = kind end
    end
  end
  for i = 1, row.stands and not row.kinds.full_attention and 4 or 0 do
    if config.layer_types[i] == "full_attention" then
      config.layer_types[i] = config.layer_types[1]
    end
  end
  for k, v in pairs(own) do config[k] = v end
  local ok, made, why = pcall(configs.fields, config, "config.json", nil, stand_in)
  return ok and text(made or why) or "refused: " .. text(made)
end

local function another(value)
  if type(value) == "boolean" then return not value end
  return type(value) == "number" and value + 1 or value == "silu" and "gelu" or nil
end

test("a field that a config leaves out has the value of its class, and none is ignored", function()
  for model_type, row in pairs(configs.TYPES) do
    local plain = fields(model_type, {})
    assert(plain:find "^{", model_type .. ": " .. plain)
    for key, value in pairs(CLASSES[row.class].fields) do
      local where = model_type .. "." .. key
      if value ~= NULL and type(value) ~= "table" and key ~= "num_hidden_layers" then
        assert(fields(model_type, { [key] = value }) == plain, where)
        -- Without effect: the longest sequence, and windows where no block has one.
        local free = key == "max_position_embeddings" or key:find "window"
          or key:find "kv_lora" or key == "head_dim" and row.latent
          or row.stands and (key == "index_topk" or key:find "_period" or key == "layer_group_size"
            or row.no_rope and key:find "rope")
          or row.group_score == "max" and key:find "group$"  -- topk_method is greedy
        for _, name in ipairs(row.reads or {}) do free = free or key == name end
        if another(value) ~= nil and not free then
          assert(fields(model_type, { [key] = another(value) }) ~= plain, where .. " is ignored")
        end
      end
    end
    for _, value in ipairs { true, 3, "x" } do
      local why = fields(model_type, { a_new_part = value })
      assert(why:find("a_new_part = .*is a field that is not read here"), why)
    end
  end
end)

test("a default is given to a field that is left out, and not to one that is null", function()
  local function of(model_type, own, pattern)
    local made = fields(model_type, own)
    assert(made:find(pattern, 1, true), made)
  end
  of("gpt_oss", { layer_types = { "sliding_attention", "full_attention", "full_attention",
    "full_attention" }, sliding_window = NULL }, "sliding_window: is null")
  of("deepseek_v3", { q_lora_rank = NULL }, "q_rank=0")
  of("deepseek_v3", { norm_topk_prob = NULL }, "weight=prob")
  of("glm4_moe", { head_dim = 8 }, "rotary=4")
  of("glm4_moe", { rope_parameters = { partial_rotary_factor = 0.25 }, head_dim = 8 }, "rotary=2")
  of("minimax_m2", { rotary_dim = 64 }, "rotary=64")
  of("mixtral", { num_experts = 6 }, "experts=6")
  of("mixtral", { num_experts = 6, num_local_experts = 6 }, "experts=6")
  of("ernie4_5_moe", { moe_layer_interval = 2, num_hidden_layers = 4 }, "moe_every=2")
  of("ernie4_5_moe", { moe_layer_start_index = 2, moe_layer_end_index = 2, num_hidden_layers = 4 },
    "ffns=ddmd")
  of("exaone_moe", { layer_types = { "full_attention", "sliding_attention", "sliding_attention",
    "full_attention" } }, "attentions=nwwn")
end)

test("what would change logits in silence is refused by its name", function()
  for _, row in ipairs {
    { "dots1", { layer_types = NULL, num_hidden_layers = 63 }, "layer_types: is missing" },
    { "dots1", { n_shared_experts = NULL }, "n_shared_experts: is missing" },
    { "qwen2_moe", { layer_types = { "sliding_attention" } }, "layer_types" },
    { "deepseek_v3", { kv_lora_rank = NULL }, "kv_lora_rank: is missing" },
    { "deepseek_v3", { moe_layer_freq = 2 }, "moe_layer_freq = 2: only 1 is built" },
    { "deepseek_v3", { scoring_func = "softmax" }, "scoring_func = 'softmax': only 'sigmoid'" },
    { "deepseek_v3", { num_key_value_heads = 2 }, "num_key_value_heads = 2" },
    { "deepseek_v2", { mlp_bias = true }, "mlp_bias" },
    { "deepseek_v2", { topk_method = "noaux_tc" }, "topk_method" },
    { "mixtral", { num_experts = 4, num_local_experts = 8 }, "are the same field" },
    { "qwen2_moe", { num_local_experts = 8 }, "num_local_experts = 8: is a field that is not" },
    { "mixtral", { rope_scaling = { type = "yarn" } }, "factor: is missing" },
    { "mixtral", { rope_scaling = { 1, 2 } }, "rope_scaling" },
    { "mixtral", { rope_scaling = { type = "llama3", factor = 2 } }, "low_freq_factor: is" },
    { "glm4_moe_lite", { mlp_layer_types = { "sparse", "dense" } }, "mlp_layer_types" },
    { "glm4_moe_lite", { num_hidden_layers = 2, mlp_layer_types = { "dense", "sparse" },
      first_k_dense_replace = 2 }, "first_k_dense_replace = 2" },
  } do
    local why = fields(row[1], row[2])
    assert(not why:find "^{layers" and why:find(row[3], 1, true), row[1] .. ": " .. why)
  end
end)
