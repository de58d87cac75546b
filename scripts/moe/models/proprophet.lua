-- The models of the Pro-Prophet paper (arXiv 2411.10003, table III): every FFN is an MoE layer with
-- as many experts as GPUs and without a capacity. The paper gives layers, width and FFN width, but
-- not heads, vocabulary, tokens per sequence or element type. The authors' launcher script trains
-- 64 sequences of 256 tokens on 16 GPUs in single precision; these values are taken here.
local HEADS = "none: 64 columns each"

return function(assumed)
  return {
    doc = "MoE-GPT-S, M, L, DS and DM of the Pro-Prophet paper",
    sources = {
      common = "Pro-Prophet, section VI",
      ["common.seq"] = "the authors' launcher: 64 sequences of 256 tokens on 16 GPUs",
      ["common.batch_per_device"] = "the authors' launcher; 4 x 256 x 16 = 16384 of section VI",
      ["common.rows_bound"] = "FastMoE: it allocates what arrives",
      ["common.dtype"] = "the authors' code: single precision",
      ["common.attention"] = "none: frameworks of its time fuse none",
      sizes = "Pro-Prophet, table III",
      ["sizes.S.heads"] = HEADS, ["sizes.M.heads"] = HEADS, ["sizes.L.heads"] = HEADS,
      ["sizes.DS.heads"] = HEADS, ["sizes.DM.heads"] = HEADS,
    },
    elsewhere = {
      ["recipes/proprophet/speedups.lua"] = {
        { "skew", "s = reading.s or 1.1, drift = 0.05", "law of the loads, and its drift a step",
          "fitted: skew to figure 3, over half for 3 of 16 experts; drift: none: a guess" },
        { "sequences of table V", "rows = 2", "sequences per GPU of LPWNV",
          "none: half of HPWNV's, as its memory" },
      },
      ["recipes/proprophet/shared.lua"] = {
        { "bucket of an all-reduce", "bucket_bytes = 25 * 2 ^ 20",
          "gradients that are reduced at once",
          "PyTorch: DistributedDataParallel's bucket_cap_mb" },
      },
      ["recipes/proprophet/fig11.lua"] = {
        { "skew", "reading.sigma or 1.2", "law of the layers' loads",
          "fitted: to figure 3's skew" },
      },
      ["engine/passes/placement/placement_rates.cpp"] = {
        { "planner's rate B", "kShareOfMost = 1.0 / 3",
          "share of the inputs of the device that gets most, where B is fitted",
          "fitted: figure 3's skew in place of even loads, after the planner had lost" },
      },
      ["engine/placement/prophet.cpp"] = {
        { "alpha", 'number_option("alpha", 1', "equation 7: how even loads must be",
          "fitted: as set F; the authors' code has 3" },
      },
      ["recipes/proprophet/setf.lua"] = {
        { "set F", "F = { a2a = 20, copy = 50, tflops = 20, alpha = 1 }",
          "Gb/s, TFLOP/s, equation 7", "fitted: in sight of table IV's speed-ups" },
        { "set A", "A = { a2a = 100, copy = 15, tflops = 8.925, alpha = 3 }", "as set F",
          "the authors' code" },
      },
      ["recipes/proprophet/fig16.lua"] = {
        { "set F again", "FLOPS = 20e12", "figure 16's planner has set F's rates",
          "fitted: as set F" },
        { "FasterMoE's rates", "bytes_per_s = 50e9 / 8, inputs_per_s = 11.5e12",
          "network, products", "defaults of the public fastmoe code" },
      },
    },
    common = {
      moe_every = 1, gate = "top_k", capacity = "none", experts_per_device = 1, seq = 256,
      rows_bound = 1e6, -- room for any routing: the authors' FastMoE allocates what arrives
      dtype = "f32", attention = "unfused", batch_per_device = 4,
      vocab = assumed { value = 32000, lo = 10000, hi = 50257,
        why = "words of the vocabulary", source = "none: a guess; high end: GPT-2's" },
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
