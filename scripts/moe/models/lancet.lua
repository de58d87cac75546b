-- The models of the Lancet paper (Jiang et al., MLSys 2024, section 7): GPT-2 with an MoE FFN in
-- every other block, two experts per GPU, sequences of 512 tokens. `artifact` is what the authors'
-- artifact runs (github.com/awslabs, Lancet-Accelerating-MoE-Training-via-Whole-Graph-Computation-
-- Communication-Overlapping, commits 2b289ab, 8dc41d7, 6748af0; its files are named below), which
-- may differ from the runs of the print. Its experts have ReLU; GELU here moves as many bytes.
return function(assumed)
  local S = { name = "GPT2-S-MoE", layers = 12, hidden = 768 }
  local L = { name = "GPT2-L-MoE", layers = 24, hidden = 1024 }
  -- The print gives neither dtype, heads, vocabulary nor capacity factor, nor which blocks are MoE.
  local function print_with(batch_of_l)
    return {
      common = {
        heads = 12,  -- GPT-2's
        -- 1.25 was chosen with the paper's speed-ups known: with the factor 1 slots have no
        -- padding, and our simulated speed-ups are smaller.
        capacity_factor = assumed { value = 1.25, lo = 1, hi = 2,
          why = "not in the paper; Switch Transformer compares 1, 1.25 and 2 (table 1)",
          source = "fitted: in sight of figures 11 and 12; band: Switch Transformer" },
      },
      L = { heads = 16 }, p4de = { dtype = "f16", S = 24, L = batch_of_l },
      p3dn = { dtype = "f16", S = 16, L = 8 },
    }
  end
  -- nh16 in models/experiment_configs; capacity factor: models/benchmark/pytorch/utils.py; blocks
  -- 0, 2, ... are MoE.
  local artifact = {
    common = { heads = 16, capacity_factor = 1, moe_first = true },
    -- FP16=False in models/run_exp_configs.py. cuBLAS multiplies float32 by TF32 on A100 where the
    -- framework allows it, as PyTorch 1.10 and RAF's handle did; V100 has no TF32. Batches:
    -- scaling_experiments_p4de.jsonl, scaling_experiments_p3dn.jsonl.
    p4de = { dtype = "tf32", S = 48, L = 24 }, p3dn = { dtype = "f32", S = 16, L = 8 },
  }
  return {
    doc = "GPT2-S-MoE and GPT2-L-MoE of the Lancet paper, with its batches on p4de and p3dn",
    stacks = { "deepspeed_2021", "tutel_2022" },
    sources = {
      common = "Lancet, section 7", ["common.attention"] = "none: frameworks of 2021 fuse none",
      sizes = "Lancet, section 7, and the artifact's models/experiment_configs",
      ["readings.artifact"] = "artifact, models/run_exp_configs.py (dtype), "
        .. "scaling_experiments_p3dn.jsonl and _p4de.jsonl (batches)",
      ["readings.artifact.common"] = "artifact, models/experiment_configs (heads, MoE blocks), "
        .. "models/benchmark/pytorch/utils.py (capacity)",
      ["readings.print"] = "Lancet, section 7",
      ["readings.print.common.heads"] = "GPT-2", ["readings.print.L.heads"] = "GPT-2",
      ["readings.print.p4de.dtype"] = "none: a guess",
      ["readings.print.p3dn.dtype"] = "none: a guess",
      ["readings.print_l8"] = "as readings.print; L on p4de: that of p3dn, since section 7.4 says "
        .. "that L has less than S",
      zipf = "recorded: GPT-2's initial parameters on text (recipes/lancet/routing.lua)",
    },
    elsewhere = {
      ["scripts/moe/spec/system.lua"] = {
        { "parts", "max_parts = { 8, 4, 2 }", "most parts of a range, fewer where memory ends",
          "artifact: at most 8" },
        { "degrees", "degree = { 1, 2, 4, 8 }", "Tutel's degrees, of which the best is taken",
          "artifact: 1, 2, 4, 8" },
      },
      ["recipes/lancet/fig11_12.lua"] = {
        { "bucket of an all-reduce", "BUCKET = 25 * 2 ^ 20",
          "gradients that the baselines reduce at once",
          "PyTorch: DistributedDataParallel's bucket_cap_mb" },
      },
    },
    common = {
      seq = 512, experts_per_device = 2,
      -- Frameworks of 2021 compute score, softmax and context in separate kernels.
      attention = "unfused",
    },
    sizes = { S = S, L = L },
    -- p4de, p3dn: sequences per GPU by size, and the dtype.
    readings = {
      artifact = artifact, artifact_text = artifact,
      print = print_with(48),
      -- Section 7.4 says that L has a smaller batch than S, which the printed 48 contradicts; 8 is
      -- L's batch on p3dn.
      print_l8 = print_with(8),
    },
    -- The artifact sends wikitext-2 through gates that begin untrained. Nothing says how theirs
    -- then load the experts. GPT-2's initial parameters crowd them, and so does this law: of 32
    -- experts the busiest gets 19 times the mean, and 75% of the choices find no slot (15 to 25
    -- times and 73 to 83% are recorded: recipes/lancet/routing.lua).
    zipf = { artifact_text = 2 },
  }
end
