-- The testbed of the Lina paper (Li et al., USENIX ATC 2023, section 7.1): 4 nodes, each with 4
-- A100 40GB and 100 Gb/s InfiniBand. Rates are data-sheet peaks times an assumed achieved share.
-- No op times are measured for this GPU's fp32 GEMMs; the shares are those that the bf16 GEMMs of
-- A100 reach (gpus/a100.times). The paper does not say how the GPUs of a node are connected.
return function(assumed, gpus)
  return {
    doc = "Lina's testbed: 4 A100 40GB per node, one 100 Gb/s InfiniBand NIC",
    paper = "lina",
    sources = {
      devices_per_node = "Lina, section 7.1", nics_per_node = "Lina, section 7.1",
      nic = "Lina, section 7.1: InfiniBand of 100 Gb/s",
      device = "NVIDIA's data sheet of A100; memory: PyTorch",
      stack = "Lina's baseline is DeepSpeed, with PyTorch of its time",
      ["intra.latency_us"] = "none: a guess", ["nic.latency_us"] = "none: a guess",
    },
    devices_per_node = 4,
    device = {
      name = "A100-40GB",
      -- NVIDIA A100 data sheet: 156 TFLOP/s TF32 tensor, which PyTorch 1.10 uses for fp32 GEMMs
      -- (the dtype of moe.model.lina); 19.5 TFLOP/s fp32, 312 bf16 and fp16, 1555 GB/s, 40 GB.
      peak_gemm_flops_per_s = { f32 = 19.5e12, tf32 = 156e12, bf16 = 312e12, f16 = 312e12 },
      gemm_efficiency = assumed { value = 0.57, lo = 0.35, hi = 0.75,
        why = "as bf16: 0.56 of A100's peak over Transformer-XL's GEMMs, 0.59 over BERT-Large's",
        source = "value: gpus/a100.times; band: none: a guess" },
      vector_flops_per_s = 19.5e12,
      peak_memory_bytes_per_s = 1555e9,
      memory_efficiency = assumed { value = 0.81, lo = 0.7, hi = 0.88,
        why = "share of the peak that A100's GEMMs reach that only read their weights",
        source = "gpus/a100.times" },
      launch_us = gpus.LAUNCH_US,
      memory_bytes = math.floor(39.39 * 2 ^ 30),  -- as PyTorch states it of an A100 of 40 GB
    },
    stack = "eager_2021",
    -- The all-to-alls of the paper's table 1 are hardly faster on one node than on four (5.4 and
    -- 6.9 ms), so PCIe 4.0 x16 (32 GB/s) is more likely than NVLink 3 (300 GB/s one way).
    intra = { latency_us = 2, bytes_per_s = assumed { value = 20e9, lo = 10e9, hi = 250e9,
      why = "either PCIe or NVLink; the paper does not say",
      source = "fitted: PCIe rather than NVLink, in sight of table 1's all-to-alls of 4 GPUs; "
        .. "band: a third of PCIe 4.0 x16 to 0.83 of NVLink 3" } },
    nics_per_node = 1,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 2.5,
      efficiency = gpus.NIC_SHARE },
    -- Two collectives that share a link evenly take twice as long each. The worst slowdown in the
    -- paper's figure 3, 4.14 times, is taken as that of an all-to-all that overlaps an all-reduce
    -- all the time, hence 2 / 4.14 = 0.48: this constant is fitted to that figure.
    sharing_efficiency = assumed { value = 0.48, lo = 0.48, hi = 1,
      why = "share of a link's rate that is left while two collectives use it",
      source = "fitted: 2 / 4.14, to figure 3's worst slowdown; high end: none is lost" },
    a2a_base_us = gpus.A2A_BASE_US, a2a_per_peer_us = gpus.A2A_PER_PEER_US,
  }
end
