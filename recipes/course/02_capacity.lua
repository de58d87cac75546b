-- Exercise 2. How much of the all-to-alls hides under experts that are cut along the capacity?
-- build/release/moebench run recipes/course/02_capacity.lua --set guess=50  (two seconds)
local moe = require "moe"
local ask = require "ask"
local set = ask.settings { nodes = { 2, 1, 4 }, hidden = { 768, 2048, 4096 } }
local rows = { { "parts", "all-to-alls", "hidden", "experts", "compute", "step ms" } }
for _, parts in ipairs { 1, 2, 4, 8 } do  -- all else is equal, and gradients are summed at the end
  local cut = moe.system "cut" { moe.pass.capacity_pipeline { degree = parts } }
  local plan = ask.gpt2(set.nodes, cut, { hidden = set.hidden })
  local sim, a2a, hidden = plan:simulate(), 0, 0
  for _, c in ipairs(plan:explain().collectives) do
    if c.kind == "all_to_all" then a2a, hidden = a2a + c.alone_ms, hidden + c.hidden_ms end
  end
  rows[#rows + 1] = { parts, a2a, hidden, sim.alone_ms.expert, sim.compute_ms, sim.iteration_ms }
end
local _, a2a, hidden, experts, _, step = unpack(rows[3])
local function over(i) return rows[3][i] - rows[2][i] end
local function waits(row) return row[6] - row[5] - (row[2] - row[3]) end
if not ask.guess(ask.words .. ([[
An expert has room for 1.25 times its even share of rows, all of which travel. As in Tutel this room
is cut in two parts, in the forward and the backward, so that one part travels while the experts
compute the other. In a step the experts compute for %.1f ms, and the all-to-alls take %.1f ms. How
much of these hides under compute?]]):format(experts, a2a), "% of the all-to-alls") then return end

ask.answer(100 * hidden / a2a, ([[
between the all-to-alls of a layer only its experts compute, so that at most %.0f%% hide (%.1f of
%.1f ms). And one part hides under the experts of the other alone: the first on its way in and the
last on its way back find none at work, in the forward and in the backward, but for the backward's
last, which meets a weight gradient (all that hides uncut). So 5 of 8 hide at most, 62.5%%. The step
takes %.1f ms in place of %.1f uncut: cut in two, %.1f ms more hide, but the all-to-alls take %.1f
ms longer, each part with a start of its own, and compute %.1f ms (the experts %.1f, the rest is
cutting and joining). Of the step, %.1f ms are neither compute nor all-to-alls: it waits for sums of
gradients, which share the links (%.1f ms uncut).]]):format(100 * math.min(1, experts / a2a),
  experts, a2a, step, rows[2][6], over(3), over(2), over(5), over(4), waits(rows[3]),
  waits(rows[2])), rows,
  { "hidden=4096: which parts make the shortest step now, and why?",
    "nodes=1: which of the two bounds holds?" })
