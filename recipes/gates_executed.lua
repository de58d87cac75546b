-- Is a gate of one's own predicted as well as a built-in one? A gate that takes a second expert for
-- one token in a hundred is compared with Switch and top-2, with routers that are trained and on
-- skewed scores: bytes of the all-to-alls, simulated and executed, and times of steps, predicted
-- and executed on two CPU ranks over an emulated link. A simulation that counted k choices per
-- token would have twice the bytes for the rare second choice.
local moe = require "moe"

local STEPS, CHECKED = 25, 4  -- steps of the timed runs, and of the runs whose bytes are compared

local rare_second = moe.policy.gate {
  name = "rare_second", doc = "the best expert; one token in a hundred also takes its second best",
  scope = "token", weight = "prob", k = 2,
  route = function(ctx, s)
    local best = s:topk_rows(2)
    for t = 1, ctx.tokens do
      ctx:take(t, best(t, 1))
      if (ctx.first_token + t) % 100 == 0 then ctx:take(t, best(t, 2)) end
    end
  end,
}

local GATES = { { "switch", "switch" }, { "top_k", "top_k", k = 2 },
  { "rare_second", rare_second {} } }
local ROUTINGS = {
  { "trained router" }, { "zipf", moe.workload "zipf" { s = 0.6, seed = 3, drift = 0.1 } } }
local LINK = { bytes_per_s = 1e8, latency_us = 20 }
local systems = { moe.system "raf_rows" {}, moe.system "lancet" {} }

local function model(gate, routing)
  return moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 128, heads = 4, seq = 128,
    batch_per_device = 8, experts = 4, gate = gate[2], k = gate.k, capacity_factor = 2,
    dtype = "f32", routing = routing[2] }
end

-- Simulations on these two devices give bytes only; their times do not matter.
local pair = moe.cluster.custom { name = "pair", nodes = 2, devices_per_node = 1,
  device = { gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e11 },
  intra = LINK, nic = LINK }

-- Returns the bytes that all-to-alls of both ranks send in steps 1 to CHECKED.
local function bytes(of, all_ranks)
  local sum = 0
  for step = 1, CHECKED do
    for _, span in ipairs(of:spans { step = step, all_ranks = all_ranks }) do
      if span.kind:find "all_to_all" then sum = sum + span.bytes end
    end
  end
  return sum
end

local rows = { { "router", "gate", "system", "MB sent per step", "simulated", "ms", "predicted",
  "error" } }
for _, routing in ipairs(ROUTINGS) do
  for _, gate in ipairs(GATES) do
    local name = ("%s_%s"):format(gate[1], routing[2] and "zipf" or "trained")
    local m = model(gate, routing)
    local R = moe.run(moe.experiment { name = name, model = m, systems = systems,
      optimizer = { lr = 0.02 },
      run = { { "cpu", ranks = 2, steps = STEPS, rehearse = 16, link = LINK } } })
    for i, run in ipairs(R.runs) do
      local plan = moe.plan { model = m, cluster = pair, system = systems[i] }
      local executed = plan:run("cpu", { steps = CHECKED })
      local sent = bytes(executed, true)
      local planned = routing[2] and bytes(plan, true) or 2 * bytes(plan, false)
      local p = run.prediction
      rows[#rows + 1] = { routing[1], gate[1], run.system, sent / CHECKED / 1e6,
        planned / CHECKED / 1e6, run.iteration_ms, p.iteration_ms, 100 * p.error }
    end
  end
end
print("\nBytes and times of gates, executed and simulated\n"
  .. moe.table(rows, { "", "", "", "%.3f", "%.3f", "%.1f", "%.1f", "%+.1f%%" }))
