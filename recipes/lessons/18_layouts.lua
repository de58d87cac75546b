-- Lesson 18. Which layout trains a model best on a number of GPUs, and why? moe.layouts lists the
-- grids that can be, without those whose parameters and states alone do not fit; each is simulated
-- under Megatron's system with even rows: with pipeline ranks composed of turns (detail = "turns"),
-- without from two and three micro-batches, since each further one takes as long. Steps that differ
-- by less than the median error of such predictions (README) are ties; a run of both would decide.
-- Run it: build/release/moebench run recipes/lessons/18_layouts.lua  (fifteen seconds)
-- Try next: --set gpus=64; --set gpus=256; --set seq=32768 --set seqs=128 --set all=true (cp, etp);
-- --set model=deepseek_v3 --set cluster=h200 --set gpus=256 --set seqs=2048 --set all=true.
local moe = require "moe"

local set = moe.options { gpus = 16, seqs = 1024, model = "qwen3_30b_a3b", seq = 4096, tie = 0.153,
  cluster = "h100", stack = "megatron", all = false }
local cluster = moe.cluster[set.cluster] { nodes = set.gpus / 8, stack = set.stack }
local model = moe.model[set.model] { batch_per_device = 1, seq = set.seq, capacity = "none" }
local passes = { moe.pass.irregular_a2a {}, moe.pass.used_rows {}, moe.pass.weights_at_experts {},
  moe.pass.zero {}, moe.pass.blocking_a2a {}, all_reduce = { lane = "comm_reduce", place = "ready",
    bucket_bytes = 8e7 } }
local system = moe.system "megatron_like" (passes)
passes[#passes + 1] = moe.pipeline["1f1b"] {}
local in_turns = moe.system "megatron_like" (passes)

local function plan(fields, grid, detail)
  return moe.plan { model = model, cluster = cluster, system = fields, grid = grid,
    detail = detail }
end

--- Returns { grid, ms, gib, oom, idle } of a step.
local function step(grid, micro_batches)
  if grid.pp > 1 then
    local s = plan(in_turns, grid, "turns"):simulate()
    local idle = 0
    for _, ms in ipairs(s.idle_ms) do idle = math.max(idle, ms) end
    return { grid = grid, ms = s.iteration_ms, idle = idle, oom = s.oom,
      gib = s.peak_bytes and s.peak_bytes / 2 ^ 30 }
  end
  local few, ms, more = {}, 0, math.min(3, micro_batches)
  for n = math.max(1, more - 1), more do
    few = plan(system, moe.grid { tp = grid.tp, cp = grid.cp, etp = grid.etp, ep = grid.ep,
      micro_batches = n })
    ms = few.sim.iteration_ms + math.max(0, micro_batches - n) * (few.sim.iteration_ms - ms)
    ms = n < more and few.sim.iteration_ms or ms
  end
  return { grid = grid, ms = ms, idle = 0, oom = few.sim.oom,
    gib = few:memory().peak_bytes / 2 ^ 30 }
end

local axes = { tp = { 1, 2, 4 }, pp = { 1, 2, 4 }, ep = { 8, 16 } }
if set.all then
  axes = { tp = { 1, 2, 4, 8 }, cp = set.seq > 8192 and { 1, 2, 4 } or nil, etp = { 1, 2 },
    pp = { 1, 2, 4, 8, 16 } }
end
local found, refused, small = {}, 0, 0
for _, l in ipairs(moe.layouts { model = model, cluster = cluster, axes = axes, zero = 1,
    global_batch = set.seqs }) do
  if not l.gib then
    refused = refused + 1
  elseif l.refused then
    small = small + 1
  else
    local s = step(l.grid, l.micro_batches)
    if s.oom then small = small + 1 else found[#found + 1] = s end
  end
end
table.sort(found, function(a, b) return a.ms < b.ms end)
local rows = { { "tp", "cp", "pp", "etp", "ep", "step s", "tokens/s per GPU", "GiB", "idle", "" } }
for i = 1, math.min(10, #found) do
  local s, g = found[i], found[i].grid
  rows[#rows + 1] = { g.tp, g.cp or 1, g.pp, g.etp or 1, g.ep, ("%.2f"):format(s.ms / 1e3),
    ("%.0f"):format(set.seqs * set.seq / set.gpus / s.ms * 1e3), s.gib and ("%.1f"):format(s.gib)
    or "-", ("%.0f%%"):format(100 * s.idle / s.ms),
    i > 1 and s.ms / found[1].ms < 1 + set.tie and "tie" or "" }
end
print(("%s, %d %s, %d sequences of %d tokens: %d layouts fit, %d do not, %d cannot be"):format(
  set.model, set.gpus, set.cluster, set.seqs, set.seq, #found, small, refused))
print(moe.table(rows))
for _, tp in ipairs { 1, 2, 4, 8 } do
  for _, s in ipairs(found) do
    if s.grid.tp == tp then
      print(("tp %d: at best %.2f s (pp %d, ep %d)"):format(tp, s.ms / 1e3, s.grid.pp, s.grid.ep))
      break
    end
  end
end
