-- AWS p4de.24xlarge: 8 A100 80GB per node, with op times measured on A100. No constant is fitted
-- to a figure of the papers that use it.
return function(assumed, gpus)
  return gpus.of("a100", {
    doc = "AWS p4de.24xlarge: 8 A100 80GB per node, NVSwitch, 4 x 100 Gb/s NICs; measured op times",
    paper = "lancet",
    sources = {
      devices_per_node = "Lancet, section 7", nics_per_node = "Lancet, section 7",
      nic = "Lancet, section 7: four NICs of 100 Gb/s",
      stack = "Lancet: it is built into RAF",
      ["intra.latency_us"] = "awsome-distributed-training, micro-benchmarks/nccl-tests: 161 us",
      ["nic.latency_us"] = "awsome-distributed-training, micro-benchmarks/nccl-tests: 161 us",
    },
    devices_per_node = 8,
    stack = "raf_2023",
    device = {
      name = "A100-80GB",
      op_times_ratio = { tf32 = assumed { value = 2, lo = 1.7, hi = 2.5,
        why = "of bf16's times: the peaks of the tensor cores are 312 and 156 TFLOP/s",
        source = "value: NVIDIA's data sheet of A100; band: none: a guess" } },
    },
    collective_times = "a100",  -- inside a node
    -- The two latencies are chosen so that small all-reduces of two nodes take about 160 us; for
    -- EFA, 161 us are published (awsome-distributed-training, micro-benchmarks/nccl-tests). A tree
    -- has 14 hops in the nodes and two between them, and a hop takes twice latency_us.
    intra = { latency_us = 3 },
    -- Four 100 Gb/s NICs per node (Lancet, section 7).
    nics_per_node = 4,
    -- All-reduces of 1 GiB on p4d, which has the same NICs, take 35.2, 64.8 and 70.3 ms on 2, 3 and
    -- 4 nodes (NVIDIA/nccl issue 527, 2021). NCCL's tree sends 1.07 GB from each of 2 nodes, its
    -- ring 2.06 and 2.08 GB from each of 3 and 4: 0.61, 0.64 and 0.59 of the NICs' 50 GB/s.
    nic = { peak_bytes_per_s = 12.5e9, latency_us = 19,
      efficiency = assumed { value = 0.61, lo = 0.55, hi = 0.96,
        why = "published all-reduces of p4d in 2021; EFA reaches 0.96 with later software",
        source = "NVIDIA/nccl issue 527 (2021); high end: awsome-distributed-training" } },
  })
end
