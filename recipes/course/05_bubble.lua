-- Exercise 5. How long is a pipeline's bubble?
-- build/release/moebench run recipes/course/05_bubble.lua --set guess=20  (two seconds)
local moe = require "moe"
local ask = require "ask"
local set, P = ask.settings { micro = { 8, 4, 16, 32 }, vocab = { 1024, 50257 } }, 4
if not ask.guess(([[
GPT-2 with 16 blocks of width 1024 and a vocabulary of %d, four blocks on each of %d pipeline ranks,
which are two A100 each; every second block has experts, one per GPU. The last rank also multiplies
by the vocabulary, %.2f times as many products as all weights of its blocks have. A step has %d
micro-batches of 4 sequences of 512 tokens per GPU, in the order of 1F1B; a backward takes twice a
forward. Ranks wait for others before their first micro-batch, between micro-batches and after their
last. What share of the step is that in the ranks' mean?]]):format(set.vocab, P,
  set.vocab / (4 * 12 * 1024), set.micro), "% of the step") then return end

local t, m = { F = 0, I = 0, W = 0 }, set.micro  -- t: ms of a turn of zb_h1 on the second rank
local rows = { { "schedule", "micro-batches", "step ms", "waiting %",
  "with equal turns %", "transfers %", "both %", "busiest rank ms", "mean rank ms" } }
for i, schedule in ipairs { "1f1b", "1f1b", "interleaved", "interleaved", "zb_h1", "zb_h1" } do
  local micro, wait, busy = i % 2 == 1 and m or 4 * m, 0, {}
  local sim = moe.plan { grid = moe.grid { pp = P, micro_batches = micro },
    model = moe.model.gpt2_moe { layers = 16, hidden = 1024, heads = 16, seq = 512,
      vocab = set.vocab, batch_per_device = 4, experts_per_device = 1 },
    cluster = moe.cluster.p4de { nodes = 1 },
    system = moe.system "plain" { moe.pipeline[schedule] {} } }:simulate()
  for rank, of in ipairs(sim.pipeline) do
    wait, busy[rank] = wait + (of.fill_ms + of.stages_ms + of.drain_ms) / P, of.busy_ms
  end
  local equal = moe.pipeline_times { schedule = schedule, ranks = P, micro_batches = micro,
    times = { F = 1, I = 1, W = 1 } }
  local step, mean = sim.iteration_ms, moe.values(busy):mean()
  rows[i + 1] = { schedule, micro, step, 100 * wait / step, 100 * equal.bubble[1] / equal.step,
    100 * (1 - (wait + mean) / step), 100 * (1 - mean / step), math.max(unpack(busy)), mean }
  for _, turn in ipairs(i == 5 and sim.pipeline[2].turns or {}) do
    local kind = turn.text:match "%a"
    t[kind] = t[kind] + (turn.end_ms - turn.begin_ms) / m
  end
end
local last, mean = unpack(rows[2], 8)
local about, left = last + (P * mean - last) / m, (P - 1) * (t.F + t.I - t.W)
ask.answer(rows[2][4], ([[
if pairs of a forward and a backward are equally long, a rank waits for p - 1 = %d of m + p - 1 = %d
in a step: %.0f%%. Here the last rank computes %.1f ms per micro-batch and another %.1f, and the
others wait for the last in each: a step takes about m t_last + (p - 1) t_other = %.1f ms; without
transfers %.0f%% of it is waiting. Two stages per rank halve the time until the last rank begins
(interleaved). zb_h1 splits a backward into the gradient of the input (I), for which a rank waits,
and that of the weights (W), which fills gaps: (p - 1)(F + I - W) is left, if F = I = W %.0f%% of
the step. But F takes %.1f ms, I %.1f and W %.1f (rank 2; I also has attention's scores and
all-to-alls): %.0f%%, if all ranks are like it. Transfers are all-to-alls and sums of the two GPUs
of a rank, and rows between ranks. No step is shorter than the busiest rank's compute, so that
waiting and transfers ("both") are %.0f%% of it at least.]]):format(P - 1, m + P - 1,
  100 * (P - 1) / (m + P - 1), last / m, (about - last) / (P - 1), about, 100 * (1 - mean / about),
  rows[6][5], t.F, t.I, t.W, 100 * left / (m * (t.F + t.I + t.W) + left), 100 * (1 - mean / last)),
  rows, { "vocab=50257: do more micro-batches help now?", "micro=4: which schedule loses least?" })
