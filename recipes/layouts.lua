-- Which layout trains Qwen3-30B-A3B best on 16, 64 or 256 H100, with 1,024 sequences of 4,096
-- tokens per step, and why? All grids of tp, pp and ep that can be, under Megatron's system with
-- dropless even rows; steps of few micro-batches are simulated, and the rest follows: in a steady
-- state each further micro-batch takes the same time. Steps that differ by less than the error of
-- such predictions (`tie`) are ties; a recipe that runs both would decide. --set gpus=64 --set
-- seqs=1024 --set model=qwen3_235b_a22b; a minute or two for 16 GPUs.
local moe = require "moe"

local set = moe.options { gpus = 16, seqs = 1024, model = "qwen3_30b_a3b", seq = 4096, tie = 0.15 }
local cluster = moe.cluster.h100 { nodes = set.gpus / 8 }

local function plan(g, micro)
  local passes = { moe.pass.irregular_a2a {}, moe.pass.used_rows {}, moe.pass.weights_at_experts {},
    moe.pass.zero {}, moe.pass.blocking_a2a {}, all_reduce = { lane = "comm_reduce",
      place = "ready", bucket_bytes = 8e7 } }
  if g.pp > 1 then passes[#passes + 1] = moe.pipeline["1f1b"] {} end
  return moe.plan { model = moe.model[set.model] { batch_per_device = 1, seq = set.seq,
      capacity = "none" }, cluster = cluster, system = moe.system "megatron_like" (passes),
    grid = moe.grid { tp = g.tp, pp = g.pp, ep = g.ep, micro_batches = micro } }
end

--- Returns { grid, ms, .. } of a step of all micro-batches, or the reason why there is none.
local function step(g)
  local micro = set.seqs * g.tp * g.pp / set.gpus
  if micro < 1 then return nil, "fewer sequences than ranks" end
  local few, more = math.min(micro, g.pp + 1), math.min(micro, 2 * g.pp + 2)
  local ok, a = pcall(plan, g, few)
  if not ok then return nil, tostring(a.message or a) end
  local b = more > few and plan(g, more) or a
  local each = more > few and (b.sim.iteration_ms - a.sim.iteration_ms) / (more - few) or 0
  local ms, at = b.sim.iteration_ms + (micro - more) * each, b.sim
  local idle = 0
  for _, rank in ipairs(at.pipeline or {}) do
    idle = math.max(idle, rank.fill_ms + rank.drain_ms)
  end
  return { grid = g, micro = micro, ms = ms, oom = at.oom, gib = b:memory().peak_bytes / 2 ^ 30,
    tokens = set.seqs * set.seq / set.gpus / ms * 1e3, bubble = idle / ms,
    exposed = at.exposed_comm_ms / at.iteration_ms }
end

local found, dropped, refused = {}, 0, {}
for _, tp in ipairs { 1, 2, 4, 8 } do
  for _, pp in ipairs { 1, 2, 4, 8 } do
    for _, ep in ipairs { 1, 2, 4, 8, 16, 32, 64 } do
      if ep <= set.gpus / pp and tp <= set.gpus / pp then
        local s, why = step { tp = tp, pp = pp, ep = ep }
        if not s then
          refused[why] = (refused[why] or 0) + 1
        elseif s.oom then
          dropped = dropped + 1
        else
          found[#found + 1] = s
        end
      end
    end
  end
end
table.sort(found, function(a, b) return a.ms < b.ms end)
local rows = { { "tp", "pp", "ep", "micro-batches", "step s", "tokens/s per GPU", "GiB", "bubble",
  "exposed", "" } }
for i = 1, math.min(12, #found) do
  local s = found[i]
  rows[#rows + 1] = { s.grid.tp, s.grid.pp, s.grid.ep, s.micro, ("%.2f"):format(s.ms / 1e3),
    ("%.0f"):format(s.tokens), ("%.1f"):format(s.gib), ("%.0f%%"):format(100 * s.bubble),
    ("%.0f%%"):format(100 * s.exposed), i > 1 and s.ms / found[1].ms < 1 + set.tie and "tie" or "" }
end
print(("%s in megatron_bf16 on %d H100, %d sequences of %d tokens, even rows; step: extrapolated, "
  .. "exposed: of 2 pp + 2 micro-batches; %d layouts fit, %d do not"):format(set.model,
  set.gpus, set.seqs, set.seq, #found, dropped))
print(moe.table(rows))
for why, n in pairs(refused) do print(("%d refused: %s"):format(n, why)) end

-- What tp costs: the best step of each tp.
for _, tp in ipairs { 1, 2, 4, 8 } do
  for _, s in ipairs(found) do
    if s.grid.tp == tp then
      print(("tp = %d: best %.2f s, %.1f GiB (pp = %d, ep = %d)"):format(tp, s.ms / 1e3, s.gib,
        s.grid.pp, s.grid.ep))
      break
    end
  end
end
