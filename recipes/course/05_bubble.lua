-- Exercise 5. How long is a pipeline's bubble?
-- Run it with your guess:
-- build/release/moebench run recipes/course/05_bubble.lua --set guess=20  (a second)
-- Try next: moe.pipeline.zb_h1 {}, which halves the backwards.
local moe = require "moe"
local ask = require "ask"

local RANKS, MICRO = 4, 8
local unit = "% of the step"
local guess = ask.number([[
Sixteen blocks on four pipeline ranks, 8 micro-batches, 1F1B. What share of a step does a rank spend
without computing, in the mean over the ranks?]], unit)
if not guess then return end

-- Returns the means over ranks of the idle and the waiting time, as shares of the step in percent.
local function idle(schedule, micro)
  local plan = moe.plan { grid = moe.grid { pp = RANKS, micro_batches = micro },
    model = moe.model.gpt2_moe { layers = 16, hidden = 1024, heads = 16, seq = 512,
      vocab = 1024, batch_per_device = 4, experts_per_device = 1 },
    cluster = moe.cluster.p4de { nodes = 1 },
    system = moe.system "plain" { moe.pipeline[schedule] {} } }
  local sim, busy, wire = plan:simulate(), 0, 0
  for _, rank in ipairs(sim.pipeline) do
    busy, wire = busy + rank.busy_ms / RANKS, wire + (rank.wire_ms + rank.exchange_ms) / RANKS
  end
  return 100 * (1 - busy / sim.iteration_ms), 100 * wire / sim.iteration_ms
end

local got, wire = idle("1f1b", MICRO)
local function ideal(micro) return 100 * (RANKS - 1) / (micro + RANKS - 1) end
ask.answer(guess, got, unit, ([[
a rank waits until the first micro-batch reaches it, and at the end for the last gradient:
with turns of equal length (p - 1) / (m + p - 1) = %.0f%% of the step for p = %d ranks and m = %d
micro-batches. Exchanges of rows and the wire between ranks take %.0f%% here. With 4 times the
micro-batches nothing is computed for %.0f%% (%.0f%% by the formula), interleaved, with 8, for
%.0f%%.]]):format(
  ideal(MICRO), RANKS, MICRO, wire, (idle("1f1b", 4 * MICRO)), ideal(4 * MICRO),
  (idle("interleaved", MICRO))))
