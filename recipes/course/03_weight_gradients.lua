-- Exercise 3. How much of the backward's all-to-alls can weight gradients hide?
-- Run it with your guess:
-- build/release/moebench run recipes/course/03_weight_gradients.lua --set guess=100
-- (under a second)
-- Try next: lancet, which cuts the forward, too; 8 nodes.
local moe = require "moe"
local ask = require "ask"

local unit = "% of the backward's all-to-alls"
local guess = ask.number([[
The model of exercise 2. In the backward, a layer's weight gradients are needed by the optimizer
alone, so they can wait for any all-to-all further down and run under it. How much of the time of
the backward's all-to-alls do they hide?]], unit)
if not guess then return end

local plan = moe.plan { system = moe.system "lancet_dw" {},
  cluster = moe.cluster.p4de { nodes = 2 },
  model = moe.model.gpt2_moe { layers = 12, hidden = 768, heads = 12, seq = 512,
    batch_per_device = 24, experts_per_device = 2 } }
local o, _, hidden = plan:overlap(), ask.hidden(plan, "all_to_all")
ask.answer(guess, 100 * hidden / o.a2a_ms, unit, ([[
the %d weight gradients take %.1f ms together, the %d all-to-alls of the backward %.1f. So %.0f%%
is the most, if each gradient finds an all-to-all behind it that has room. Lancet's rule, the best
fit first, places %.1f ms of them, and in the step %.1f ms of all-to-alls hide. The forward's
all-to-alls have no gradients to hide under.]]):format(o.num_dw, o.dw_ms, o.num_a2a, o.a2a_ms,
  100 * o.bound_ms / o.a2a_ms, o.greedy_ms, hidden))
