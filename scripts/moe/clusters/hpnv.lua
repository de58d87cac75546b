-- The HPNV nodes of the Pro-Prophet paper (arXiv 2411.10003, section VI): HPWNV's with NVLink.
return function(assumed, gpus)
  local cluster = require "moe.clusters.hpwnv"(assumed, gpus)
  cluster.doc = "Pro-Prophet's testbed: 4 RTX 3090 per node, NVLink in pairs, 100 Gb/s InfiniBand"
  -- NVLink 3 bridges connect the GPUs of each of two pairs at 56.25 GB/s one way (data sheet);
  -- between the pairs bytes go over PCIe 3.0 x16 at 15.75 GB/s. The cluster model has only one
  -- rate inside a node, so an average is assumed.
  cluster.intra = { latency_us = 2, bytes_per_s = assumed { value = 16e9, lo = 12e9, hi = 45e9,
    why = "average: one of a GPU's three peers is over NVLink, two are over PCIe",
    source = "none: a guess between what PCIe reaches in hpwnv, 11.8 GB/s, and NVLink" } }
  return cluster
end
