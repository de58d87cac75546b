-- Lesson 17. How do I write a dispatcher? `wide` sends a token once to each domain of 16 GPUs, to
-- the rank with the sender's place, which passes it on to each rank with one of its experts; sums
-- come back the same way, all in bf16. Its rows are counted, moved between threads, and simulated.
-- Run it: build/release/moebench run recipes/lessons/17_dispatcher.lua  (a second)
-- Try next: wire = "fp8"; reduce = "rank"; moebench list dispatchers.
local moe = require "moe"

local wide = moe.policy.dispatcher {
  name = "wide", doc = "a token once per domain, in bf16 both ways", sms = 20,
  params = { domain = 16 },
  route = function(grid, _, o)
    return {
      there = { { forward = "rail", dedup = "node", group = o.domain },  -- into the domain
        { forward = "none", dedup = "rank" } },                          -- to the experts' ranks
      reduce = "rank_node", times_of = "deepep_v1",  -- whose measured times hold for its copies
      dispatch_bytes = grid:payload(o.wire) + 8 * grid.topk,  -- numbers, experts and weights
      combine_bytes = grid:payload(o.combine),
    }
  end,
}

local choices, state = {}, 1  -- 16 ranks, 8 tokens each, 4 of 64 experts
for rank = 1, 16 do
  choices[rank] = {}
  for token = 1, 8 do
    state = state * 48271 % 2147483647
    choices[rank][token] = {}
    for i = 1, 4 do choices[rank][token][i] = (state + 17 * i) % 64 + 1 end
  end
end

local rows = { { "dispatcher", "NVLink of", "rows by NVLink", "by NICs", "outputs" } }
for _, d in ipairs { moe.dispatcher.deepep_v1 { wire = "bf16" }, wide { domain = 8 } } do
  for _, per_node in ipairs { 4, 8 } do
    local moved = moe.dispatch { dispatcher = d, ranks = 16, ranks_per_node = per_node, topk = 4,
      experts = 64, hidden = 128, choices = choices, dispatch = "bf16", execute = true }
    rows[#rows + 1] = { d.name, per_node, moved.dispatch.rows.nvlink, moved.dispatch.rows.nic,
      moved.fnv1a }
  end
end
print(moe.table(rows))

for _, d in ipairs { moe.dispatcher.deepep_v1 { wire = "bf16" }, wide {} } do
  local plan = moe.plan { cluster = moe.cluster.h100 { nodes = 8 },
    model = moe.model.deepseek_v3 { layers = 4, seq = 4096, batch_per_device = 1 },
    system = moe.system "megatron" { d } }
  print(("%s on nodes of 8: a step of %.1f ms"):format(d.name, plan.sim.iteration_ms))
end
