-- Nodes of 8 NVIDIA H200 (HGX). The assumed shares of the GEMM and memory peaks are chosen around
-- measurements of one such card outside this project: a copy reaches 4.3 of 4.8 TB/s, a bf16 GEMM
-- of 8192^3 reaches 770 to 800 of 989 TFLOP/s. Link rates are from data sheets.
return function(assumed)
  return {
    doc = "8 H200 per node, NVLink 4, a 400 Gb/s InfiniBand NIC per GPU",
    devices_per_node = 8,
    device = {
      name = "H200",
      -- NVIDIA H200 data sheet: 989 TFLOP/s bf16 tensor (dense), 67 TFLOP/s fp32, 4.8 TB/s, 141 GB.
      peak_gemm_flops_per_s = 989e12,
      gemm_efficiency = assumed { value = 0.55, lo = 0.35, hi = 0.8,
        why = "achieved share of the bf16 peak over a step's GEMMs; one large GEMM reaches 0.8" },
      vector_flops_per_s = 67e12,
      peak_memory_bytes_per_s = 4.8e12,
      memory_efficiency = assumed { value = 0.85, lo = 0.7, hi = 0.9,
        why = "achieved share of the HBM peak for elementwise kernels; a large copy reaches 0.9" },
      launch_us = assumed { value = 3, lo = 1, hi = 8, why = "kernel launch in a recorded graph" },
      memory_bytes = 141e9,
    },
    -- NVLink 4: 900 GB/s per GPU, both directions together (data sheet).
    intra = { peak_bytes_per_s = 450e9, latency_us = 1,
      efficiency = assumed { value = 0.8, lo = 0.65, hi = 0.9,
        why = "achieved share of NVLink by an all-to-all" } },
    -- One ConnectX-7 of 400 Gb/s per GPU (HGX H200 reference).
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 50e9, latency_us = 2.5,
      efficiency = assumed { value = 0.9, lo = 0.7, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
