-- Exercise 5. How long is a pipeline's bubble?
-- build/release/moebench run recipes/course/05_bubble.lua --set guess=20  (two seconds)
local moe = require "moe"
local ask = require "ask"
local set, P = ask.settings { micro = { 8, 4, 16, 32 }, vocab = { 1024, 50257 } }, 4
if not ask.guess(([[
GPT-2 with 16 blocks of width 1024 and a vocabulary of %d, four blocks on each of %d pipeline ranks,
which are two A100 each; every second block has experts, one per GPU. A step has %d micro-batches of
4 sequences of 512 tokens per GPU, in the order of 1F1B; a backward takes twice a forward. A rank
waits for other ranks before its first micro-batch, between micro-batches and after its last. What
share of the step is that in the mean over
the ranks?]]):format(set.vocab, P, set.micro), "% of the step") then return end

local m, rows = set.micro, { { "schedule", "micro-batches", "waiting %", "with equal turns %",
  "transfers %", "busiest rank ms", "mean rank ms" } }
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
  rows[i + 1] = { schedule, micro, 100 * wait / step, 100 * equal.bubble[1] / equal.step,
    100 * (1 - (wait + mean) / step), math.max(unpack(busy)), mean }
end
ask.answer(rows[2][3], ([[
if pairs of a forward and a backward are equally long, a rank waits for p - 1 = %d of m + p - 1 =
%d in a step: %.0f%% (of the compute alone (p - 1) / m = %.0f%%). Two stages per rank halve the time
until the last rank begins (interleaved); zb_h1 splits a backward into the gradient of the input,
for which a rank waits, and that of the weights, which fills gaps. No step is shorter than the
busiest rank's compute, so that ranks lack work for %.0f%% of it at least, in any order. The waiting
for transfers is in no formula.]]):format(P - 1, m + P - 1, 100 * (P - 1) / (m + P - 1),
  100 * (P - 1) / m, 100 * (1 - rows[2][7] / rows[2][6])), rows,
  "--set vocab=50257: the last rank multiplies by the vocabulary. Do more micro-batches help now?")
