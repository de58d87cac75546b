-- NVIDIA GB300 NVL72: 72 GPUs in one NVLink domain, which counts as one node here, with one
-- ConnectX-8 of 800 Gb/s per GPU. Op times and collectives are GB200's.
return function(_, nodes)
  return nodes.of("gb300", {
    doc = "72 GB300 per NVLink domain, an 800 Gb/s InfiniBand NIC per GPU; op times of GB200",
    devices_per_node = 72,
    collective_times = "gb200",  -- inside a node
    nics_per_node = 72,
    nic = { peak_bytes_per_s = 100e9 },
  })
end
