-- Exercise 4. What does an uneven load of the experts cost?
-- build/release/moebench run recipes/course/04_imbalance.lua --set guess=2  (under a second)
local moe = require "moe"
local ask = require "ask"
local set = ask.settings { nodes = { 2, 1, 4 }, ratio = { 2, 4, 7 }, capacity = { "none", "1.25" } }
local ranks, room = 8 * set.nodes, tonumber(set.capacity)
local function simulated(routing)
  local plan = ask.gpt2(set.nodes, moe.system "raf_rows" {}, { routing = routing,
    capacity = not room and "none" or nil, capacity_factor = room })
  return plan:simulate(), plan:info().assumed_routing.dropped
end
local even = simulated(moe.workload "balanced" {})
local uneven, dropped = simulated(moe.workload "hot_rank" { share = set.ratio / ranks })
if not ask.guess(ask.words .. ([[
Only rows of tokens travel, and nothing hides. An expert has room for %s. With an even load a step
takes %.0f ms: %.0f in all-to-alls, %.0f in the experts. Now the experts of one GPU, in each layer
drawn anew, get %g times the mean of the choices, the others evenly the rest. How many times as
long is the step?]]):format(room and room .. " times its even share and drops more" or "all rows",
  even.iteration_ms, even.a2a_transfer_ms, even.alone_ms.expert, set.ratio),
  "times the step of an even load") then return end

local most = math.min(set.ratio, room or set.ratio)  -- rows of a GPU, over those of an even load
local other = math.min((ranks - set.ratio) / (ranks - 1), room or 1)
local link = set.nodes == 1 and "In one node no NIC is used, and each GPU has its own NVLink port"
  or ("Two GPUs share a NIC, so that the fullest carries (%.2f + %.2f) / 2 = %.2f times the rows "
    .. "of an even load"):format(most, other, (most + other) / 2)
local rows = { { "load", "all-to-alls", "waiting for the busiest GPU", "all else", "step ms" } }
for i, sim in ipairs { even, uneven } do
  rows[i + 1] = { i == 1 and "even" or "uneven", sim.a2a_transfer_ms, sim.a2a_wait_ms,
    sim.iteration_ms - sim.a2a_transfer_ms - sim.a2a_wait_ms, sim.iteration_ms }
end
ask.answer(uneven.iteration_ms / even.iteration_ms, ([[
%.1f%% of the choices are dropped. The busiest GPU gets %.2f times the rows of an even load, another
%.2f. %s. The all-to-alls take %.2f times as long. They begin when the last GPU is ready, and the
busiest computes its experts for %.2f times the mean. All else, the mean of the experts among it,
stays unless rows are dropped.]]):format(100 * dropped, most, other, link,
  uneven.a2a_transfer_ms / even.a2a_transfer_ms, uneven.expert_imbalance), rows,
  { "capacity=1.25: what does it save, and at what price?", "nodes=1: what grows?" })
