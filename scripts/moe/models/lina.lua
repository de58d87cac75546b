-- The models of the Lina paper (Li et al., USENIX ATC 2023, section 7.1): every FFN is an MoE layer
-- with as many experts as GPUs and two choices per token. The paper gives the numbers of layers and
-- experts, but not widths, batch, tokens per sequence, vocabulary or capacity.
return function(assumed)
  return {
    doc = "Transformer-XL, BERT2GPT2 and GPT-2 with MoE in every FFN, of the Lina paper",
    common = {
      moe_every = 1, gate = "top2", seq = 512, experts_per_device = 1,
      -- Frameworks of 2021 have no mixed precision by default, and their attention writes its
      -- intermediate results to memory. GEMMs run in TF32, the default of PyTorch 1.10.
      dtype = "tf32", attention = "unfused",
      batch_per_device = assumed { value = 16, lo = 8, hi = 24,
        why = "not in the paper; table 1's all-to-alls mean 8 sequences, figure 8's FFN 17" },
      capacity_factor = assumed { value = 1, lo = 1, hi = 2,
        why = "not in the paper; DeepSpeed-MoE's default is 1" },
    },
    sizes = {
      -- Widths from the paper's table 1: a layer has 5 d^2 + experts * 2 d f parameters, which with
      -- d = 512 and f = 2048 gives the printed 117M to 1.2B. The vocabulary is that of enwik8, the
      -- data set of the paper's inference experiments.
      transformer_xl = { name = "Transformer-XL", layers = 24, hidden = 512, heads = 8, ffn = 2048,
        vocab = 204 },
      -- GPT-2 small.
      gpt2 = { name = "GPT-2", layers = 12, hidden = 768, heads = 12, ffn = 3072, vocab = 50257 },
      -- BERT base followed by GPT-2 small: their 12 + 12 blocks, without cross-attention.
      bert2gpt2 = { name = "BERT2GPT2", layers = 24, hidden = 768, heads = 12, ffn = 3072,
        vocab = 50257 },
      -- For the inference experiments: width of the public BERT-Large, 12 layers as in the paper.
      bert_large = { name = "BERT-Large", layers = 12, hidden = 1024, heads = 16, ffn = 4096,
        vocab = 30522 },
    },
  }
end
