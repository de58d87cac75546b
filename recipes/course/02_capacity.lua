-- Exercise 2. How much of the all-to-alls hides under experts that are cut along the capacity?
-- Run it with your guess:
-- build/release/moebench run recipes/course/02_capacity.lua --set guess=50  (under a second)
-- Try next: hidden = 2048, which makes experts 7 times longer.
local moe = require "moe"
local ask = require "ask"

local unit = "% of the all-to-alls' time"
local guess = ask.number([[
GPT-2 with experts in every second block on two nodes of 8 A100. Tutel cuts the rows of an MoE layer
into parts, so that the all-to-all of one part runs under the experts of another. How much of the
time of all all-to-alls of a step does that hide?]], unit)
if not guess then return end

local function planned(name)
  return moe.plan { system = moe.system(name) {}, cluster = moe.cluster.p4de { nodes = 2 },
    model = moe.model.gpt2_moe { layers = 12, hidden = 768, heads = 12, seq = 512,
      batch_per_device = 24, experts_per_device = 2 } }
end

local raf, tutel = planned("raf"):simulate(), planned "tutel"
local exchanges, hidden = ask.hidden(tutel, "all_to_all")
local experts = tutel:simulate().alone_ms.expert
ask.answer(guess, 100 * hidden / exchanges, unit, ([[
only the experts of the same layer can hide a part's rows. They take %.1f ms of a step in
which the all-to-alls take %.1f, so %.0f%% is the most. Of the experts' time %.1f ms is used, and
the step is %.2f times as fast as uncut. More can hide only under other compute than the experts:
what does not depend on the layer's rows, or comes before or behind it.]]):format(
  experts, exchanges, 100 * experts / exchanges, hidden,
  raf.iteration_ms / tutel:simulate().iteration_ms))
