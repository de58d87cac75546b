-- Nodes of 8 NVIDIA B200 with one ConnectX-7 of 400 Gb/s per GPU (DGX B200).
return function(_, nodes)
  return nodes.of("b200", {
    doc = "8 B200 per node, NVLink 5, a 400 Gb/s InfiniBand NIC per GPU; measured op times",
    devices_per_node = 8,
    collective_times = "b200",  -- inside a node
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 50e9 },
  })
end
