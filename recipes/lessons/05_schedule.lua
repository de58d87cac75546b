-- Lesson 5. How do I write a schedule, and how do I see what it still misses? Each all-to-all of
-- the backward hides the longest weight gradients that are free to move under it. plan:explain()
-- then says of every collective what hid it.
-- Run it: build/release/moebench run recipes/lessons/05_schedule.lua  (under a second)
-- Try next: print(plan:explain()), the whole report; the shortest gradients first;
-- moe.pass.partition {} before the schedule.
local moe = require "moe"

local longest_first = moe.policy.schedule { name = "longest_first", apply = function(s, g, ctx)
  local used = {}
  for _, a2a in ipairs(g:ops { kind = "all_to_all", phase = "backward" }) do
    local free = g:ops { dw = true, where = function(op)
      return not used[op.name] and s:free(op, a2a)     -- no path joins the two
    end }
    table.sort(free, function(a, b) return a.cost_ms > b.cost_ms end)
    local left = a2a.cost_ms
    for _, dw in ipairs(free) do
      if left <= 0 then break end
      s:under(dw, a2a)
      used[dw.name], left = true, left - dw.cost_ms
    end
  end
end }

local mine = moe.system "mine" { moe.pass.irregular_a2a {}, moe.pass.used_rows {},
  longest_first {} }
local plan
for _, system in ipairs { moe.system "raf_rows" {}, moe.system "lancet_dw" {}, mine } do
  plan = moe.plan { system = system, cluster = moe.cluster.p4de { nodes = 8 },
    model = moe.model.gpt2_moe { vocab = 151936, layers = 12, hidden = 768, heads = 12, seq = 512,
      batch_per_device = 24, experts_per_device = 2, attention = "unfused" } }
  print(("%-9s  %.1f ms"):format(system.name, plan:simulate().iteration_ms))
end

local took, shown = {}, 0
for _, span in ipairs(plan:spans()) do took[span.op] = span.end_ms - span.begin_ms end
print "\nThe backward's first four all-to-alls under mine"
for _, c in ipairs(plan:explain().collectives) do
  if shown < 4 and c.kind == "all_to_all" and c.op:match "%.dx$" then
    local first = c.hidden_by[1].op
    print(("%-17s takes %.1f ms, hidden %.1f: by %s of %.1f ms and %d more"):format(c.op,
      c.alone_ms, c.hidden_ms, first, took[first], #c.hidden_by - 1))
    shown = shown + 1
  end
end
