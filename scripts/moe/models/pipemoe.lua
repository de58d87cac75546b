-- The layers of PipeMoE (Shi et al., INFOCOM 2023): table IV's grid and the lines of figure 6.
--
-- How its units are read. beta_a is seconds per byte of what a GPU brings to an all-to-all: four GPUs
-- share a 100 Gb/s NIC, and a second per element would need 156 to 324 Gb/s of it. beta_gemm is 48.8
-- TFLOP/s, which a 2080Ti reaches with fp16 tensor cores alone: two bytes per element. k is not
-- given: Tutel's default, 2. A GPU sends and computes k B L rows whatever E/P is (section II-B);
-- lines 2 and 3 of Algorithm 1 multiply them by E/P.
return {
  batch = { 2, 4, 8 }, seq = { 512, 1024, 2048 }, ffn = { 1024, 2048, 4096, 8192 },
  hidden = { 1024, 2048, 4096, 8192 }, experts_per_device = { 1, 2 },
  k = 2, element_bytes = 2,
  alpha_gemm = 6.19e-5, beta_gemm = 4.1e-14,
  all_to_all = {
    [16] = { alpha = 1.72e-4, beta = 2.96e-10 },
    [32] = { alpha = 2.09e-4, beta = 3.54e-10 },
    [64] = { alpha = 7.83e-4, beta = 3.84e-10 },
  },
  -- As printed for 16 GPUs. Ten times less than for 32 although start-ups grow as P - 1 (table II),
  -- and below alpha_e = 1.24e-4, which Eq. 27 takes it to be above; so 1.72e-4 is likely meant.
  printed_alpha_16 = 1.72e-5,
  gib = 11,  -- of a GPU
}
