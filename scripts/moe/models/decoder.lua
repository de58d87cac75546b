-- Decoder-only transformers with rotary embeddings and MoE layers of gated experts, as most open
-- models are: Mixtral, Qwen, OLMoE, DeepSeek, GLM, gpt-oss, Granite, Hunyuan, MiniMax-M2. What sets
-- them apart is in the fields; moe/models/configs.lua reads these from a model's config.json, and
-- moe/models/open.lua has those of published models.
local schema = require "moe.base.schema"

local grouped, latent = schema.declared "grouped_attention", schema.declared "latent_attention"
local rope, form = schema.declared "rope", schema.declared "feed_forward"
local experts, embedding = schema.declared "experts", schema.declared "embedding"

local function flag(doc) return { type = "boolean", default = false, doc = doc } end

local function count(default, hi, doc)
  return { type = "integer", lo = 0, hi = hi, default = default, doc = doc }
end

local M = {
  name = "decoder",
  doc = "a decoder with rotary embeddings and gated experts, as most open MoE models are",
  fields = schema.merged(schema.merged(
    schema.picked(grouped, { "heads", "kv_heads", "head_dim", "out_bias", "qk_norm", "sinks",
      "norm_after_rope", "eps", "window", "residual_scale" }),
    schema.picked(rope, { "theta", "original_seq", "beta_fast", "beta_slow", "truncate",
      "attention_factor", "mscale", "mscale_all_dim", "low_freq_factor", "high_freq_factor" })), {
    layers = { type = "integer", lo = 1, hi = 4096, required = true, doc = "number of blocks" },
    hidden = embedding.hidden,
    ffn = schema.changed({ ffn = schema.optional(form.ffn) }, { ffn = {
      doc = "inner width of a dense feed-forward; needed if there are such blocks" } }).ffn,
    expert_ffn = form.ffn,
    shared_ffn = count(0, 1e7, "inner width of the shared experts of a layer; 0: none"),
    shared_gate = flag "whether the shared experts have a gate of their own",
    dense_layers = count(0, 4096, "number of first blocks that are dense"),
    moe_every = { type = "integer", lo = 1, hi = 4096, default = 1,
      doc = "the last block of each group of this many is an MoE block" },
    tied = flag "whether the head has the matrix of the embedding",
    full_every = count(0, 4096,
      "the last block of each group of this many sees all tokens; 0: none"),
    qkv_bias = grouped.bias, attention_scale = grouped.scale, rope_form = grouped.rope,
    kv_rank = count(0, 2 ^ 20, "rank of k and v of latent attention; 0: grouped attention"),
    q_rank = latent.q_rank,
    nope = count(0, 4096, "of latent attention: columns of a head of q and k that do not turn"),
    value_dim = count(0, 4096, "of latent attention: width of a head of v"),
    -- DeepSeek's code states rms_norm_eps for no norm but those of blocks and head.
    latent_eps = schema.changed(latent, { eps = {
      doc = "of latent attention: eps of the norms of q and of k and v" } }).eps,
    rotary = schema.optional(rope.rotary), rope_scaling = rope.scaling, rope_factor = rope.factor,
    ffn_bias = flag "whether feed-forwards and experts have biases",
    act_limit = form.limit, act_alpha = form.alpha, act_offset = form.offset,
    router_bias = experts.router_bias, choice_bias = experts.choice_bias,
    embedding_scale = embedding.scale, logit_scale = schema.declared "head".scale,
  }),
  -- What these models have unless a recipe says otherwise; and what replaces it.
  defaults = { gate = "top_k", capacity = "none" },
}

--- Returns what is wrong with the fields of a model, or nil.
function M.check(m)
  if m.kv_heads > 0 and m.heads % m.kv_heads ~= 0 then
    return ("kv_heads: %d does not divide heads = %d; give a divisor"):format(m.kv_heads, m.heads)
  end
  if m.head_dim == 0 and m.kv_rank == 0 and m.hidden % m.heads ~= 0 then
    return ("heads: %d does not divide hidden = %d; give a divisor, or head_dim"):format(m.heads,
      m.hidden)
  end
  if m.kv_rank > 0 and (m.nope == 0 or m.value_dim == 0 or not m.rotary) then
    return "kv_rank: latent attention also needs nope, rotary and value_dim"
  end
  if (m.dense_layers > 0 or m.moe_every > 1) and not m.ffn then
    return "ffn: is missing; the model has dense blocks"
  end
end

--- Returns what build gets of the model's own fields.
function M.options(m)
  local o = {}
  for name in pairs(M.fields) do o[name] = m[name] end
  if m.kv_heads == 0 then o.kv_heads = m.heads end
  if m.head_dim == 0 then o.head_dim = math.floor(m.hidden / m.heads) end
  o.rotary = m.rotary or o.head_dim
  return o
end

--- Whether block i, from 1, is an MoE block.
local function is_moe(o, i) return i > o.dense_layers and i % o.moe_every == 0 end

local function attention(b, o, i, x, angles)
  local u = b:rmsnorm(x, { name = "ln1", eps = o.eps, seg = "attn" })
  if o.kv_rank > 0 then
    return b:latent_attention(u, { heads = o.heads, q_rank = o.q_rank, kv_rank = o.kv_rank,
      nope = o.nope, value = o.value_dim, eps = o.latent_eps, rope = o.rope_form,
      scale = o.attention_scale, residual = x, angles = angles })
  end
  local full = o.full_every > 0 and i % o.full_every == 0
  return b:grouped_attention(u, { heads = o.heads, kv_heads = o.kv_heads, head_dim = o.head_dim,
    bias = o.qkv_bias, out_bias = o.out_bias, qk_norm = o.qk_norm,
    norm_after_rope = o.norm_after_rope, eps = o.eps, rope = o.rope_form,
    window = full and 0 or o.window, sinks = o.sinks, scale = o.attention_scale,
    residual_scale = o.residual_scale, residual = x, angles = angles })
end

local function feed_forward(b, o, i, x)
  local moe = is_moe(o, i)
  local u = b:rmsnorm(x, { name = "ln2", eps = o.eps, seg = moe and "gate" or "mlp" })
  local given = { form = "silu_mul", bias = o.ffn_bias, limit = o.act_limit, alpha = o.act_alpha,
    offset = o.act_offset, residual_scale = o.residual_scale, residual = x }
  if not moe then
    given.ffn = o.ffn
    return b:feed_forward(u, given)
  end
  if o.shared_ffn > 0 then
    given.ffn, given.name, given.gated = o.shared_ffn, "shared", o.shared_gate
    given.residual = b:feed_forward(u, given)
    given.name, given.gated = nil, nil
  end
  given.ffn, given.router_bias, given.choice_bias = o.expert_ffn, o.router_bias, o.choice_bias
  return b:experts(u, given)
end

function M.build(b, o)
  local x = b:embedding { hidden = o.hidden, positions = false, scale = o.embedding_scale }
  local angles = b:rope { rotary = o.rotary, theta = o.theta, scaling = o.rope_scaling,
    factor = o.rope_factor, original_seq = o.original_seq, beta_fast = o.beta_fast,
    beta_slow = o.beta_slow, truncate = o.truncate, attention_factor = o.attention_factor,
    mscale = o.mscale, mscale_all_dim = o.mscale_all_dim, low_freq_factor = o.low_freq_factor,
    high_freq_factor = o.high_freq_factor, seg = "attn" }
  for i = 1, o.layers do
    b:block(i)
    x = feed_forward(b, o, i, attention(b, o, i, x, angles))
  end
  b:block()
  b:head(b:rmsnorm(x, { name = "lnf", eps = o.eps, seg = "head" }),
    { tied = o.tied, scale = o.logit_scale })
end

return M
