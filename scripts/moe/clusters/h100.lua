-- Nodes of 8 NVIDIA H100 SXM (DGX H100). Matrix products, attention, experts and the collectives of
-- one node are measured (gpus/h100.times); the rates below hold for what no table has.
return function(assumed)
  return {
    doc = "8 H100 SXM per node, NVLink 4, a 400 Gb/s InfiniBand NIC per GPU; measured op times",
    devices_per_node = 8,
    device = {
      name = "H100 SXM",
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
    -- NVLink 4: 900 GB/s per GPU, both directions together (data sheet). NCCL's measured all-to-all
    -- of 8 GPUs reaches 0.71 of it.
    intra = { peak_bytes_per_s = 450e9, latency_us = 1,
      efficiency = assumed { value = 0.71, lo = 0.6, hi = 0.8,
        why = "share of NVLink that the measured all-to-all of 8 GPUs reaches" } },
    -- One ConnectX-7 of 400 Gb/s per GPU (DGX H100).
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 50e9, latency_us = 2.5,
      efficiency = assumed { value = 0.9, lo = 0.7, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    collective_times = "h100",  -- inside a node
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
