-- Lesson 6. How do I change the program itself? Lesson 5 found that head.dw, the weight gradient of
-- the output layer, takes as long as three all-to-alls and can hide under one. This pass cuts it
-- along the batch: `parts` smaller GEMMs, of which each adds its rows' share to the sum so far. The
-- built-in dw_schedule then finds a place for every part.
-- Run it: build/release/moebench run recipes/lessons/06_pass.lua  (two seconds)
-- Try next: more parts; moe.pass.partition {} before cut_head; s:under of lesson 5 for the parts.
local moe = require "moe"

local cut_head = moe.policy.pass { name = "cut_head", at = "step", params = { parts = 3 },
  apply = function(g, ctx, o)
    local head = g:op "head.dw"              -- its inputs: gradient of the logits, x, sum so far
    local rows, sizes = head.inputs[1].shape[1], {}
    for p = 1, o.parts do
      sizes[p] = math.floor(rows * p / o.parts) - math.floor(rows * (p - 1) / o.parts)
    end
    local parts = {}
    for i = 1, 2 do
      parts[i] = g:insert { kind = "split", name = "head.cut_" .. i, inputs = { head.inputs[i] },
        attrs = { axis = 0, sizes = table.concat(sizes, ","), view = 1 },  -- a view moves nothing
        phase = head.phase, seg = head.seg, layer = false }
    end
    local sum = false                        -- no sum so far
    for p = 1, o.parts do
      sum = g:insert { kind = "linear_dw", name = "head.dw." .. p,
        inputs = { parts[1].outputs[p], parts[2].outputs[p], sum, false }, dw = true }
    end
    g:redirect(head, sum)                    -- what read head.dw reads the last sum
    g:remove(head)
  end }

local function lancet_dw_with(name, cut)
  return moe.system(name) { moe.pass.irregular_a2a {}, moe.pass.used_rows {}, cut,
    moe.pass.dw_schedule {} }
end

for _, system in ipairs { moe.system "lancet_dw" {}, lancet_dw_with("cut_in_3", cut_head {}),
    lancet_dw_with("cut_in_8", cut_head { parts = 8 }) } do
  local plan = moe.plan { system = system, cluster = moe.cluster.p4de { nodes = 8 },
    model = moe.model.gpt2_moe { vocab = 151936, layers = 12, hidden = 768, heads = 12, seq = 512,
      batch_per_device = 24, experts_per_device = 2, attention = "unfused" } }
  print(("%-9s  %.1f ms"):format(system.name, plan:simulate().iteration_ms))
end

-- The plan is another one and the training the same: real steps on two ranks of this machine.
for _, system in ipairs { moe.system "raf" {}, moe.system "cut" { cut_head {} } } do
  local r = moe.train { system = system, ranks = 2, steps = 5, model = moe.model.gpt2_moe {
    vocab = 256, layers = 2, hidden = 64, heads = 4, seq = 64, batch_per_device = 4, experts = 4 } }
  print(("%-9s  loss %.2f -> %.2f"):format(system.name, r.losses[1], r.losses[5]))
end
