-- What do the techniques of four papers and forward over backward add to each other on a mesh of
-- pipeline ranks and experts, on skewed routing? Lancet's weight-gradient schedule and parts,
-- PipeMoE's degree, Lina's priority, Pro-Prophet's placement and scheduler, and Megatron-LM's
-- combined 1F1B, in which one micro-batch computes while the rows of another travel: each alone,
-- each left out, and all. Simulated on clusters of A100, H100 and B200, then executed on eight
-- paced CPU ranks over an emulated link, with the prediction beside.
local moe = require "moe"
local pass = moe.pass

local techniques = {
  { "lancet", function() return { pass.partition { max_parts = 4 }, pass.dw_schedule {} } end },
  { "pipemoe", function() return { pass.pipemoe { objective = "step" } } end },
  { "lina", function(t) return { pass.priority { hold = false },
    pass.chunked { bytes = t.bytes } } end },
  { "prophet", function() return { pass.prophet { shadows = 2 }, pass.prophet_schedule {} } end },
  { "f_over_b", function() return { moe.pipeline.combined_1f1b {}, pass.hide_a2a {} } end },
}
local F_OVER_B = #techniques

local function system(name, t, has)
  local passes = has(4) and {} or { pass.irregular_a2a {}, pass.used_rows {} }
  passes.all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = t.bucket }
  if not has(F_OVER_B) then passes[#passes + 1] = moe.pipeline.interleaved {} end
  for i, technique in ipairs(techniques) do
    for _, p in ipairs(has(i) and technique[2](t) or {}) do passes[#passes + 1] = p end
  end
  return moe.system(name)(passes)
end
local function systems(t)
  local all = { system("base", t, function() return false end) }
  for n, technique in ipairs(techniques) do
    all[#all + 1] = system("only_" .. technique[1], t, function(i) return i == n end)
    all[#all + 1] = system("no_" .. technique[1], t, function(i) return i ~= n end)
  end
  all[#all + 1] = system("all", t, function() return true end)
  return all
end

local function skew(seed) return moe.workload "zipf" { s = 0.8, seed = seed, drift = 0.1 } end
local simulated = moe.run(moe.experiment {
  name = "mix_mesh", over = { gpu = { "p4de", "h100", "b200" }, pp = { 2, 4 } },
  case = function(p) return {
    model = moe.model.gpt2_moe { layers = 16, hidden = 2048, heads = 16, seq = 2048,
      batch_per_device = 1, experts_per_device = 2, gate = "top2", capacity = "none",
      routing = skew(3) },
    grid = moe.grid { pp = p.pp, micro_batches = 16 }, cluster = moe.cluster[p.gpu] { nodes = 8 },
    systems = systems { bytes = 2 ^ 23, bucket = 25 * 2 ^ 20 } } end,
  run = { { "simulate", steps = 3 } },
})
local executed = moe.run(moe.experiment {
  name = "mix_mesh_executed",
  model = moe.model.gpt2_moe { vocab = 256, layers = 8, hidden = 128, heads = 4, seq = 128,
    batch_per_device = 2, experts = 4, gate = "switch", capacity = "none",
    routing = moe.workload "hot_rank" { share = 0.7, seed = 3, drift = 0.1 } },
  grid = moe.grid { pp = 2, micro_batches = 4 },
  systems = systems { bytes = 2 ^ 18, bucket = 2 ^ 20 }, optimizer = { lr = 0.02 },
  run = { { "cpu", ranks = 4, steps = 6, link = { bytes_per_s = 1e8, latency_us = 20 } } },
})
