-- The GPUs whose op times are measured (the .times files in this folder), and the fields that
-- clusters of such GPUs have in common. A file in clusters/ adds its nodes and NICs.
local schema = require "moe.base.schema"

local M = {}

local assumed = schema.assumed

--- Constants of clusters whose GPUs' collectives and launches nobody has published.
M.LAUNCH_US = assumed { value = 2, lo = 0.5, hi = 6,
  why = "time between kernels that wait in a stream, or of a recorded graph",
  source = "none: a guess; an H200 takes 1.1 us in a recorded graph and 3.2 us for kernels "
    .. "launched one by one (rows 'launch recorded' and 'launch' of "
    .. "tests/bench/results/gpu-2026-11-27-h200.json)" }
M.A2A_BASE_US = assumed { value = 20, lo = 10, hi = 40, why = "start-up of a grouped send/recv",
  source = "none: a guess of the first recipes (dcd51a4a), fitted to nothing; published small "
    .. "all-to-alls of newer GPUs later gave 2 (recipes/collectives.lua)" }
M.A2A_PER_PEER_US = assumed { value = 2, lo = 1, hi = 4, why = "start-up per peer",
  source = "none: a guess of the first recipes (dcd51a4a); published small all-to-alls later gave "
    .. "the same (recipes/collectives.lua)" }
M.NIC_SHARE = assumed { value = 0.8, lo = 0.6, hi = 0.95,
  why = "achieved share of a NIC's rate by a collective",
  source = "none: a guess of the first recipes (dcd51a4a); all-to-alls over InfiniBand were later "
    .. "found to reach 0.89 to 0.92 (recipes/collectives.lua)" }

-- One row per GPU. From NVIDIA's data sheets (dense rates; per GPU): flops = in matrix products, by
-- element type, all but f32 by tensor cores; vector = fp32, memory = bytes/s,
-- nvlink = bytes/s one way. memory_gib is what programs can allocate in all, as PyTorch's messages
-- about a lack of memory state it; the name on the box counts otherwise ("80 GB": 79.11 GiB).
-- Shares of these peaks, as {value, lo, hi}, from the measured times: gemm_share = median over bf16
-- GEMMs of 1,024 rows or more (at best 0.96, 0.97, 0.95, 0.92, 0.87 in the order of the rows);
-- memory_share = median over GEMMs of up to 8 rows with 0.6 GB of weights or more, which only read
-- their weights (at best 0.87, 0.92, 0.89, 0.89, 0.93); nvlink_share = NCCL's all-to-all of
-- `nvlink_gpus` GPUs. From Hopper on the NVSwitch adds (in_switch); all_reduce_us = measured time
-- of a small all-reduce of one node beyond the 4 us of its hops. GB300 has no file of its own:
-- GB200's stands in (op_times).
local HOPPER = { f32 = 67e12, tf32 = 494.7e12, bf16 = 989e12, f16 = 989e12, fp8 = 1979e12 }
-- Times of products inside a step over those alone, measured in both ways on `on`: the median, the
-- 10th and the 90th percentile. Blackwell: 514 GEMMs (scripts/import_simumax.py). Hopper: 87 GEMMs
-- in a loop (scripts/import_gpu_steps.py); under them the SM clock falls from 1,980 to 1,545 MHz in
-- the median at the limit of 700 W. GPUs without such measurements of their own kind have none.
-- In fp8 nothing is measured inside a step: there the ratio of bf16 is taken.
local BLACKWELL_STEP = { 1.39, 1.11, 1.63, on = "B200",
  source = "SimuMax's measurements (scripts/import_simumax.py)" }
local HOPPER_STEP = { 1.13, 1.00, 1.31, on = "H200",
  source = "tests/bench/results/gpu-steps-2026-11-29-h200.json (scripts/measure_gpu.py)" }
local GPUS = {
  a100 = { name = "A100 SXM", gemm_share = { 0.68, 0.5, 0.85 }, vector = 19.5e12,
    flops = { f32 = 19.5e12, tf32 = 156e12, bf16 = 312e12, f16 = 312e12 },
    memory = 2.039e12, memory_share = { 0.81, 0.7, 0.88 }, memory_gib = 79.15,
    nvlink = 300e9, nvlink_share = { 0.68, 0.6, 0.8 }, nvlink_gpus = 8 },
  h100 = { name = "H100 SXM", flops = HOPPER, gemm_share = { 0.69, 0.5, 0.85 }, vector = 67e12,
    step_ratio = HOPPER_STEP,
    memory = 3.35e12, memory_share = { 0.89, 0.75, 0.93 }, memory_gib = 79.11,
    nvlink = 450e9, nvlink_share = { 0.71, 0.6, 0.8 }, nvlink_gpus = 8, in_switch = true,
    all_reduce_us = 11.6 },
  h200 = { name = "H200 SXM", flops = HOPPER, gemm_share = { 0.70, 0.5, 0.85 }, vector = 67e12,
    step_times = "h200_step", step_ratio = HOPPER_STEP,  -- of fp8
    memory = 4.8e12, memory_share = { 0.85, 0.75, 0.9 }, memory_gib = 139.8,
    nvlink = 450e9, nvlink_share = { 0.71, 0.6, 0.8 }, nvlink_gpus = 8, in_switch = true,
    all_reduce_us = 12.8 },
  b200 = { name = "B200", gemm_share = { 0.60, 0.45, 0.85 }, vector = 75e12,
    flops = { f32 = 75e12, tf32 = 1125e12, bf16 = 2250e12, f16 = 2250e12, fp8 = 4500e12 },
    step_times = "b200_step", step_ratio = BLACKWELL_STEP,  -- of fp8
    memory = 8e12, memory_share = { 0.82, 0.7, 0.9 }, memory_gib = 178.35,
    nvlink = 900e9, nvlink_share = { 0.63, 0.5, 0.75 }, nvlink_gpus = 8, in_switch = true,
    all_reduce_us = 21.2 },
  gb200 = { name = "GB200", gemm_share = { 0.52, 0.4, 0.85 }, vector = 80e12,
    flops = { f32 = 80e12, tf32 = 1250e12, bf16 = 2500e12, f16 = 2500e12, fp8 = 5000e12 },
    step_ratio = BLACKWELL_STEP,
    memory = 8e12, memory_share = { 0.84, 0.7, 0.93 }, memory_gib = 184.31,
    nvlink = 900e9, nvlink_share = { 0.56, 0.45, 0.75 }, nvlink_gpus = 4, in_switch = true,
    all_reduce_us = 11.9 },
  -- Data sheets of HGX B300 and of GB300 NVL72: dense bf16 as their forerunners, 288 GB.
  b300 = { name = "B300", gemm_share = { 0.60, 0.45, 0.85 }, vector = 75e12,
    flops = { f32 = 75e12, tf32 = 1125e12, bf16 = 2250e12, f16 = 2250e12, fp8 = 4500e12 },
    step_ratio = BLACKWELL_STEP,
    memory = 8e12, memory_share = { 0.82, 0.7, 0.9 }, memory_gib = 267.69,
    nvlink = 900e9, nvlink_share = { 0.63, 0.5, 0.75 }, nvlink_gpus = 8, in_switch = true,
    all_reduce_us = 21.2 },
  gb300 = { name = "GB300", op_times = "gb200", gemm_share = { 0.52, 0.4, 0.85 }, vector = 80e12,
    flops = { f32 = 80e12, tf32 = 1250e12, bf16 = 2500e12, f16 = 2500e12, fp8 = 5000e12 },
    step_ratio = BLACKWELL_STEP,
    memory = 8e12, memory_share = { 0.84, 0.7, 0.93 }, memory_gib = 276.5,
    nvlink = 900e9, nvlink_share = { 0.56, 0.45, 0.75 }, nvlink_gpus = 4, in_switch = true,
    all_reduce_us = 11.9 },
}

local function share(band, why, source)
  return assumed { value = band[1], lo = band[2], hi = band[3], why = why, source = source }
end

-- The device's rates. Those that op_times has are used only for ops that no table has.
local function device(name, gpu)
  return {
    name = gpu.name,
    op_times = gpu.op_times or name,
    peak_gemm_flops_per_s = gpu.flops,
    gemm_efficiency = share(gpu.gemm_share,
      "products that no table has, of any element type: the median of the measured bf16 GEMMs",
      "value: the GPU's .times; band: none: about the spread of these GEMMs"),
    vector_flops_per_s = gpu.vector,
    peak_memory_bytes_per_s = gpu.memory,
    memory_efficiency = share(gpu.memory_share,
      "elementwise kernels are as fast as measured GEMMs that only read their weights",
      "value and high end: the GPU's .times; low end: none: a guess"),
    launch_us = M.LAUNCH_US,
    attention_backward = assumed { value = 2.9, lo = 2.5, hi = 3.5,
      why = "2.5 times the flops, at the efficiency that FlashAttention-2 reports on A100",
      source = "FlashAttention-2 (Dao, 2023), A100; low end: the flops; high end: none: a guess" },
    step_times = gpu.step_times,
    step_ratio = gpu.step_ratio and share(gpu.step_ratio,
      "products inside a step take longer than alone, as measured on " .. gpu.step_ratio.on,
      gpu.step_ratio.source),
    memory_bytes = math.floor(gpu.memory_gib * 2 ^ 30),
  }
end

--- Returns the fields of a cluster of the GPU: those given in `fields`, and for the rest of device,
--- intra, nic and start-up times what all clusters of measured GPUs have.
function M.of(name, fields)
  local gpu = assert(GPUS[name], name)
  local common = {
    device = device(name, gpu),
    intra = { peak_bytes_per_s = gpu.nvlink, latency_us = 1, efficiency = share(gpu.nvlink_share,
      ("share of NVLink that the measured all-to-all of %d GPUs reaches"):format(gpu.nvlink_gpus),
      "value: the GPU's .times; band: none: a guess") },
    -- Between nodes: fitted to NCCL's published times, which recipes/collectives.lua shows beside
    -- those that follow from the constants here. All-to-alls of 10 and 80 H100 reach 0.89 and 0.90
    -- of a NIC; small ones of 16 B200, 56 and 112 GH200 take 37, 119 and 261 us.
    nic = { latency_us = 2.5, efficiency = assumed { value = 0.9, lo = 0.7, hi = 0.95,
      why = "as measured all-to-alls: 0.89 to 0.92 of InfiniBand, 0.96 of EFA",
      source = "NCCL's published times (recipes/collectives.lua); low end: none: a guess" } },
    a2a_base_us = assumed { value = 2, lo = 0, hi = 20,
      why = "start-up of an all-to-all, fitted to small ones of 16 to 112 GPUs",
      source = "NCCL's published times (recipes/collectives.lua); band: none: a guess" },
    a2a_per_peer_us = assumed { value = 2, lo = 1, hi = 4,
      why = "start-up per peer, fitted to small all-to-alls of 16 to 112 GPUs",
      source = "NCCL's published times (recipes/collectives.lua); band: none: a guess" },
    all_reduce_base_us = gpu.all_reduce_us,
    in_switch = gpu.in_switch,
    sources = {
      device = "NVIDIA's data sheet; memory: PyTorch",
      ["device.op_times"] = "NVIDIA's AIConfigurator, the names in the head of the .times",
      collective_times = "NVIDIA's AIConfigurator, the names in the head of the .times",
      intra = "NVIDIA's data sheet: NVLink", ["intra.latency_us"] = "none: a guess",
      ["nic.latency_us"] = "none: a guess", nic = "the NIC's name",
      all_reduce_base_us = "the GPU's .times", in_switch = "NVIDIA's data sheet: NVLink SHARP",
      devices_per_node = "NVIDIA's data sheet", nics_per_node = "NVIDIA's data sheet",
    },
  }
  local out = schema.merged(common, fields)
  for _, part in ipairs { "device", "intra", "nic", "sources" } do
    out[part] = schema.merged(common[part], fields[part] or {})
  end
  return out
end

return M
