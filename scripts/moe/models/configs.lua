-- config.json of Hugging Face -> fields of moe.model.decoder, and where the tensors of a checkpoint
-- are. A config is read by its fields: those of the type's class in transformers 5.24, whose
-- defaults (class_defaults.json) hold for what the config leaves out, and those of the hub's own
-- code that types.lua names. A field that is neither read here, nor without effect, nor at its
-- default is refused by name, as is a part that does not exist here.
local core = require "moe.core"
local errors = require "moe.base.errors"
local fields_lib = require "moe.models.config"
local schema = require "moe.base.schema"
local stand_ins = require "moe.models.stand_ins"
local types = require "moe.models.types"

local NAMES, merged, same = fields_lib.NAMES, fields_lib.merged, fields_lib.same
local config_of = fields_lib.config_of

--- MISSING: models with parts that do not exist here, model_type -> the part.
local M = { TYPES = types, MISSING = core.library_json "models/missing_parts.json" }

-- What is built of fields that several classes have.
local ONLY = { hidden_act = "silu", attention_dropout = 0, output_router_logits = false,
  router_jitter_noise = 0, use_sliding_window = false, mlp_bias = false, clip_qkv = core.null }

-- Fields that are read of every config.
local ALWAYS = { rope_parameters = true, rope_scaling = true, rope_theta = true, head_dim = true,
  partial_rotary_factor = true, original_max_position_embeddings = true,
  max_position_embeddings = true }

local classes  -- model_type -> { fields = field -> default, names = other name -> field }
local function class_of(name)
  if not classes then
    classes = core.library_json "models/class_defaults.json"
    for _, key in ipairs(classes.HARMLESS) do ALWAYS[key] = true end
  end
  return classes[name]
end

-- Returns a letter per block of a list of kinds, or nil and what is wrong. letters: kind -> letter.
-- A default that is shorter than the layers repeats.
local function letters_of(key, list, stated, letters, layers)
  if stated and #list ~= layers then
    return nil, ("%s: has %d entries for num_hidden_layers = %d"):format(key, #list, layers)
  end
  local out = {}
  for i = 1, layers do
    local kind = list[(i - 1) % #list + 1]
    out[i] = letters[kind]
    if not out[i] then return nil, ("%s: '%s' is not built here"):format(key, tostring(kind)) end
  end
  return table.concat(out)
end

-- Returns d or m per block by the fields that count dense blocks.
local function by_counts(c, layers)
  local dense, every = c:of "dense" or 0, c:of "every" or 1
  local only, out, last = {}, {}, c:has "moe_layer_end_index" and c:get "moe_layer_end_index" or -1
  if last == -1 then last = layers end
  for _, block in ipairs(c:get "mlp_only_layers" or {}) do
    if type(block) ~= "number" then c:fail("mlp_only_layers: has an entry that is no number") end
    only[block + 1] = true
  end
  for i = 1, layers do
    out[i] = (i <= dense or i > last + 1 or i % every ~= 0 or only[i]) and "d" or "m"
  end
  return table.concat(out)
end

-- Returns fields of the decoder that say which blocks are dense, or nil and why they are not built.
local function ffn_kinds(c, row, layers)
  local list, stated = c:get "mlp_layer_types"
  if not list and row.ffns_of then list = row.ffns_of(c, layers) end
  local kinds = by_counts(c, layers)
  if list then
    local listed, why = letters_of("mlp_layer_types", list, stated, { dense = "d", sparse = "m" },
      layers)
    if not listed then return nil, why end
    for _, key in ipairs(NAMES.dense) do
      local dense = c:stated(key) and c:get(key) or c.class.fields[key]
      if dense ~= c.class.fields[key]
          and listed ~= ("d"):rep(dense) .. ("m"):rep(layers - dense) then
        return nil, ("%s = %s: but mlp_layer_types says %s"):format(key, schema.show(dense), listed)
      end
    end
    kinds = listed
  end
  local dense = #kinds:match "^d*"
  if kinds == ("d"):rep(dense) .. ("m"):rep(layers - dense) then return { dense_layers = dense } end
  local every = dense + 1
  if every * 2 <= layers
      and kinds == (("d"):rep(dense) .. "m"):rep(math.ceil(layers / every)):sub(1, layers) then
    return { moe_every = every }
  end
  return { ffns = kinds }
end

-- Returns fields of the decoder that say what blocks see, or nil and why that is not built.
local function attention_kinds(c, row, layers)
  local list, stated = c:get "layer_types"
  if not list and row.layers_of then list = row.layers_of(c, layers) end
  if not list then
    local from = row.kinds and c:get "max_window_layers"
    if from and (layers <= from or not c:get "sliding_window") then return {} end
    if row.kinds then return nil, "layer_types: is missing" end
    return { window = row.windows and c:get "sliding_window" or nil }
  end
  local kinds, why = letters_of("layer_types", list, stated,
    row.kinds or { full_attention = "f" }, layers)
  if not kinds then return nil, why end
  local window = c:get "sliding_window"
  c:get "max_window_layers"
  if not kinds:find "[^f]" then return {} end
  if not window and kinds:find "[wvn]" and not row.stands then
    return nil, "sliding_window: is null, but layer_types has windows"
  end
  local full = #kinds:match "^w*" + 1
  if kinds == (("w"):rep(full - 1) .. "f"):rep(math.ceil(layers / full)):sub(1, layers) then
    return { window = window, full_every = full <= layers and full or 0 }
  end
  return { window = window, attentions = kinds }
end

-- Returns the settings of rotary embeddings of a config, a Config: those of rope_scaling, the older
-- name, if it has any; and the class's theta.
local function rope_of(c)
  local default = c.class.fields.rope_parameters
  if default == nil or default == core.null then default = {} end
  local old = c:get "rope_scaling"
  local r = old and next(old.given) and old or c:get "rope_parameters"
  r = r or config_of({}, c.what, c.at, { fields = {} })
  r.stated_by = r == old or c:stated "rope_parameters"
  return r, default
end

-- Returns the fields of rotary embeddings of one kind of block, or nil and why they are not built.
-- dim: columns of a head that turn.
local function scaled_rope(c, r, theta, dim)
  local kind = r:get "rope_type" or r:get "type" or "default"
  if kind == "default" then return { theta = theta, rope_scaling = "none" } end
  if kind == "dynamic" then
    -- With alpha (Hunyuan) the base is another one; else it grows beyond max_position_embeddings.
    local alpha = c.given.model_type == "hunyuan_v1_moe" and r:get "alpha" or 0
    if alpha ~= 0 then
      return { theta = theta * alpha ^ (dim / (dim - 2)), rope_scaling = "none" }
    end
    return { theta = theta, rope_scaling = "none", longest = c:need "max_position_embeddings" }
  end
  if kind ~= "linear" and kind ~= "yarn" and kind ~= "llama3" then
    return nil, ("rope_type = '%s': is not built"):format(kind)
  end
  if kind == "llama3" then r:need "low_freq_factor" r:need "high_freq_factor" end
  local fields = { theta = theta, rope_scaling = kind, rope_factor = r:need "factor",
    original_seq = kind ~= "linear" and (c:get "original_max_position_embeddings"
      or r:get "original_max_position_embeddings" or c:need "max_position_embeddings") or nil }
  for _, key in ipairs { "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale",
      "mscale_all_dim", "low_freq_factor", "high_freq_factor" } do
    fields[key] = r:get(key)
  end
  return fields
end

-- Returns the fields of rotary embeddings, or nil and why they are not built; and the settings of
-- those of all blocks. head: width of what turns if all of it does.
local function rope_fields(c, row, head)
  if row.no_rope then
    return { rotary = head, turning = 1, rope_scaling = "none" },
      config_of({}, c.what, c.at, { fields = {} })
  end
  local r, default = rope_of(c)
  local main, windows = r, r:get "sliding_attention"
  if r:get "full_attention" then
    main, default = r:get "full_attention", default.full_attention or {}
  elseif windows then
    return nil, "rope_parameters.full_attention: is null, which is not built"
  end
  local columns = c:has "rotary_dim" and c:get "rotary_dim"
  local asked = main:get "partial_rotary_factor" or c:get "partial_rotary_factor"
  if row.rotary_twice and columns and columns ~= math.floor((asked or 1) * head) then
    return nil, ("rotary_dim = %d: but partial_rotary_factor = %s says that %d columns of a head "
      .. "turn"):format(columns, asked or 1, math.floor((asked or 1) * head))
  end
  local turning = asked or columns and columns / head or default.partial_rotary_factor or 1
  if turning ~= 1 and not (default.partial_rotary_factor or c:has "rotary_dim" or row.latent) then
    return nil, ("partial_rotary_factor = %s: the class does not read it"):format(turning)
  end
  local dim = math.floor(turning * head)
  local stated = (main ~= r or main.stated_by) and main:get "rope_theta"
  local theta = stated or c:get "rope_theta" or default.rope_theta
  local fields, why = scaled_rope(c, main, theta, dim)
  if not fields then return nil, why end
  if dim % 2 == 1 and turning < 1 and fields.rope_scaling == "none" then
    -- transformers then turns one column more, with the frequencies of the odd number.
    fields.theta, dim = fields.theta ^ ((dim + 1) / dim), dim + 1
  end
  if turning < 1 then fields.rotary = dim end
  fields.turning = turning
  if windows then
    if (windows:get "rope_type" or "default") ~= "default" then
      return nil, "rope_parameters.sliding_attention: only rope_type = 'default' is built"
    end
    fields.window_theta = windows:get "rope_theta" or c:get "rope_theta" or 1e4
    fields.window_rotary = math.floor((windows:get "partial_rotary_factor" or 1) * head)
  end
  return fields, main
end

-- Returns the fields of latent attention.
local function latent_fields(c, row, rope, main, heads, turning)
  local nope, rotary = c:need "qk_nope_head_dim", c:need "qk_rope_head_dim"
  local factor, all_dim, scale = rope.rope_factor or 1, main:get "mscale_all_dim" or 0, 0
  if rope.rope_scaling ~= "none" and all_dim > 0 and factor > 1 then
    local mscale = 0.1 * all_dim * math.log(factor) + 1
    scale = mscale * mscale / math.sqrt(nope + rotary)
  end
  c:get "qk_head_dim"  -- the sum, whatever is given
  local kv_heads = c:stated "num_key_value_heads" and c:get "num_key_value_heads" or heads
  if kv_heads ~= heads then
    c:fail("num_key_value_heads = %d: latent attention has as many as num_attention_heads = %d",
      kv_heads, heads)
  end
  local head = c:stated "head_dim" and c:get "head_dim" or row.whole_head and nope + rotary
    or rotary
  if not row.no_rope and math.floor(head * turning + 1e-9) ~= rotary then
    c:fail("head_dim = %d with partial_rotary_factor = %s: latent attention turns qk_rope_head_dim "
      .. "= %d columns", head, turning, rotary)
  end
  return { kv_rank = c:need "kv_lora_rank", q_rank = c:get "q_lora_rank" or 0, nope = nope,
    rotary = rotary, value_dim = c:need "v_head_dim", attention_scale = scale,
    rope_form = c:get "rope_interleave" == false and "halves" or "interleaved" }
end

-- Returns what stands in for the blocks of letters that row.stands names, nil if there are none, or
-- nil and what is missing. stand_in: the user's, part -> { flops, bytes }.
local function stands(c, row, kinds, stand_in)
  local out
  for letter, entry in pairs(row.stands or {}) do
    local name, part, what = entry[1], entry[2], entry[1]:gsub("_", " ")
    if kinds:find(letter, 1, true) then
      local given = (stand_in or {})[name]
      if not given then
        return nil, ("needs %s, which does not exist here; it can be simulated with stand_in = { "
          .. "%s = { flops = .., bytes = .. } }, per token and block"):format(what, name)
      end
      out = merged(out or {}, { [letter] = merged(stand_ins.named(part(c)), given,
        { what = what }) })
    end
  end
  if out and c:has "attention_bias" and c:get "attention_bias" then
    return nil, "attention_bias = true: is not built beside a stand-in"
  elseif row.stands and not out then
    return nil, "has no block of the kind that its class is read for"
  end
  for name in pairs(stand_in or {}) do
    local used
    for _, part in pairs(out or {}) do used = used or part.what == name:gsub("_", " ") end
    if not used then return nil, ("stand_in.%s: it has no such part"):format(name) end
  end
  return out
end

-- Returns the fields of the router and the experts.
local function expert_fields(c, row)
  local method = row.group_score == "max" and c:get "topk_method"
  if method and method ~= "greedy" and method ~= "group_limited_greedy" then
    c:fail("topk_method = '%s': only greedy and group_limited_greedy are built", method)
  end
  local groups = row.group_score and method ~= "greedy"
  local expert_ffn = c:of "expert_ffn" or c:need "intermediate_size"
  local shared, key = c:of "shared_ffn", c:name "shared"
  if not shared then
    shared = (key and c:need(key) or row.shared_count or 0)
      * (row.shared_of and c:need(row.shared_of) or expert_ffn)
  end
  local has_groups = c:name "groups"
  local n_group, topk_group = c:of "groups", has_groups and c:get "topk_group"
  local experts, k = c:need(c:name "experts"), c:need(c:name "k")
  if k > experts then
    c:fail("%s = %d: is more than %s = %d", c:name "k", k, c:name "experts", experts)
  end
  return { expert_ffn = expert_ffn, shared_ffn = shared, experts = experts, k = k, router = {
    scores = row.scores or "softmax", weight = c:says(row.renorm) and "renorm" or "prob",
    scale = c:of "scale", groups = groups and n_group or 1, top_groups = groups and topk_group or 1,
    group_score = groups and row.group_score or nil } }
end

-- Whether a field without a reader changes nothing: one of another model's input, or a flag that
-- is off, unless classes without the flag have what it turns off.
local function is_free(key, value)
  return key:find "_ids?$" or key:find "^vit_" or key:find "^anyres_" or key:find "mtp"
    or value == false and not (key:find "norm" or key == "rope_interleave" or key:find "rotary"
      or key:find "routing_bias")
end

-- Returns why a field of the config is not read, or nil.
local function unread(c)
  for _, key in ipairs(schema.keys_of(c.given)) do
    local value, default = c.given[key], c.class.fields[key]
    if not (c.read[key] or ALWAYS[key] or value == core.null
        or is_free(key, value))
        and not (default ~= nil and same(value, default)) then
      local rest = {}
      for name in pairs(c.class.fields) do
        if not c:stated(name) then rest[#rest + 1] = name end
      end
      local near = default == nil and core.nearest(key, rest) or ""
      return ("%s = %s: is a field that is not read here%s"):format(key, schema.show(value),
        near ~= "" and ("; is it misspelt for '%s'?"):format(near)
        or default ~= nil and default ~= core.null
        and (", or only as %s, its default"):format(schema.show(default)) or "")
    end
  end
end

-- Returns the config with each field under the name that its class has.
local function renamed(config, class, what, at)
  local out = merged(config)
  for other, name in pairs(class.names or {}) do
    if out[other] ~= nil and other ~= name then
      if out[name] ~= nil and not same(out[name], out[other]) then
        errors.user(("%s: %s = %s and %s = %s: are the same field"):format(what, other,
          schema.show(out[other]), name, schema.show(out[name])), at)
      end
      out[name], out[other] = out[other], nil
    end
  end
  return out
end

--- Returns the config of the language model of a config.json (as a table with core.null), which is
--- its text_config if it has one, and then the model_type of the whole.
function M.language_model(config)
  local text, tied = config.text_config, config.tie_word_embeddings
  if type(text) ~= "table" or #text > 0 then return config end
  if tied == nil or tied == core.null then tied = false end
  return merged(text, { tie_word_embeddings = tied }), config.model_type
end

-- Returns why blocks with a theta of their own are not built, or nil.
local function other_thetas(c, all)
  for _, theta in ipairs(c:has "layer_rope_theta" and c:get "layer_rope_theta" or {}) do
    if theta ~= all and c:stated "layer_rope_theta" then
      return ("layer_rope_theta: only rope_theta = %g in all blocks is built"):format(all)
    end
  end
end

-- Fields of the decoder that a row of types.lua may have.
local OWN = { "norms", "ffn_bias", "router_bias", "rope_form", "norm_after_rope", "sinks",
  "window_sinks", "attention_gate", "act_offset", "choice_bias", "bias_on", "shared_gate" }

-- Returns the fields of a checked config, or nil and why it cannot be built; and the most tokens of
-- a sequence, or nil.
local function fields_of(c, row, stand_in)
  local why = c:only(ONLY) or row.only and c:only(row.only)
  if why then return nil, why end
  if c.class.fields.use_sliding_window ~= nil then
    c.read.sliding_window, c.read.max_window_layers = true, true
  end
  local layers, heads = c:need "num_hidden_layers", c:need "num_attention_heads"
  local ffns, no_ffns = ffn_kinds(c, row, layers)
  if not ffns then return nil, no_ffns end
  local seen, unseen = attention_kinds(c, row, layers)
  if not seen then return nil, unseen end
  local parts, missing = stands(c, row, seen.attentions or "", stand_in)
  if missing then return nil, missing end
  for _, key in ipairs(row.reads or {}) do c:get(key) end
  local head = c:get "head_dim" or math.floor(c:need "hidden_size" / heads)
  if row.head_of_width and head ~= math.floor(c:need "hidden_size" / heads) then
    return nil, ("head_dim = %d: is hidden_size / num_attention_heads whatever is given"):format(
      head)
  end
  local rope, main = rope_fields(c, row, row.latent and c:need "qk_rope_head_dim" or head)
  if not rope then return nil, main end
  local other = other_thetas(c, rope.theta)
  if other then return nil, other end
  local longest = rope.longest or row.longest and row.longest(main.given) or nil
  local turning = rope.turning
  rope.longest, rope.turning = nil, nil
  local bias = c:has "attention_bias" and "attention_bias"
  local own = { name = c.given.model_type, layers = layers, heads = heads,
    vocab = c:need "vocab_size", hidden = c:need "hidden_size",
    ffn = c:get(row.dense_ffn or "intermediate_size"), eps = c:need(row.eps or "rms_norm_eps"),
    tied = c:get "tie_word_embeddings" or false,
    qk_norm = type(row.qk_norm) == "table" and c:says(row.qk_norm) or row.qk_norm,
    qkv_bias = c:says(row.qkv_bias == nil and bias or row.qkv_bias),
    out_bias = c:says(row.out_bias == nil and bias or row.out_bias), stand_in = parts }
  for _, name in ipairs(OWN) do own[name] = row[name] end
  for ours, theirs in pairs(row.set or {}) do own[ours] = c:get(theirs) end
  if row.root_scale and c:get(row.root_scale) then own.embedding_scale = math.sqrt(own.hidden) end
  if c.class.fields.logits_scaling then own.logit_scale = 1 / c:need "logits_scaling" end
  local kv_heads = c:get "num_key_value_heads"
  if row.latent then
    own = merged(own, rope, latent_fields(c, row, rope, main, heads, turning))
  else
    own = merged(own, rope, { kv_heads = kv_heads, head_dim = head,
      window_kv_heads = row.window_kv_heads and row.window_kv_heads * kv_heads })
  end
  return merged(own, ffns, seen, expert_fields(c, row)), longest
end

--- Returns the fields of the model of a config (as a table with core.null), or nil and why it
--- cannot be built; and the most tokens of a sequence, or nil. what: names the model in errors
--- about single fields; at: where it is named; stand_in: nil or part -> { flops, bytes } per token
--- and block.
function M.fields(config, what, at, stand_in)
  local name = config.model_type
  local row = M.TYPES[name]
  if not row then
    local missing = M.MISSING[name]
    if missing then return nil, ("model_type = '%s': needs %s"):format(name, missing) end
    return nil, ("model_type = '%s': is not known, have: %s; with moe.model.from_config(file, { "
      .. "like = 'deepseek_v3' }) a config of another type is read as one of these"):format(
      tostring(name), table.concat(schema.keys_of(M.TYPES), ", "))
  end
  local class = class_of(row.class)
  class = { names = class.names, fields = merged(row.also or {}, class.fields) }
  config = renamed(config, class, what, at)
  if row.hub then row.hub(config) end
  local c = config_of(config, what, at, class)
  local fields, longest = fields_of(c, row, stand_in)
  if not fields then return nil, longest end
  local why = unread(c)
  if why then return nil, why end
  return fields, longest
end

-- Types whose MTP layers are blocks behind the others, with a model's further tensors of types.lua.
local MTP = { deepseek_v3 = true, deepseek_v32 = true, kimi_k2 = true, glm4_moe = true }

--- Returns the number of MTP layers of a config, which transformers leaves out. what, at: as in
--- M.fields, for the error if it has none.
function M.mtp_layers(config, what, at)
  local n = config.num_nextn_predict_layers
  if not MTP[config.model_type] then
    errors.user(("%s: mtp: where the MTP layers of model_type = '%s' are is not known, only of %s"
      .. "; omit mtp"):format(what, config.model_type, table.concat(schema.keys_of(MTP), ", ")), at)
  elseif type(n) ~= "number" or n < 1 then
    errors.user(("%s: mtp: its num_nextn_predict_layers is %s, so it has no MTP layers; omit mtp")
      :format(what, n == nil and "missing" or schema.show(n)), at)
  end
  return n
end

--- Returns where the tensors of a model_type are in a checkpoint: name without the block's prefix
--- -> { names, transposed, interleaved }. whole: the model_type of which it is the language model,
--- or nil.
function M.tensors(model_type, whole)
  local all = M.TYPES[model_type].tensors
  if not whole then return all end
  local out = {}
  for ours, place in pairs(all) do
    local names = {}
    for i, name in ipairs(place.names) do
      names[i] = whole == "kimi_k25" and "language_model." .. name
        or name:gsub("^model%.", "model.language_model.")
    end
    out[ours] = merged(place, { names = names })
  end
  return out
end

return M
