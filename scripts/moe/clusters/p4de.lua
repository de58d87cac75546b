-- AWS p4de.24xlarge: 8 A100 80GB per node, with op times measured on A100. No constant is fitted
-- to a figure of the papers that use it.
return function(assumed, nodes)
  return nodes.of("a100", {
    doc = "AWS p4de.24xlarge: 8 A100 80GB per node, NVSwitch, 4 x 100 Gb/s NICs; measured op times",
    devices_per_node = 8,
    device = {
      name = "A100-80GB",
      launch_us = assumed { value = 8, lo = 2, hi = 12,
        why = "time between kernels of a compiled graph that the host launches one by one" },
    },
    collective_times = "a100",  -- inside a node
    -- The two latencies are chosen so that small all-reduces of two nodes take about 160 us; for
    -- EFA, 161 us are published (awsome-distributed-training, micro-benchmarks/nccl-tests). A tree
    -- has 14 hops in the nodes and two between them, and a hop takes twice latency_us.
    intra = { latency_us = 3 },
    -- Four 100 Gb/s NICs per node (Lancet, section 7).
    nics_per_node = 4,
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 19 },
  })
end
