-- moebench run tests/bench/pipeline_plans.lua --trust: how long plans of pipeline ranks take to
-- make and to simulate, medians of five.
local moe = require "moe"

local TIMES = 5

local function gpt2_l(system, micro)
  return { model = moe.model.gpt2_moe { layers = 36, hidden = 1280, heads = 20, seq = 512,
      batch_per_device = 4, experts_per_device = 2 },
    cluster = moe.cluster.a100 { nodes = 4 }, system = moe.system(system) {},
    grid = moe.grid { pp = 4, micro_batches = micro } }
end

local function routed(micro)
  return { model = moe.model.gpt2_moe { layers = 24, hidden = 1024, heads = 16, seq = 512,
      batch_per_device = 4, experts = 64, gate = "top_k", k = 2, capacity_factor = 1.25,
      routing = moe.workload "zipf" { s = 1, drift = 0.02 } },
    cluster = moe.cluster.a100 { nodes = 32 }, system = moe.system "deepspeed" {},
    grid = moe.grid { pp = 4, micro_batches = micro } }
end

local CASES = {
  { "GPT2-L, 4 pipeline ranks of 8, 8 micro-batches, raf", gpt2_l("raf", 8) },
  { "the same, lancet", gpt2_l("lancet", 8) },
  { "the same, raf, 64 micro-batches", gpt2_l("raf", 64) },
  { "DeepSeek-V3, 16 pipeline ranks of 128, 120 micro-batches, megatron", {
    model = moe.model.deepseek_v3 { seq = 4096, batch_per_device = 1, ep = 64 },
    cluster = moe.cluster.h800 { nodes = 256 }, system = moe.system "megatron" {},
    grid = moe.grid { pp = 16, micro_batches = 120, layout = "Etttt|(tttt|)*14tL" } } },
  { "4 pipeline ranks of 64, 4 micro-batches with choices of their own", routed(4) },
  { "the same, 16 micro-batches", routed(16) },
}

local rows = { { "case", "ops", "plan ms", "simulate ms" } }
for i, case in ipairs(CASES) do
  local plan_ms, sim_ms, info = {}, {}, nil
  for n = 1, TIMES do
    local plan = moe.plan(case[2])
    info = plan:info()
    plan_ms[n], sim_ms[n] = info.plan_ms, plan.sim.sim_ms
  end
  rows[i + 1] = { case[1], info.num_ops, ("%.0f"):format(moe.values(plan_ms):median()),
    ("%.0f"):format(moe.values(sim_ms):median()) }
end
print(moe.table(rows))
