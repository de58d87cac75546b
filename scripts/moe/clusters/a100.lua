-- Nodes of 8 NVIDIA A100 SXM with one ConnectX-6 of 200 Gb/s per GPU (DGX A100).
return function(_, nodes)
  return nodes.of("a100", {
    doc = "8 A100 SXM per node, NVLink 3, a 200 Gb/s InfiniBand NIC per GPU; measured op times",
    devices_per_node = 8,
    collective_times = "a100",  -- inside a node
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 25e9 },
  })
end
