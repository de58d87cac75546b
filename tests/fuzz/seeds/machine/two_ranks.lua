return { machine = "a machine", provenance = "measured", ranks = 2, dtype = "f32",
  device = { name = "it", gemm_flops_per_s = 3.3e10, vector_flops_per_s = 2e10,
    memory_bytes_per_s = 3e10, launch_us = 0.25 },
  intra = { bytes_per_s = 4e9, latency_us = 1.5 },
  collectives = { all_to_all = { { 2000, 2.125 }, { 4000, 4.125 }, { 8000, 6.125 } },
    all_reduce = { { 2000, 4.125 }, { 4000, 8.125 } } },
  overlap = { source = "measured", rows = { { blocks = 8, gemm = 1.1, memory = 1.3 } } },
  residuals = { gemm = { r2 = 0.875 } } }
