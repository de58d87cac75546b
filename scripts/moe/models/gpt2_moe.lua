-- GPT-2 with MoE layers: LayerNorm before each part, learned positions, attention and feed-forward
-- with biases, the head tied to the embedding (the ops are Lancet's instruction list).
local M = {
  name = "gpt2_moe",
  doc = "GPT-2 with MoE FFNs in every other block",
  fields = {
    layers = { type = "integer", lo = 1, hi = 10000, required = true, doc = "number of blocks" },
    hidden = { type = "integer", lo = 1, hi = 1e6, required = true, doc = "model width" },
    heads = { type = "integer", lo = 1, hi = 1e5, required = true,
      doc = "number of attention heads; must divide hidden" },
    ffn = { type = "integer", lo = 1, hi = 1e7,
      doc = "inner width of an FFN; default: 4 * hidden" },
    moe_every = { type = "integer", lo = 1, hi = 1e4, default = 2,
      doc = "the last block of each group of this many blocks has an MoE FFN" },
    moe_first = { type = "boolean", default = false,
      doc = "whether the first block of each group has it instead" },
    attention = { type = "string", enum = { "fused", "unfused" }, default = "fused",
      doc = "fused: one kernel; unfused: scores, softmax and context are written to memory" },
  },
}

--- Returns what is wrong with the fields of a model, or nil.
function M.check(m)
  if m.hidden % m.heads == 0 then return nil end
  return ("heads: %d does not divide hidden = %d; give a divisor"):format(m.heads, m.hidden)
end

--- Returns what build gets of the model's own fields.
function M.options(m)
  return { layers = m.layers, hidden = m.hidden, heads = m.heads, ffn = m.ffn or 4 * m.hidden,
    moe_every = m.moe_every, moe_first = m.moe_first, fused_attention = m.attention == "fused" }
end

function M.build(b, o)
  local x = b:embedding { hidden = o.hidden }
  for i = 1, o.layers do
    b:block(i)
    x = b:attention(b:layernorm(x, { name = "ln1", seg = "attn" }), { heads = o.heads,
      kernel = o.fused_attention and "fused" or "unfused", residual = x })
    local moe = (o.moe_first and i - 1 or i) % o.moe_every == 0
    local u = b:layernorm(x, { name = "ln2", seg = moe and "gate" or "mlp" })
    local ffn = moe and b.experts or b.feed_forward
    x = ffn(b, u, { ffn = o.ffn, residual = x })
  end
  b:block()
  b:head(b:layernorm(x, { name = "lnf", seg = "head" }))
end

return M
