-- The LPWNV nodes of the Pro-Prophet paper (arXiv 2411.10003, section VI). Rates are data-sheet
-- peaks times an assumed achieved share; none is fitted to a published figure.
return function(assumed)
  return {
    doc = "Pro-Prophet's testbed: 4 RTX 2080Ti per node on PCIe, 100 Gb/s InfiniBand",
    devices_per_node = 4,
    device = {
      name = "RTX-2080Ti",
      -- NVIDIA data sheet (TU102; sums in fp32): 13.4 TFLOP/s fp32, 616 GB/s, 11 GB. Turing has
      -- neither bf16 nor TF32.
      peak_gemm_flops_per_s = { f32 = 13.4e12, f16 = 53.8e12 },
      gemm_efficiency = assumed { value = 0.56, lo = 0.25, hi = 0.75,
        why = "achieved share of the peak; the authors' planner assumes 0.25" },
      vector_flops_per_s = 13.4e12,
      peak_memory_bytes_per_s = 616e9,
      memory_efficiency = assumed { value = 0.8, lo = 0.7, hi = 0.9,
        why = "achieved share of the peak for elementwise kernels" },
      launch_us = assumed { value = 2, lo = 0.5, hi = 6,
        why = "time between kernels that wait in a queue; host time is the stack's" },
      memory_bytes = 11e9,
    },
    stack = "eager_2021",
    -- PCI Express 3.0 x16: 15.75 GB/s one way (PCI-SIG).
    intra = { peak_bytes_per_s = 15.75e9, latency_us = 2,
      efficiency = assumed { value = 0.75, lo = 0.5, hi = 0.85,
        why = "achieved share of PCIe between GPUs of a node" } },
    -- One 100 Gb/s InfiniBand NIC per node.
    nics_per_node = 1,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 2.5,
      efficiency = assumed { value = 0.8, lo = 0.6, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
