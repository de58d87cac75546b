-- Nodes of 8 NVIDIA H800 SXM: an H100 with half of NVLink. Matrix products, attention and experts
-- take the times measured on H100 (gpus/h100.times); its collectives do not hold here, so those of
-- this cluster are computed from the links.
return function(assumed)
  return {
    doc = "8 H800 SXM per node, a 400 Gb/s InfiniBand NIC per GPU; op times measured on H100",
    devices_per_node = 8,
    device = {
      name = "H800 SXM",
      op_times = "h100",
      -- NVIDIA H100 data sheet: 989 TFLOP/s bf16 tensor (dense), 67 TFLOP/s fp32, 3.35 TB/s, 80 GB.
      peak_gemm_flops_per_s = 989e12,
      -- The median over the table's GEMMs of 1,024 rows or more is 0.69, the best 0.97.
      gemm_efficiency = assumed { value = 0.69, lo = 0.5, hi = 0.85,
        why = "products that no table has: the median of the measured GEMMs" },
      vector_flops_per_s = 67e12,
      peak_memory_bytes_per_s = 3.35e12,
      -- Measured GEMMs of up to 8 rows with 0.6 GB of weights or more read at 0.89 of the peak in
      -- the median, at 0.92 at best.
      memory_efficiency = assumed { value = 0.89, lo = 0.75, hi = 0.93,
        why = "elementwise kernels are as fast as measured GEMMs that only read their weights" },
      launch_us = assumed { value = 2, lo = 0.5, hi = 6,
        why = "time between kernels of a recorded graph; the tables have kernels alone" },
      attention_backward = assumed { value = 2.9, lo = 2.5, hi = 3.5,
        why = "2.5 times the flops, at the efficiency that FlashAttention-2 reports on A100" },
      memory_bytes = 80e9,
    },
    -- NVLink: 400 GB/s per GPU, both directions together; DeepEP's README states at most 160 GB/s
    -- achieved of 200 GB/s one way.
    intra = { peak_bytes_per_s = 200e9, latency_us = 1,
      efficiency = assumed { value = 0.71, lo = 0.6, hi = 0.8,
        why = "share of NVLink as measured for the all-to-all of 8 H100" } },
    -- One ConnectX-7 of 400 Gb/s per GPU (the testbed of DeepEP's README).
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 50e9, latency_us = 2.5,
      efficiency = assumed { value = 0.9, lo = 0.7, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
