-- The LPWNV nodes of the Pro-Prophet paper (arXiv 2411.10003, section VI): HPWNV's with other GPUs.
return function(assumed, gpus)
  local cluster = require "moe.clusters.hpwnv"(assumed, gpus)
  cluster.doc = "Pro-Prophet's testbed: 4 RTX 2080Ti per node on PCIe, 100 Gb/s InfiniBand"
  local device = cluster.device
  device.name = "RTX-2080Ti"
  -- NVIDIA data sheet (TU102; sums in fp32): 13.4 TFLOP/s fp32, 616 GB/s, 11 GB. Turing has
  -- neither bf16 nor TF32.
  device.peak_gemm_flops_per_s = { f32 = 13.4e12, f16 = 53.8e12 }
  device.vector_flops_per_s, device.peak_memory_bytes_per_s = 13.4e12, 616e9
  device.memory_bytes = math.floor(10.76 * 2 ^ 30)  -- as PyTorch states it of a 2080 Ti
  return cluster
end
