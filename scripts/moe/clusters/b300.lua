-- Nodes of 8 NVIDIA B300 with one ConnectX-8 of 800 Gb/s per GPU (DGX B300).
return function(_, nodes)
  return nodes.of("b300", {
    doc = "8 B300 per node, NVLink 5, an 800 Gb/s InfiniBand NIC per GPU; measured op times",
    devices_per_node = 8,
    collective_times = "b300",  -- inside a node
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 100e9 },
  })
end
