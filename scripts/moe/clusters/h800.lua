-- Nodes of 8 NVIDIA H800 SXM, an H100 with less of NVLink, so that H100's measured collectives do
-- not hold: those of this cluster are computed from the links. One ConnectX-7 of 400 Gb/s per GPU
-- (the testbed of DeepEP's README).
return function(assumed, nodes)
  return nodes.of("h100", {
    doc = "8 H800 SXM per node, a 400 Gb/s InfiniBand NIC per GPU; op times measured on H100",
    devices_per_node = 8,
    device = { name = "H800 SXM" },
    -- NVLink: 400 GB/s per GPU, both directions together; DeepEP's README states at most 160 GB/s
    -- achieved of 200 GB/s one way.
    intra = { peak_bytes_per_s = 200e9, efficiency = assumed { value = 0.71, lo = 0.6, hi = 0.8,
      why = "share of NVLink as measured for the all-to-all of 8 H100" } },
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 50e9 },
  })
end
