-- NVIDIA GB200 NVL72: 72 GPUs in one NVLink domain, which counts as one node here. Matrix products,
-- attention and experts are measured (gpus/gb200.times), collectives for up to 4 GPUs; beyond that
-- they are extrapolated. The rates below hold for what no table has.
return function(assumed)
  return {
    doc = "72 GB200 per NVLink domain, a 400 Gb/s InfiniBand NIC per GPU; measured op times",
    devices_per_node = 72,
    device = {
      name = "GB200",
      op_times = "gb200",
      -- NVIDIA GB200 data sheet, per GPU: 2.5 PFLOP/s bf16 tensor (dense), 80 TFLOP/s fp32, 8 TB/s,
      -- 186 GB.
      peak_gemm_flops_per_s = 2500e12,
      -- The median over the table's GEMMs of 1,024 rows or more is 0.52, the best 0.87.
      gemm_efficiency = assumed { value = 0.52, lo = 0.4, hi = 0.85,
        why = "products that no table has: the median of the measured GEMMs" },
      vector_flops_per_s = 80e12,
      peak_memory_bytes_per_s = 8e12,
      -- Measured GEMMs of up to 8 rows with 0.6 GB of weights or more read at 0.84 of the peak in
      -- the median, at 0.93 at best.
      memory_efficiency = assumed { value = 0.84, lo = 0.7, hi = 0.93,
        why = "elementwise kernels are as fast as measured GEMMs that only read their weights" },
      launch_us = assumed { value = 2, lo = 0.5, hi = 6,
        why = "time between kernels of a recorded graph; the tables have kernels alone" },
      attention_backward = assumed { value = 2.9, lo = 2.5, hi = 3.5,
        why = "2.5 times the flops, at the efficiency that FlashAttention-2 reports on A100" },
      memory_bytes = 186e9,
    },
    -- NVLink 5: 1.8 TB/s per GPU, both directions together (data sheet). NCCL's measured all-to-all
    -- of 4 GPUs reaches 0.56 of it.
    intra = { peak_bytes_per_s = 900e9, latency_us = 1,
      efficiency = assumed { value = 0.56, lo = 0.45, hi = 0.75,
        why = "share of NVLink that the measured all-to-all of 4 GPUs reaches" } },
    -- One ConnectX-7 of 400 Gb/s per GPU (GB200 NVL72).
    nics_per_node = 72,
    nic = { peak_bytes_per_s = 50e9, latency_us = 2.5,
      efficiency = assumed { value = 0.9, lo = 0.7, hi = 0.95,
        why = "achieved share of a NIC's rate by an all-to-all" } },
    collective_times = "gb200",  -- inside a node
    a2a_base_us = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer" },
  }
end
