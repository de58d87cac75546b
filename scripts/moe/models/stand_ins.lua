-- Parts of attention that do not exist here, for which a block of stated flops and bytes stands in
-- where a model is simulated (moe.model.from_config with stand_in). The projections around the
-- part, and all of its parameters, are there; what lies between them is the op stand_in.
--
-- A part is { width = columns of its result, nodes = its projections, own = its other parameters }.
-- A node is { name, width, of = the node that it reads (nil: the block's input), norm = whether an
-- RMSNorm follows, bias = whether it has a bias, inner = whether only other nodes read it }, whose
-- first two M.named() names; `own` has { name, shape } each. A function takes the config, whose
-- fields it reads with c:need.
local M = {}

--- Returns the part with nodes { name =, width =, of =, norm =, bias =, inner = }.
function M.named(part)
  for _, node in ipairs(part.nodes) do
    node.name, node.width, node[1], node[2] = node[1], node[2], nil, nil
  end
  return part
end

--- The gated delta networks of Qwen3-Next (arXiv 2412.06464).
function M.delta(c)
  local keys = c:need "linear_num_key_heads" * c:need "linear_key_head_dim"
  local heads, head = c:need "linear_num_value_heads", c:need "linear_value_head_dim"
  local values, length = heads * head, c:need "linear_conv_kernel_dim"
  return { width = values,
    nodes = { { "qkv", 2 * keys + values }, { "z", values }, { "b", heads }, { "a", heads } },
    own = { { "conv", { 2 * keys + values, 1, length } }, { "dt_bias", { heads } },
      { "A_log", { heads } }, { "norm", { head } } } }
end

-- Kimi's delta attention (arXiv 2510.26692). nodes: those of the forget gate f and the output gate.
local function kimi(heads, head, length, nodes)
  local width = heads * head
  for _, name in ipairs { "q", "k", "v" } do nodes[#nodes + 1] = { name, width } end
  nodes[#nodes + 1] = { "b", heads }
  return { width = width, nodes = nodes, own = { { "conv", { 3 * width, 1, length } },
    { "dt_bias", { width } }, { "A_log", { heads } }, { "norm", { head } } } }
end

function M.kimi(c)
  local heads, head = c:need "linear_num_heads", c:need "linear_head_dim"
  return kimi(heads, head, c:need "linear_conv_kernel_dim", { { "f_a", head, inner = true },
    { "f", heads * head, of = "f_a" }, { "g_a", head, inner = true },
    { "g", heads * head, of = "g_a" } })
end

--- Kimi's delta attention with full matrices for both gates (Ling).
function M.ling(c)
  local heads = c:get "linear_num_heads" or c:need "num_attention_heads"
  local head = c:get "linear_head_dim" or c:need "head_dim"
  local length = c:get "linear_conv_kernel_dim" or c:need "short_conv_kernel_size"
  return kimi(heads, head, length, { { "f", heads * head },
    { "g", heads * head } })
end

--- The lightning attention of MiniMax-01 (arXiv 2501.08313).
function M.lightning(c)
  local heads = c:need "num_attention_heads"
  local width = heads * (c:get "head_dim" or math.floor(c:need "hidden_size" / heads))
  return { width = width, nodes = { { "qkv", 3 * width }, { "gate", width } },
    own = { { "norm", { width } } } }
end

--- Mamba-2 (arXiv 2405.21060).
function M.mamba2(c)
  local inner, heads = c:need "mamba_expand" * c:need "hidden_size", c:need "mamba_n_heads"
  local states = 2 * c:need "mamba_n_groups" * c:need "mamba_d_state"
  if c:auto("mamba_d_head", inner / heads) * heads ~= inner then
    c:fail("mamba_d_head: times mamba_n_heads = %d must be %d", heads, inner)
  end
  local own = { { "conv", { inner + states, 1, c:need "mamba_d_conv" } }, { "norm", { inner } } }
  if c:get "mamba_conv_bias" then own[#own + 1] = { "conv.b", { inner + states } } end
  for _, name in ipairs { "dt_bias", "A_log", "D" } do own[#own + 1] = { name, { heads } } end
  return { width = inner, own = own, nodes = { { "z", inner }, { "xbc", inner + states },
    { "dt", heads } } }
end

--- Mamba (arXiv 2312.00752) with norms of dt, B and C (Jamba, arXiv 2403.19887).
function M.mamba1(c)
  local hidden, state = c:need "hidden_size", c:need "mamba_d_state"
  local inner = c:need "mamba_expand" * hidden
  local rank = c:auto("mamba_dt_rank", math.ceil(hidden / 16))
  local own = { { "conv", { inner, 1, c:need "mamba_d_conv" } }, { "A_log", { inner, state } },
    { "D", { inner } } }
  if c:get "mamba_conv_bias" then own[#own + 1] = { "conv.b", { inner } } end
  return { width = inner, own = own, nodes = { { "x", inner }, { "z", inner },
    { "dt_low", rank, of = "x", norm = true, inner = true },
    { "B", state, of = "x", norm = true }, { "C", state, of = "x", norm = true },
    { "dt", inner, of = "dt_low", bias = true } } }
end

--- The short convolutions of LFM2.
function M.convolution(c)
  local hidden = c:need "hidden_size"
  return { width = hidden, nodes = { { "in", 3 * hidden } },
    own = { { "conv", { hidden, 1, c:need "conv_L_cache" } } } }
end

--- Latent attention. o: heads, q_rank, kv_rank, nope, rotary, value; gate = whether each head has
--- one; rope_norm = whether the columns of k that turn have a norm; indexer = { heads, head } of
--- the keys that a token sees (DeepSeek-V3.2).
local function latent(o)
  local nodes, own = {}, {}
  local low = o.q_rank and o.q_rank > 0
  if low then nodes[1] = { "q_a", o.q_rank, norm = true, inner = true } end
  nodes[#nodes + 1] = { "q", o.heads * (o.nope + o.rotary), of = low and "q_a" or nil }
  nodes[#nodes + 1] = { "kv_a", o.kv_rank, norm = true, inner = true }
  nodes[#nodes + 1] = { "k_rope", o.rotary, norm = o.rope_norm }
  nodes[#nodes + 1] = { "kv", o.heads * (o.nope + o.value), of = "kv_a" }
  if o.gate then nodes[#nodes + 1] = { "gate", o.heads } end
  if o.indexer then
    local heads, head = o.indexer[1], o.indexer[2]
    nodes[#nodes + 1] = { "index_q", heads * head, of = "q_a" }
    nodes[#nodes + 1] = { "index_k", head }
    nodes[#nodes + 1] = { "index_weight", heads }
    own = { { "index_norm.w", { head } }, { "index_norm.b", { head } } }
  end
  return { width = o.heads * o.value, nodes = nodes, own = own }
end

local function latent_of(c, more)
  more.heads, more.q_rank = c:need "num_attention_heads", c:get "q_lora_rank"
  more.kv_rank, more.nope = c:need "kv_lora_rank", c:need "qk_nope_head_dim"
  more.rotary, more.value = c:need "qk_rope_head_dim", c:need "v_head_dim"
  return latent(more)
end

function M.indexed(c)
  c:get "index_topk"
  return latent_of(c, { indexer = { c:need "index_n_heads", c:need "index_head_dim" } })
end

function M.gated_latent(c) return latent_of(c, { gate = true }) end

function M.gated_indexed(c)
  c:get "index_topk"
  return latent_of(c, { gate = true, rope_norm = true,
    indexer = { c:need "index_n_heads", c:need "index_head_dim" } })
end

--- Sizes of the windows of dots3, which its class has as constants.
M.DOTS_WINDOW = { num_attention_heads = 64, num_key_value_heads = 64, q_lora_rank = 1024,
  kv_lora_rank = 1024, head_dim = 256, qk_nope_head_dim = 192, qk_rope_head_dim = 64,
  v_head_dim = 128 }

function M.gated_window()
  local o = M.DOTS_WINDOW
  return latent { heads = o.num_attention_heads, q_rank = o.q_lora_rank, kv_rank = o.kv_lora_rank,
    nope = o.qk_nope_head_dim, rotary = o.qk_rope_head_dim, value = o.v_head_dim, gate = true,
    rope_norm = true }
end

--- Grouped attention; norm: whether q and k have norms of their heads; gate: whether each head has
--- one.
function M.grouped(norm, gate)
  return function(c)
    local heads, head = c:need "num_attention_heads", c:need "head_dim"
    local kv = c:need "num_key_value_heads" * head
    local nodes = { { "q", heads * head }, { "k", kv }, { "v", kv } }
    if gate then nodes[4] = { "gate", heads } end
    return { width = heads * head, nodes = nodes,
      own = norm and { { "q_norm.w", { head } }, { "k_norm.w", { head } } } or {} }
  end
end

return M
