-- Nodes of 8 NVIDIA H100 SXM with one ConnectX-7 of 400 Gb/s per GPU (DGX H100).
return function(_, nodes)
  return nodes.of("h100", {
    doc = "8 H100 SXM per node, NVLink 4, a 400 Gb/s InfiniBand NIC per GPU; measured op times",
    devices_per_node = 8,
    collective_times = "h100",  -- inside a node
    nics_per_node = 8,
    nic = { peak_bytes_per_s = 50e9 },
  })
end
