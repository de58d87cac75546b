-- AWS p3dn.24xlarge: 8 V100 32GB per node. Rates are data-sheet peaks times an assumed achieved
-- share. No assumed constant is fitted to a published figure. No op times are measured on V100; the
-- shares are those that A100's measured times reach (gpus/a100.times), in wider bands.
return function(assumed)
  return {
    doc = "AWS p3dn.24xlarge: 8 V100 32GB per node, NVLink, 1 x 100 Gb/s NIC",
    devices_per_node = 8,
    device = {
      name = "V100-32GB",
      -- NVIDIA V100 data sheet (SXM2): 125 TFLOP/s fp16 tensor, 15.7 TFLOP/s fp32, 900 GB/s, 32 GB.
      -- Volta has neither bf16 nor TF32.
      peak_gemm_flops_per_s = { f32 = 15.7e12, f16 = 125e12 },
      gemm_efficiency = assumed { value = 0.65, lo = 0.45, hi = 0.8,
        why = "as A100: 0.72 of its peak over the GEMMs of GPT2-S, 0.59 over those of GPT2-L" },
      vector_flops_per_s = 15.7e12,
      peak_memory_bytes_per_s = 900e9,
      memory_efficiency = assumed { value = 0.81, lo = 0.65, hi = 0.9,
        why = "share of the peak that A100's GEMMs reach that only read their weights" },
      launch_us = assumed { value = 8, lo = 2, hi = 12,
        why = "time between kernels of a compiled graph that the host launches one by one" },
      memory_bytes = 32e9,
    },
    -- NVLink 2: 300 GB/s per GPU, both directions together (data sheet).
    intra = { bytes_per_s = 150e9, latency_us = 1 },
    -- One 100 Gb/s NIC per node (Lancet, section 7).
    nics_per_node = 1,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 2.5,
      efficiency = assumed { value = 0.8, lo = 0.6, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
