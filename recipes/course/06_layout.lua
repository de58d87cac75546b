-- Exercise 6. Which layout trains a model fastest?
-- Run it with your guess:
-- build/release/moebench run recipes/course/06_layout.lua --set guess=tp1-pp1-ep16  (five seconds)
-- Try next: one node, or four; another model.
local moe = require "moe"
local ask = require "ask"

local SEQS = 64
print [[
OLMoE (16 blocks with 64 experts, 8 per token) and 64 sequences of 4,096 tokens per step on 16 H100
in two nodes. Which layout is fastest: tp of 1 or 2 (products split over ranks), pp of 1, 2 or 4
(blocks on pipeline ranks), ep of 4, 8 or 16 (ranks that share the experts, at most 16 / pp)?]]
if ask.text == "" then return print "\nYour guess first: --set guess=tp1-pp1-ep16, for example" end

local list, of = {}, {}
local function add(tp, pp, ep)
  local passes = { moe.pass.irregular_a2a {}, moe.pass.used_rows {} }
  if pp > 1 then passes[3] = moe.pipeline["1f1b"] {} end
  local sim = moe.plan { system = moe.system "plain" (passes),
    cluster = moe.cluster.h100 { nodes = 2 },
    grid = moe.grid { tp = tp, pp = pp, ep = ep, micro_batches = SEQS * tp * pp / 16 },
    model = moe.model.olmoe_1b_7b { batch_per_device = 1, seq = 4096, capacity = "none" } }
    :simulate()
  local one = { name = ("tp%d-pp%d-ep%d"):format(tp, pp, ep), ms = sim.iteration_ms,
    a2a = sim.alone_ms.all_to_all / pp, sums = sim.alone_ms.all_reduce / pp }  -- of a pipeline rank
  list[#list + 1], of[one.name] = one, one
end
for _, pp in ipairs { 1, 2, 4 } do
  for _, ep in ipairs { 4, 8, 16 } do
    for tp = 1, ep <= 16 / pp and 2 or 0 do add(tp, pp, ep) end
  end
end
local mine = of[ask.text]
if not mine then error(ask.text .. ": is none of these layouts; tp1-pp2-ep8 is one") end
table.sort(list, function(a, b) return a.ms < b.ms end)
for place, one in ipairs(list) do one.place = place end
print(("\nAnswer: %s, %.0f ms. Your guess, %s, takes %.0f ms, %.0f%% more. It is place %d of %d.")
  :format(list[1].name, list[1].ms, mine.name, mine.ms, 100 * (mine.ms / list[1].ms - 1),
    mine.place, #list))
local node, across, whole = of["tp1-pp2-ep8"], of["tp1-pp1-ep16"], of["tp1-pp1-ep8"]
print(([[
Why: ranks that share experts should be in one node, whose NVLink carries their rows: with ep 16 the
all-to-alls take %.0f ms, with ep 8 %.0f. Gradients should be summed inside a node: with half of the
blocks on each, the all-reduces take %.0f ms in place of %.0f. More pipeline ranks wait longer for
one another, and split products exchange rows in every block to save memory, which is not short.]])
  :format(across.a2a, whole.a2a, node.sums, whole.sums))
