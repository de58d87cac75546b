-- NVIDIA GB200 NVL72: 72 GPUs in one NVLink domain, which counts as one node here, with one
-- ConnectX-7 of 400 Gb/s per GPU. Collectives are measured for up to 4 GPUs, extrapolated beyond.
return function(_, nodes)
  return nodes.of("gb200", {
    doc = "72 GB200 per NVLink domain, a 400 Gb/s InfiniBand NIC per GPU; measured op times",
    devices_per_node = 72,
    collective_times = "gb200",  -- inside a node
    nics_per_node = 72,
    nic = { peak_bytes_per_s = 50e9 },
  })
end
