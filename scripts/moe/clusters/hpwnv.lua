-- The HPWNV nodes of the Pro-Prophet paper (arXiv 2411.10003, section VI). Rates are data-sheet
-- peaks times an assumed achieved share; but for that of GEMMs none was chosen in sight of figures.
return function(assumed, gpus)
  return {
    doc = "Pro-Prophet's testbed: 4 RTX 3090 per node on PCIe, 100 Gb/s InfiniBand",
    paper = "proprophet",
    sources = {
      devices_per_node = "Pro-Prophet, section VI", nics_per_node = "Pro-Prophet, section VI",
      nic = "Pro-Prophet, section VI: InfiniBand of 100 Gb/s",
      device = "NVIDIA's data sheet; memory: PyTorch",
      intra = "PCI-SIG: PCI Express 3.0 x16",
      stack = "none: eager PyTorch, as in Lina's recipes",
      ["intra.latency_us"] = "none: a guess", ["nic.latency_us"] = "none: a guess",
    },
    devices_per_node = 4,
    device = {
      name = "RTX-3090",
      -- NVIDIA data sheet (GA102; dense, sums in fp32): 35.6 TFLOP/s fp32, 936 GB/s, 24 GB.
      peak_gemm_flops_per_s = { f32 = 35.6e12, tf32 = 35.6e12, bf16 = 71e12, f16 = 71e12 },
      gemm_efficiency = assumed { value = 0.56, lo = 0.25, hi = 0.75,
        why = "achieved share of the peak; the authors' planner assumes 0.25",
        source = "fitted: 20 TFLOP/s, the rate of setf.lua's set F, which was chosen in sight of "
          .. "table IV; low end: the authors' code; high end: none" },
      vector_flops_per_s = 35.6e12,
      peak_memory_bytes_per_s = 936e9,
      memory_efficiency = assumed { value = 0.8, lo = 0.7, hi = 0.9,
        why = "achieved share of the peak for elementwise kernels",
        source = "none: a guess; NVIDIA's A100 and H100 reach 0.81 to 0.89 (gpus/nodes.lua)" },
      launch_us = gpus.LAUNCH_US,
      memory_bytes = math.floor(23.69 * 2 ^ 30),  -- as PyTorch states it of a 3090
    },
    stack = "eager_2021",
    -- PCI Express 3.0 x16: 15.75 GB/s one way (PCI-SIG).
    intra = { peak_bytes_per_s = 15.75e9, latency_us = 2,
      efficiency = assumed { value = 0.75, lo = 0.5, hi = 0.85,
        why = "achieved share of PCIe between GPUs of a node", source = "none: a guess" } },
    -- One 100 Gb/s InfiniBand NIC per node.
    nics_per_node = 1,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 2.5,
      efficiency = gpus.NIC_SHARE },
    a2a_base_us = gpus.A2A_BASE_US, a2a_per_peer_us = gpus.A2A_PER_PEER_US,
  }
end
