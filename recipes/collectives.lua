-- How long do an all-to-all and an all-reduce of 8 to 512 GPUs take between nodes, by the clusters
-- here and as published? Each row is a measurement of NCCL that somebody printed, in microseconds,
-- beside moe.op_time. Start-up times and the NICs' share of the clusters with measured GPUs are
-- fitted to the smallest and largest of these rows (scripts/moe/gpus/nodes.lua, clusters/p4de.lua).
-- NCCL has no all-reduce by two_level of its own: programs build it from three calls.
local moe = require "moe"

local cluster = moe.cluster
-- Alps: 4 GH200 per node, each with a Slingshot NIC of 200 Gb/s; NVLink 4 between the GPUs of a
-- node: 150 GB/s one way to each peer. Start-up times as for H100.
local function alps(nodes)
  return cluster.h100 { nodes = nodes, devices_per_node = 4, nics_per_node = 4,
    nic = { peak_bytes_per_s = 25e9, efficiency = 0.9, latency_us = 2.5 },
    in_switch = false, all_reduce_base_us = 0 }
end

-- Source -> where it was printed, what ran, and the cluster of so many nodes and GPUs per node.
local SOURCES = {
  xxrjun = { "github.com/xxrjun/nccl-tests-cluster at 56089ca, runs 20260129-180219 and "
      .. "20260128-010702: NCCL 2.29.2, H100, InfiniBand of 400 Gb/s",
    function(nodes, gpus)
      return cluster.h100 { nodes = nodes, devices_per_node = gpus, nics_per_node = gpus }
    end },
  nccl309a = { "github.com/NVIDIA/nccl-tests/issues/309, qoofyk: NCCL 2.26.2, two nodes of 8 H100 "
      .. "and 8 NICs of 400 Gb/s",
    function(nodes) return cluster.h100 { nodes = nodes } end },
  nccl309b = { "github.com/NVIDIA/nccl-tests/issues/309, gj-aion: 2, 4 and 8 nodes of 8 H100, "
      .. "default settings",
    function(nodes) return cluster.h100 { nodes = nodes } end },
  aws = { "github.com/aws-samples/awsome-distributed-training at 0162aac, "
      .. "micro-benchmarks/nccl-tests: two p4de.24xlarge over EFA",
    function(nodes) return cluster.p4de { nodes = nodes } end },
  vultr = { "Vultr, B200 cluster test summary of 2026-05-18: two nodes of 8 B200 and 8 NICs of "
      .. "400 Gb/s, the quicker of two runs; the report says that its NICs reach 0.79 to 0.9",
    function(nodes) return cluster.b200 { nodes = nodes } end },
  alps = { "github.com/boeschf/nccl-benchmark-on-alps-2025: NCCL 2.23.4 and 2.26.2, GH200, "
      .. "Slingshot; the quickest of up to three runs on a machine in use", alps },
  oci = { "OCI GPU Quick Start for GB200: racks of 64 GB200, 400 Gb/s per GPU",
    function(nodes)
      return cluster.gb200 { nodes = nodes, devices_per_node = 64, nics_per_node = 64 }
    end },
  oke = { "github.com/oracle-quickstart/oci-hpc-oke: NCCL 2.29.2, 128 GB200 in two racks",
    function(nodes)
      return cluster.gb200 { nodes = nodes, devices_per_node = 64, nics_per_node = 64 }
    end },
}
local RACK = { oci = 64, oke = 64 }  -- GPUs of one NVLink domain, which is a node here

-- { source, collective, GPUs, GPUs per node, "bytes=us ..." }; bytes: held by one rank before the
-- exchange.
local ROWS = {
  { "xxrjun", "all_reduce", 10, 1, "33554432=1405.25 268435456=10061.7 1073741824=39744.4 "
    .. "4294967296=158724 17179869184=632480" },
  { "xxrjun", "all_reduce", 20, 2, "33554432=787.43 268435456=5270.4 1073741824=20875.4 "
    .. "4294967296=83034 17179869184=333590" },
  { "xxrjun", "all_reduce", 40, 4, "33554432=780.92 268435456=3194.58 1073741824=10728.4 "
    .. "4294967296=43171.7 17179869184=170665" },
  { "xxrjun", "all_reduce", 80, 8, "33554432=798.52 268435456=1888.93 1073741824=6149.19 "
    .. "4294967296=27023.1 17179869184=105854" },
  { "xxrjun", "all_to_all", 10, 1, "33554400=792.6 268435360=5482.62 1073741760=21624.7 "
    .. "4294967200=86308.9 17179869120=346210" },
  { "xxrjun", "all_to_all", 16, 8, "4294967296=43852.6 17179869184=174994" },
  { "xxrjun", "all_to_all", 20, 2, "33554240=811.34 268435200=5485.89 1073741760=21499.9 "
    .. "4294967040=86026.4 17179869120=341262" },
  { "xxrjun", "all_to_all", 40, 4, "33553920=975.05 268435200=5622.04 1073741440=21521 "
    .. "4294967040=84912.8 17179868800=338186" },
  { "xxrjun", "all_to_all", 80, 8, "33553920=970.33 268435200=5334.88 1073740800=21159.9 "
    .. "4294967040=84157.5 17179868160=336737" },
  { "nccl309b", "all_reduce", 16, 8, "1048576=93.25 8388608=151.6 33554432=274.8 268435456=1296.2 "
    .. "1073741824=4497.4 4294967296=17290" },
  { "nccl309b", "all_reduce", 32, 8, "8388608=239 33554432=413.7 268435456=2219.3 "
    .. "1073741824=6460.4 4294967296=25605" },
  { "nccl309b", "all_reduce", 64, 8, "1048576=117 33554432=509.6 268435456=1955.1 "
    .. "1073741824=7370.5 4294967296=26438" },
  { "nccl309a", "all_reduce", 16, 8, "16=24.96 1024=29.75 16384=32.74 131072=38.77 1048576=71.93 "
    .. "8388608=132.6 33554432=267.9 268435456=1282.8 1073741824=4484.9 4294967296=17262 "
    .. "17179869184=68652" },
  { "aws", "all_reduce", 16, 8, "16=161.4 1024=165 16384=193.4 131072=229.7 1048576=309.4 "
    .. "8388608=762.8 33554432=1540.2 268435456=7201.7 1073741824=26217" },
  { "vultr", "all_reduce", 16, 8, "16=34.68 1024=37.54 16384=42.31 131072=64.46 1048576=93.41 "
    .. "8388608=136.2 33554432=249.24 268435456=927.12 1073741824=3016.62 4294967296=11382.9 "
    .. "17179869184=44870.6" },
  { "vultr", "all_to_all", 16, 8, "1024=37.6 16384=37.86 131072=42.8 1048576=78.33 8388608=195.22 "
    .. "33554432=536.99 268435456=3775 1073741824=14720 4294967296=58467.6 17179869184=232184" },
  { "alps", "all_reduce", 8, 4, "16=18.48 1024=23.15 16384=39.56 131072=191.5 1048576=882.9 "
    .. "8388608=300.4 33554432=634.9 268435456=3317.2 1073741824=12159 4294967296=47482" },
  { "alps", "all_reduce", 16, 4, "16=29.85 1024=38.43 16384=78.04 131072=120.3 1048576=430.8 "
    .. "8388608=508.8 33554432=1286 268435456=5576.7 1073741824=22052 4294967296=87235" },
  { "alps", "all_reduce", 32, 4, "16=41.43 1024=53.45 16384=112.5 131072=256.8 1048576=225.6 "
    .. "8388608=682.7 33554432=4312.9 268435456=5778.4 1073741824=22705 4294967296=90020" },
  { "alps", "all_reduce", 64, 4, "16=54.35 1024=69.55 16384=146.3 131072=195.5 1048576=283.6 "
    .. "8388608=850.8 33554432=1634.2 268435456=5872 1073741824=23175 4294967296=91996" },
  { "alps", "all_reduce", 128, 4, "16=68.85 1024=87.47 16384=191.2 131072=245 1048576=359.4 "
    .. "8388608=1042.8 33554432=1920.2 268435456=11274 1073741824=23412 4294967296=92235" },
  { "alps", "all_reduce", 256, 4, "16=86.35 1024=100.9 16384=218.7 131072=280.5 1048576=410.5 "
    .. "8388608=1207 33554432=2247 268435456=9647.7 1073741824=23912 4294967296=95877" },
  { "alps", "all_reduce", 512, 4, "16=90.91 1024=118.4 16384=259.1 131072=436.5 1048576=553 "
    .. "8388608=1462.8 33554432=2464.2 268435456=10589 1073741824=33006 4294967296=93623" },
  { "alps", "all_to_all", 56, 4, "1792=119 65408=110.3 16776704=1118.6 134217216=7695.9 "
    .. "1073741312=59997 4294967040=229432" },
  { "alps", "all_to_all", 112, 4, "1792=260.6 64512=248.1 16776704=1330.8 134217216=8118.5 "
    .. "1073741312=62800 4294967040=245624" },
  { "oci", "all_reduce", 128, 4, "4294967296=11311" },
  { "oci", "all_reduce", 192, 4, "4294967296=12154" },
  { "oci", "all_to_all", 128, 4, "4294967296=48079" },
  { "oci", "all_to_all", 192, 4, "4294967296=70159" },
  { "oke", "all_reduce", 128, 4, "16=182.39 1024=196.95 16384=202.63 131072=209.01 1048576=291.13 "
    .. "8388608=340.95 33554432=503.72 268435456=1555.75 4294967296=13341.2 17179869184=50409.2" },
}

local function label(bytes)
  for _, unit in ipairs { { 2 ^ 30, "GiB" }, { 2 ^ 20, "MiB" }, { 2 ^ 10, "KiB" } } do
    if bytes > 0.9 * unit[1] then return ("%.0f %s"):format(bytes / unit[1], unit[2]) end
  end
  return ("%d B"):format(bytes)
end

-- Ratios of ours over the measured time, by collective and size.
local CLASSES = { { "up to 64 KiB", 2 ^ 16 }, { "up to 32 MiB", 2 ^ 25 }, { "larger", math.huge } }
local ratios = {}
local function keep(op, bytes, ratio)
  for i, class in ipairs(CLASSES) do
    if bytes <= class[2] then
      local key = op .. i
      ratios[key] = ratios[key] or moe.values {}
      table.insert(ratios[key], ratio)
      return
    end
  end
end

local rows = { { "source", "collective", "GPUs", "bytes", "published us", "ours us", "ratio",
  "by" } }
for _, row in ipairs(ROWS) do
  local source, op, gpus, per_node, times = unpack(row)
  per_node = RACK[source] or per_node
  local on = SOURCES[source][2](gpus / per_node, per_node)
  for bytes, us in times:gmatch "(%d+)=([%d.]+)" do
    bytes, us = tonumber(bytes), tonumber(us)
    local time = moe.op_time { cluster = on, op = op, ranks = gpus, bytes = bytes }
    local ratio = time.ms * 1e3 / us
    keep(op, bytes, ratio)
    rows[#rows + 1] = { source, op, gpus, label(bytes), us, time.ms * 1e3, ratio,
      time.source:match "'(%a.*)'" or "" }
  end
end
print(moe.table(rows, { "", "", "", "", "%.0f", "%.0f", "%.2f" }))
print ""

local summary = { { "ours over published", "bytes", "rows", "median", "least", "most" } }
for _, op in ipairs { "all_to_all", "all_reduce" } do
  for i, class in ipairs(CLASSES) do
    local all = ratios[op .. i]
    summary[#summary + 1] = { op, class[1], #all, all:quantile(0.5), all:min(), all:max() }
  end
end
print(moe.table(summary, { "", "", "", "%.2f", "%.2f", "%.2f" }))
print ""
for _, name in ipairs { "xxrjun", "nccl309a", "nccl309b", "aws", "vultr", "alps", "oci", "oke" } do
  print(name .. ": " .. SOURCES[name][1])
end
