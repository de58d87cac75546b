-- The layers of the PipeMoE paper (Shi et al., INFOCOM 2023): the grid of its table IV, and the
-- straight lines (time = alpha + beta * size) of its figure 6.
--
-- How its units are read. beta_a is in seconds per byte that a GPU brings to an all-to-all: four
-- GPUs share a 100 Gb/s NIC, and seconds per element would need 156 to 324 Gb/s from that NIC.
-- beta_gemm corresponds to 48.8 TFLOP/s, which a 2080Ti reaches only with fp16 tensor cores; hence
-- two bytes per element. The paper does not give k; 2, Tutel's default, is taken. A GPU sends and
-- computes k B L rows for any E/P, experts per GPU (section II-B), but lines 2 and 3 of Algorithm 1
-- multiply these rows by E/P.
return {
  sources = {
    batch = "PipeMoE, table IV", seq = "PipeMoE, table IV", ffn = "PipeMoE, table IV",
    hidden = "PipeMoE, table IV", experts_per_device = "PipeMoE, table IV",
    k = "fitted: Tutel's default, settled in sight of table VI",
    element_bytes = "fitted: fp16 by figure 6's rate, settled in sight of table VI",
    alpha_gemm = "PipeMoE, figure 6", beta_gemm = "PipeMoE, figure 6",
    all_to_all = "PipeMoE, figure 6",
    ["all_to_all.16.alpha"] = "fitted: ten times the printed one, settled in sight of table VI",
    printed_alpha_16 = "PipeMoE, figure 6", gib = "NVIDIA's data sheet of 2080Ti",
  },
  batch = { 2, 4, 8 }, seq = { 512, 1024, 2048 }, ffn = { 1024, 2048, 4096, 8192 },
  hidden = { 1024, 2048, 4096, 8192 }, experts_per_device = { 1, 2 },
  k = 2, element_bytes = 2,
  alpha_gemm = 6.19e-5, beta_gemm = 4.1e-14,
  all_to_all = {
    [16] = { alpha = 1.72e-4, beta = 2.96e-10 },
    [32] = { alpha = 2.09e-4, beta = 3.54e-10 },
    [64] = { alpha = 7.83e-4, beta = 3.84e-10 },
  },
  -- alpha_a for 16 GPUs as printed. It is a twelfth of that for 32 GPUs, although start-ups grow as
  -- P - 1 (table II), and it is below alpha_e = 1.24e-4, although Eq. 27 assumes that it is above.
  -- So 1.72e-4 is likely meant.
  printed_alpha_16 = 1.72e-5,
  gib = 11,  -- memory of a GPU
}
