-- The HPNV nodes of the Pro-Prophet paper (arXiv 2411.10003, section VI). Rates are data-sheet
-- peaks times an assumed achieved share; none is fitted to a published figure.
return function(assumed)
  return {
    doc = "Pro-Prophet's testbed: 4 RTX 3090 per node, NVLink in pairs, 100 Gb/s InfiniBand",
    devices_per_node = 4,
    device = {
      name = "RTX-3090",
      -- NVIDIA data sheet (GA102; dense, sums in fp32): 35.6 TFLOP/s fp32, 936 GB/s, 24 GB.
      peak_gemm_flops_per_s = { f32 = 35.6e12, tf32 = 35.6e12, bf16 = 71e12, f16 = 71e12 },
      gemm_efficiency = assumed { value = 0.56, lo = 0.25, hi = 0.75,
        why = "achieved share of the peak; the authors' planner assumes 0.25" },
      vector_flops_per_s = 35.6e12,
      peak_memory_bytes_per_s = 936e9,
      memory_efficiency = assumed { value = 0.8, lo = 0.7, hi = 0.9,
        why = "achieved share of the peak for elementwise kernels" },
      launch_us = assumed { value = 2, lo = 0.5, hi = 6,
        why = "time between kernels that wait in a queue; host time is the stack's" },
      memory_bytes = 24e9,
    },
    stack = "eager_2021",
    -- NVLink 3 bridges connect the GPUs of each of two pairs at 56.25 GB/s one way (data sheet);
    -- between the pairs bytes go over PCIe 3.0 x16 at 15.75 GB/s. The cluster model has only one
    -- rate inside a node, so an average is assumed.
    intra = { latency_us = 2, bytes_per_s = assumed { value = 16e9, lo = 12e9, hi = 45e9,
      why = "average: one of a GPU's three peers is over NVLink, two are over PCIe" } },
    -- One 100 Gb/s InfiniBand NIC per node.
    nics_per_node = 1,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 2.5,
      efficiency = assumed { value = 0.8, lo = 0.6, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
