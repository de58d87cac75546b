-- The models of the Lina paper (Li et al., USENIX ATC 2023, section 7.1): every FFN is an MoE layer
-- with as many experts as GPUs and two choices per token. The paper gives the numbers of layers and
-- experts, but not widths, batch, tokens per sequence, vocabulary or capacity.
return function(assumed)
  return {
    doc = "Transformer-XL, BERT2GPT2 and GPT-2 with MoE in every FFN, of the Lina paper",
    sources = {
      common = "Lina, section 7.1", ["common.seq"] = "none: that of Lancet's GPT-2",
      ["common.dtype"] = "PyTorch 1.10's default on A100",
      ["common.attention"] = "none: frameworks of 2021 fuse none",
      sizes = "Lina, section 7.1 (layers), and the public models",
      ["sizes.transformer_xl"] = "Lina, section 7.1 (layers); widths by table 1's parameters",
      ["sizes.transformer_xl.heads"] = "Transformer-XL base",
      ["sizes.transformer_xl.vocab"] = "enwik8, the paper's data set for inference",
    },
    elsewhere = {
      ["recipes/lina/table1.lua"] = {
        { "rows per GPU", "ROWS = 10", "sequences per GPU",
          "fitted: to table 1's 333 ms (lina-018)" },
      },
      ["recipes/lina/timelines.lua"] = {
        { "rows of the layer", "CELL_MS = { 5, 2 }, { 0.7, 1, 0.5 }",
          "sequences of one layer; sharing efficiency",
          "fitted: rows to figure 7c's 24.6 ms; efficiencies: none" },
        { "micro-op of one layer", "bytes = 10e6", "bytes of a micro-op",
          "none: several parts of one layer's gradients, as figure 8a shows" },
      },
      ["recipes/lina/inference_fig16_18.lua"] = {
        { "popularity", "DEAL = { [4] = 6.5, [8] = 4.5, [16] = 1.3 }", "how classes get experts",
          "fitted: to figure 6's 4.02 and 5.56; 8 experts: none: between these" },
        { "classes of tokens", "classes = 128, skew = 1, stray = 0.2", "how tokens keep to experts",
          "fitted: to figure 9's 41.94% and 54.59%" },
        { "drift", "drift or 0.3", "how popularity moves from batch to batch; band: 0.1 to 0.6",
          "none: a guess; it decides the accuracy" },
        { "tokens", "30, 20, 12, 8 * 512", "batches, those of the profile, layers, tokens of a GPU",
          "none: a guess; layers: section 7.1" },
        { "phases", "place_ms = 6.2, resume_ms = 1.45, rerun_ms = 6.2", "phase 2 of placement",
          "Lina, section 7.3" },
        { "rate from the host", "host_bytes_per_s = 25e9", "experts from host memory",
          "none: 0.8 of PCIe 4.0 x16" },
        { "closed form", "place_ms = 0.2", "placing alone",
          "tests/bench/bench_lina.cpp: 0.1 ms on a CPU core" },
      },
      ["engine/passes/table.cpp"] = {
        { "micro-op", '{"bytes", 30e6', "bytes of a micro-op",
          "Lina: 30 MB, the best of its figure 15" },
      },
    },
    common = {
      moe_every = 1, gate = "top2", seq = 512, experts_per_device = 1,
      -- Frameworks of 2021 have no mixed precision by default, and their attention writes its
      -- intermediate results to memory. GEMMs run in TF32, the default of PyTorch 1.10.
      dtype = "tf32", attention = "unfused",
      batch_per_device = assumed { value = 16, lo = 8, hi = 24,
        why = "not in the paper; table 1's all-to-alls mean 8 sequences, figure 8's FFN 17",
        source = "fitted: between table 1 and figure 8; both are in the band" },
      capacity_factor = assumed { value = 1, lo = 1, hi = 2,
        why = "not in the paper; DeepSpeed-MoE's default is 1",
        source = "value: DeepSpeed-MoE; high end: none: a guess" },
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
