-- Lesson 8. How do I simulate a cluster that is not built in? Eight nodes of four GPUs with one
-- network card each. What is in no data sheet is `moe.assumed`, a value with a band and a reason:
-- results.json keeps it with every run.
-- Run it: build/release/moebench run recipes/lessons/08_cluster.lua  (under a second)
-- Try next: the rates of a GPU of yours; scripts/moe/clusters/ has the built-in ones as examples;
-- collectives = { all_to_all = moe.nccl_tests "alltoall.log" }, measured times instead of formulas.
local moe = require "moe"

local function cluster(gbit_per_s)
  return moe.cluster.custom { name = "mine", nodes = 8, devices_per_node = 4,
    device = { name = "a GPU", memory_bytes = 48e9,
      peak_gemm_flops_per_s = 360e12,                       -- data sheet, fp16
      gemm_efficiency = moe.assumed { value = 0.4, lo = 0.3, hi = 0.5,
        why = "share of the peak that GEMMs of this size reach" },
      vector_flops_per_s = 90e12, memory_bytes_per_s = 700e9, launch_us = 8 },
    intra = { bytes_per_s = 25e9, latency_us = 2 },         -- PCIe, one way
    nics_per_node = 1, nic = { peak_bytes_per_s = gbit_per_s * 1e9 / 8, latency_us = 3,
      efficiency = moe.assumed { value = 0.8, lo = 0.6, hi = 0.95,
        why = "share of the card's rate that an all-to-all reaches" } } }
end

return moe.experiment {
  name = "cluster",
  over = { gbit = { 100, 200, 400 } },
  case = function(p) return {
    model = moe.model.gpt2_moe { layers = 12, hidden = 768, heads = 12, seq = 512,
      batch_per_device = 8, experts_per_device = 2 },
    cluster = cluster(p.gbit),
    systems = { moe.system "raf" {}, moe.system "raf_irregular" {}, moe.system "lancet" {} } } end,
  run = { "simulate" },
}
