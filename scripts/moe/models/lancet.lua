-- The models of the Lancet paper (Jiang et al., MLSys 2024, section 7): GPT-2 with an MoE FFN in
-- every other block, two experts per GPU, sequences of 512 tokens. The paper gives neither the
-- number of heads, nor the vocabulary, nor the capacity factor; heads and vocabulary here are
-- GPT-2's.
return function(assumed)
  return {
    doc = "GPT2-S-MoE and GPT2-L-MoE of the Lancet paper, with its batches on p4de and p3dn",
    common = {
      seq = 512, experts_per_device = 2,
      -- Frameworks of 2021 compute score, softmax and context in separate kernels.
      attention = "unfused",
      -- 1.25 was chosen with the paper's speed-ups known: with the factor 1 slots have no
      -- padding, and our simulated speed-ups are smaller.
      capacity_factor = assumed { value = 1.25, lo = 1, hi = 2,
        why = "not in the paper; Switch Transformer compares 1, 1.25 and 2 (table 1)" },
    },
    sizes = {
      S = { name = "GPT2-S-MoE", layers = 12, hidden = 768, heads = 12 },
      L = { name = "GPT2-L-MoE", layers = 24, hidden = 1024, heads = 16 },
    },
    -- Sequences per GPU; the paper's printed value comes first. The printed 48 for L on
    -- p4de contradicts section 7.4, where L has a smaller batch than S; the alternative, 8, is L's
    -- batch on p3dn.
    batches = {
      p4de = { S = { 24 }, L = { 48, 8 } },
      p3dn = { S = { 16 }, L = { 8 } },
    },
  }
end
