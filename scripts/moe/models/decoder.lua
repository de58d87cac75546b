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

local ROPE = { "theta", "original_seq", "beta_fast", "beta_slow", "truncate", "attention_factor",
  "mscale", "mscale_all_dim", "low_freq_factor", "high_freq_factor" }

local M = {
  name = "decoder",
  doc = "a decoder with rotary embeddings and gated experts, as most open MoE models are",
  fields = schema.merged(schema.merged(
    schema.picked(grouped, { "heads", "kv_heads", "head_dim", "out_bias", "qk_norm", "sinks",
      "norm_after_rope", "eps", "window", "residual_scale" }),
    schema.picked(rope, ROPE)), {
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
    mtp_layers = count(0, 64, "MTP layers behind the blocks: layer k predicts k tokens further on "
      .. "(DeepSeek-V3, arXiv 2412.19437, section 2.2)"),
    mtp_factor = { type = "number", lo = 0, hi = 1e6, doc = "factor of the mean of the MTP layers' "
      .. "losses in the loss; default: 0.1 (Megatron-LM's mtp_loss_scaling_factor)" },
    full_every = count(0, 4096,
      "the last block of each group of this many sees all tokens; 0: none"),
    ffns = { type = "string", doc = "a letter per block, d dense and m MoE, in "
      .. "place of dense_layers and moe_every; of a longer text the first ones count" },
    attentions = { type = "string", doc = "a letter per block, in place of "
      .. "full_every: f sees all tokens, w a window; n and v do so without rotary embeddings" },
    stand_in = { type = "table", doc = "what stands in for attention in blocks of the letters s "
      .. "and t, as moe.model.from_config makes it of its own stand_in; simulated only" },
    window_kv_heads = count(0, 1e5, "kv_heads of blocks with a window; 0: those of all"),
    window_theta = schema.optional(rope.theta), window_rotary = schema.optional(rope.rotary),
    window_sinks = flag "whether only blocks with a window have sinks",
    attention_gate = grouped.gated, value_scale = grouped.value_scale,
    norm = { type = "string", default = "rmsnorm", enum = { "rmsnorm", "layernorm" },
      doc = "the norms of blocks and head; layernorm has an eps of 1e-5" },
    form = { type = "string", default = "silu_mul", enum = { "silu_mul", "gelu" },
      doc = "of feed-forwards and experts" },
    positions = { type = "boolean", default = false,
      doc = "whether tokens have a learned embedding of their position in place of rotary ones" },
    norms = { type = "string", default = "before", enum = { "before", "after", "both", "experts" },
      doc = "where attention and feed-forward have their norm: of the input, of the output, of "
        .. "both, or of the input and of the output of MoE blocks' feed-forward" },
    qkv_bias = grouped.bias, attention_scale = grouped.scale, rope_form = grouped.rope,
    kv_rank = count(0, 2 ^ 20, "rank of k and v of latent attention; 0: grouped attention"),
    q_rank = latent.q_rank,
    nope = count(0, 4096, "of latent attention: columns of a head of q and k that do not turn"),
    value_dim = count(0, 4096, "width of a head of v; 0: head_dim"),
    -- DeepSeek's code states rms_norm_eps for no norm but those of blocks and head.
    latent_eps = schema.changed(latent, { eps = {
      doc = "of latent attention: eps of the norms of q and of k and v" } }).eps,
    rotary = schema.optional(rope.rotary), rope_scaling = rope.scaling, rope_factor = rope.factor,
    ffn_bias = flag "whether feed-forwards and experts have biases",
    act_limit = form.limit, act_alpha = form.alpha, act_offset = form.offset,
    router_bias = experts.router_bias, choice_bias = experts.choice_bias,
    bias_on = experts.bias_on,
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
  for _, name in ipairs { "ffns", "attentions" } do
    local text = m[name] or ""
    local letters = name == "ffns" and "dm" or m.stand_in and "fwnvst" or "fwnv"
    if m[name] and (#text < m.layers or text:find("[^" .. letters .. "]")) then
      return ("%s: '%s': give one of the letters %s for each of the %d blocks"):format(name, text,
        letters, m.layers)
    end
  end
  if (m.ffns and m.ffns:sub(1, m.layers):find "d" or m.dense_layers > 0 or m.moe_every > 1)
      and not m.ffn then
    return "ffn: is missing; the model has dense blocks"
  end
  if m.mtp_factor and m.mtp_layers == 0 then
    return "mtp_factor: has no effect without MTP layers; omit it, or give mtp_layers"
  end
end

--- Returns what build gets of the model's own fields.
function M.options(m)
  local o = {}
  for name in pairs(M.fields) do o[name] = m[name] end
  if m.kv_heads == 0 then o.kv_heads = m.heads end
  if m.head_dim == 0 then o.head_dim = math.floor(m.hidden / m.heads) end
  o.rotary = m.rotary or o.head_dim
  o.window_rotary = m.window_rotary or o.rotary
  return o
end

--- Whether block i, from 1, is an MoE block.
local function is_moe(o, i)
  if o.ffns then return o.ffns:sub(i, i) == "m" end
  return i > o.dense_layers and i % o.moe_every == 0
end

-- Returns whether block i sees only a window, and the angles of its rotary embeddings, or nil.
local function seen(o, i, angles)
  local full = o.full_every > 0 and i % o.full_every == 0
  local kind = o.attentions and o.attentions:sub(i, i) or full and "f" or "w"
  local window = o.window > 0 and (kind == "w" or kind == "v")
  return window, kind ~= "n" and kind ~= "v" and not o.positions and angles[window] or nil
end

-- Returns the norm of x, of this name and segment.
local function normed(b, o, x, name, seg)
  if o.norm == "layernorm" then return b:layernorm(x, { name = name, seg = seg }) end
  return b:rmsnorm(x, { name = name, eps = o.eps, seg = seg })
end

-- Returns x plus the norm of y.
local function added(b, o, name, y, x)
  y = normed(b, o, y, name .. ".post_norm")
  return b:op { kind = "add", name = name .. ".sum", inputs = { y, x } }
end

-- Returns x plus what stands in for attention of u; part: as in stand_ins.lua, with what it stands
-- for, flops and bytes.
local function stood_in(b, o, u, x, part)
  local made, inputs = {}, {}
  local function project(name, from, width, out, bias, residual)
    local w = b:parameter { name = name .. ".w", shape = { out, width } }
    return b:op { kind = "linear", name = name, seg = "attn", inputs = { from, w,
      bias and b:parameter { name = name .. ".b", shape = { out }, init = "zero" } or false,
      residual or false } }
  end
  for _, node in ipairs(part.nodes) do
    local name, from = "attn." .. node.name, made[node.of] or { u, o.hidden }
    local y = project(name, from[1], from[2], node.width, node.bias)
    if node.norm then y = b:rmsnorm(y, { name = name .. "_norm", eps = o.eps }) end
    made[node.name] = { y, node.width }
    if not node.inner then inputs[#inputs + 1] = y end
  end
  for _, own in ipairs(part.own) do
    inputs[#inputs + 1] = b:parameter { name = "attn." .. own[1], shape = own[2] }
  end
  local y = b:op { kind = "stand_in", name = "attn.core", inputs = inputs, attrs = {
    what = part.what, width = part.width, parameters = #part.own, flops = part.flops,
    bytes = part.bytes } }
  return project("attn.out", y, part.width, o.hidden, false, x)
end

local function attention(b, o, i, x, angles)
  local u, after = x, o.norms == "after" or o.norms == "both"
  if o.norms ~= "after" then u = normed(b, o, x, "ln1", "attn") end
  local window, turned = seen(o, i, angles)
  local part = (o.stand_in or {})[o.attentions and o.attentions:sub(i, i)]
  local y
  if part then
    y = stood_in(b, o, u, not after and x or nil, part)
  elseif o.kv_rank > 0 then
    y = b:latent_attention(u, { heads = o.heads, q_rank = o.q_rank, kv_rank = o.kv_rank,
      nope = o.nope, value = o.value_dim, eps = o.latent_eps, rope = o.rope_form,
      scale = o.attention_scale, residual = not after and x or nil, angles = turned })
  else
    y = b:grouped_attention(u, { heads = o.heads, head_dim = o.head_dim,
      kv_heads = window and o.window_kv_heads > 0 and o.window_kv_heads or o.kv_heads,
      bias = o.qkv_bias, out_bias = o.out_bias, qk_norm = o.qk_norm, value = o.value_dim,
      norm_after_rope = o.norm_after_rope, eps = o.eps, rope = o.rope_form,
      window = window and o.window or 0, sinks = o.sinks and (window or not o.window_sinks),
      scale = o.attention_scale, gated = o.attention_gate, value_scale = o.value_scale,
      residual_scale = o.residual_scale, residual = not after and x or nil, angles = turned })
  end
  return after and added(b, o, "attn", y, x) or y
end

local function feed_forward(b, o, i, x)
  local moe = is_moe(o, i)
  local u, seg = x, moe and "gate" or "mlp"
  if o.norms ~= "after" then u = normed(b, o, x, "ln2", seg) end
  local after = o.norms == "after" or o.norms == "both" or moe and o.norms == "experts"
  local given = { form = o.form, bias = o.ffn_bias, limit = o.act_limit, alpha = o.act_alpha,
    offset = o.act_offset, residual_scale = o.residual_scale, residual = not after and x or nil }
  local y
  if not moe then
    given.ffn = o.ffn
    y = b:feed_forward(u, given)
  else
    if o.shared_ffn > 0 then
      given.ffn, given.name, given.gated = o.shared_ffn, "shared", o.shared_gate
      given.residual = b:feed_forward(u, given)
      given.name, given.gated = nil, nil
    end
    given.ffn, given.router_bias, given.choice_bias = o.expert_ffn, o.router_bias, o.choice_bias
    given.bias_on = o.bias_on
    y = b:experts(u, given)
  end
  return after and added(b, o, "ffn", y, x) or y
end

-- Adds MTP layer k, whose block is like the last one, and returns its rows. x: the rows of the
-- depth before, behind the last norm, as Megatron-LM and the published weights have it.
local function mtp_layer(b, o, k, x, angles)
  b:block(o.layers + k)
  local ahead = b:embedding { hidden = o.hidden, positions = false, scale = o.embedding_scale,
    ahead = k }
  local both = b:op { kind = "concat", name = "mtp.rows", attrs = { axis = 2 }, inputs = {
    normed(b, o, ahead, "mtp.enorm", "head"), normed(b, o, x, "mtp.hnorm") } }
  x = b:op { kind = "linear", name = "mtp.proj", inputs = { both,
    b:parameter { name = "mtp.proj.w", shape = { o.hidden, 2 * o.hidden } } } }
  x = feed_forward(b, o, o.layers, attention(b, o, o.layers, x, angles))
  return normed(b, o, x, "mtp.norm", "head")
end

function M.build(b, o)
  local x = b:embedding { hidden = o.hidden, positions = o.positions, scale = o.embedding_scale }
  local angles = {}
  local turns = { rotary = o.rotary, scaling = o.rope_scaling, factor = o.rope_factor,
    seg = "attn" }
  for _, name in ipairs(ROPE) do turns[name] = o[name] end
  angles[false] = not o.positions and b:rope(turns)
  angles[true] = o.window_theta and not o.positions and b:rope { rotary = o.window_rotary,
    theta = o.window_theta, name = "window_rope", seg = "attn" } or angles[false]
  for i = 1, o.layers do
    b:block(i)
    x = feed_forward(b, o, i, attention(b, o, i, x, angles))
  end
  b:block()
  x = normed(b, o, x, "lnf", "head")
  b:head(x, { tied = o.tied, scale = o.logit_scale })
  for k = 1, o.mtp_layers do
    x = mtp_layer(b, o, k, x, angles)
    b:block()
    b:head(x, { tied = o.tied, scale = o.logit_scale, ahead = k,
      factor = (o.mtp_factor or 0.1) / o.mtp_layers })
  end
end

return M
