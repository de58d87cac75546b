-- AWS p3dn.24xlarge: 8 V100 32GB per node. Products of float32 are measured (gpus/v100.times);
-- rates of others are data-sheet peaks times an assumed achieved share. No assumed constant is
-- fitted to a published figure of a paper.
return function(assumed, gpus, nodes)
  -- NVIDIA/nccl issue 235 (2019): 80 Gb/s on 2 nodes over EFA, 50 to 60 on 8 to 32.
  local nic = nodes <= 2 and { 0.8, 0.7, 0.95 } or nodes < 8 and { 0.68, 0.55, 0.8 }
    or { 0.55, 0.5, 0.6 }
  return {
    doc = "AWS p3dn.24xlarge: 8 V100 32GB per node, NVLink, 1 x 100 Gb/s NIC; measured op times",
    paper = "lancet",
    sources = {
      devices_per_node = "Lancet, section 7", nics_per_node = "Lancet, section 7",
      nic = "Lancet, section 7: one NIC of 100 Gb/s",
      device = "NVIDIA's data sheet of V100 SXM2; memory: PyTorch",
      ["device.op_times"] = "NeuSight (ASPLOS 2025), measured on V100 PCIe",
      stack = "Lancet: it is built into RAF",
      intra = "NVIDIA's data sheet of V100 SXM2: NVLink 2",
      ["intra.latency_us"] = "none: a guess", ["nic.latency_us"] = "none: a guess",
    },
    devices_per_node = 8,
    stack = "raf_2023",
    device = {
      name = "V100-32GB",
      op_times = "v100",
      op_times_ratio = { f32 = assumed { value = 0.89, lo = 0.85, hi = 1,
        why = "SXM2 against the measured PCIe: 14 against 15.7 TFLOP/s",
        source = "value: both data sheets; band: none: up to no difference" } },
      -- NVIDIA V100 data sheet (SXM2): 125 TFLOP/s fp16 tensor, 15.7 TFLOP/s fp32, 900 GB/s, 32 GB.
      -- Volta has neither bf16 nor TF32.
      peak_gemm_flops_per_s = { f32 = 15.7e12, f16 = 125e12 },
      gemm_efficiency = assumed { value = 0.65, lo = 0.45, hi = 0.8,
        why = "as A100: 0.72 of its peak over the GEMMs of GPT2-S, 0.59 over those of GPT2-L",
        source = "value: gpus/a100.times; band: none: a guess" },
      vector_flops_per_s = 15.7e12,
      peak_memory_bytes_per_s = 900e9,
      memory_efficiency = assumed { value = 0.75, lo = 0.55, hi = 0.86,
        why = "measured shares: elementwise kernels 0.83 to 0.86, softmax 0.60, LayerNorm 0.53",
        source = "NeuSight's rows of V100 (scripts/import_neusight.py)" },
      launch_us = gpus.LAUNCH_US,
      memory_bytes = math.floor(31.75 * 2 ^ 30),  -- as PyTorch states it of a V100 of 32 GB
    },
    -- NVLink 2: 300 GB/s per GPU, both directions together (data sheet).
    intra = { bytes_per_s = 150e9, latency_us = 1 },
    -- One 100 Gb/s NIC per node (Lancet, section 7).
    nics_per_node = 1,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 2.5,
      efficiency = assumed { value = nic[1], lo = nic[2], hi = nic[3],
        why = "published for EFA on p3dn: 80 Gb/s on 2 nodes, 50 to 60 on 8 to 32",
        source = "NVIDIA/nccl issue 235 (2019); on 4 nodes between the two" } },
    a2a_base_us = gpus.A2A_BASE_US, a2a_per_peer_us = gpus.A2A_PER_PEER_US,
  }
end
