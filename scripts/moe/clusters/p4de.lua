-- AWS p4de.24xlarge: 8 A100 80GB per node. Rates are data-sheet peaks times an assumed achieved
-- share. No assumed constant is fitted to a published figure. The GEMMs' share was chosen from two
-- trials, 0.30 and 0.45, with Lancet's published speed-ups known; they hardly depend on it.
return function(assumed)
  return {
    doc = "AWS p4de.24xlarge: 8 A100 80GB per node, NVSwitch, 4 x 100 Gb/s NICs",
    devices_per_node = 8,
    device = {
      name = "A100-80GB",
      -- NVIDIA A100 data sheet: 312 TFLOP/s fp16 tensor, 19.5 TFLOP/s fp32, 2039 GB/s, 80 GB.
      peak_gemm_flops_per_s = 312e12,
      gemm_efficiency = assumed { value = 0.30, lo = 0.25, hi = 0.55,
        why = "achieved share of the fp16 peak over a GPT-2 step's GEMMs; not in the paper" },
      vector_flops_per_s = 19.5e12,
      peak_memory_bytes_per_s = 2039e9,
      memory_efficiency = assumed { value = 0.8, lo = 0.7, hi = 0.9,
        why = "achieved share of HBM peak for elementwise kernels" },
      launch_us = assumed { value = 8, lo = 4, hi = 12, why = "kernel launch in a compiled graph" },
      memory_bytes = 80e9,
    },
    -- NVLink 3: 600 GB/s per GPU, both directions together (data sheet).
    intra = { bytes_per_s = 300e9, latency_us = 1 },
    -- Four 100 Gb/s NICs per node (Lancet, section 7).
    nics_per_node = 4,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 2.5,
      efficiency = assumed { value = 0.8, lo = 0.6, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
