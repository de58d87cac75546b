-- The models of the Pro-Prophet paper (arXiv 2411.10003, table III): every FFN is an MoE layer with
-- as many experts as GPUs and without a capacity. The paper gives layers, width and FFN width, but
-- not heads, vocabulary, tokens per sequence or element type. The authors' launcher script trains
-- 64 sequences of 256 tokens on 16 GPUs in single precision; these values are taken here.
return function(assumed)
  return {
    doc = "MoE-GPT-S, M, L, DS and DM of the Pro-Prophet paper",
    common = {
      moe_every = 1, gate = "top_k", capacity = "none", experts_per_device = 1, seq = 256,
      rows_bound = 1e6, -- room for any routing: the authors' FastMoE allocates what arrives
      dtype = "f32", attention = "unfused", batch_per_device = 4,
      vocab = assumed { value = 32000, lo = 10000, hi = 50257, why = "not in the paper" },
    },
    sizes = {
      S = { name = "MoE-GPT-S", layers = 12, hidden = 512, heads = 8, ffn = 1024 },
      M = { name = "MoE-GPT-M", layers = 12, hidden = 1024, heads = 16, ffn = 2048 },
      L = { name = "MoE-GPT-L", layers = 12, hidden = 2048, heads = 32, ffn = 4096 },
      DS = { name = "MoE-GPT-DS", layers = 24, hidden = 512, heads = 8, ffn = 1024 },
      DM = { name = "MoE-GPT-DM", layers = 24, hidden = 1024, heads = 16, ffn = 2048 },
    },
  }
end
