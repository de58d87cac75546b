-- What do Lancet, PipeMoE and Lina add to each other? Two CPU ranks over an emulated link, balanced
-- routing: a baseline with two communication lanes, to which Lancet's weight-gradient schedule,
-- PipeMoE's degree and Lina's priorities and micro-ops are added one after another; simulated and
-- executed. The second table has every pair of techniques, executed on 2 nodes of 2 ranks: either
-- the pair runs, or the reason for which it is refused.
local moe = require "moe"
local shared = require "shared"
local pass = moe.pass

local DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = 2 ^ 20 }
local function size(t)
  return moe.model.gpt2_moe { vocab = 256, layers = t.layers, hidden = t.hidden, heads = 4,
    seq = t.seq, batch_per_device = t.rows, experts = 4, gate = "random", capacity_factor = 1.25 }
end

local steps = {
  { "lina_baseline", "two streams, fair share, buckets", {} },
  { "lancet", "+ dW schedule (Lancet)", { pass.dw_schedule {} } },
  { "pipemoe", "+ degree (PipeMoE)", { pass.pipemoe {}, pass.dw_schedule {} } },
  { "lina", "+ priority, micro-ops (Lina)", { pass.pipemoe {}, pass.dw_schedule {},
    pass.priority { hold = false }, pass.chunked { bytes = 2 ^ 18 } } },
}
local systems = {}
for i, s in ipairs(steps) do
  systems[i] = moe.system(s[1]) { all_reduce = DDP, unpack(s[3]) }
end

local R = moe.run(moe.experiment {
  name = "mix", model = size { layers = 4, hidden = 128, seq = 128, rows = 16 },
  systems = systems, optimizer = { lr = 0.02 },
  run = { { "cpu", ranks = 2, steps = 10, link = { bytes_per_s = 1e8, latency_us = 20 } } },
})
local rows, first, before = { { "system", "executed ms", "simulated ms", "adds", "exposed ms",
  "largest difference of a loss" } }, nil, nil
for run in R:each() do
  first = first or run
  rows[#rows + 1] = { steps[#rows][2], run.iteration_ms, run.prediction.iteration_ms,
    before and before.iteration_ms / run.iteration_ms or "", run.exposed_comm_ms,
    shared.loss_difference(run, first) }
  before = run
end
print("\nEmulated: what each adds\n"
  .. moe.table(rows, { "", "%.1f", "%.1f", "%.3fx", "%.1f", "%.1e" }))

local techniques = {
  { "capacity_pipeline", pass.capacity_pipeline { degree = 2 } }, { "pipemoe", pass.pipemoe {
    alpha_a = 1e-4, beta_a = 1e-8, alpha_e = 1e-4, beta_e = 1e-11, degrees = "2" } },
  { "micro_ops", pass.micro_ops { bytes = 20000 } },
  { "irregular_a2a", pass.irregular_a2a {} }, { "used_rows", pass.used_rows {} },
  { "hierarchical_a2a", pass.hierarchical_a2a {} },
  { "partition", pass.partition { parts = 2 } },
  { "dw_schedule", pass.dw_schedule { if_slower = "keep" } },
  { "blocking_a2a", pass.blocking_a2a {} }, { "fixed", pass.fixed {} },
  { "priority", pass.priority {} }, { "chunked", pass.chunked { bytes = 50000 } },
  { "serial", pass.serial {} },
}
local model = size { layers = 4, hidden = 64, seq = 32, rows = 2 }
local function train(name, ...)
  local system = { all_reduce = DDP, ... }
  return pcall(moe.train, { model = model, ranks = 4, steps = 2, system = moe.system(name)(system),
    link = { bytes_per_s = 1e9, latency_us = 5, devices_per_node = 2 } })
end

local _, plain = train("plain", pass.serial {})
local function same_routing(r)
  for step, layers in ipairs(plain.moe) do
    for layer, want in ipairs(layers) do
      if r.moe[step][layer].checksum ~= want.checksum then return false end
    end
  end
  return true
end

local function verdict(a, b)
  local ok, r = train(a[1] .. "_" .. b[1], a[2], b ~= a and b[2] or nil)
  if not ok then return nil, (tostring(r):gsub("^[^:]*:%d+: ", "")) end
  local off = math.abs(r.losses[2] - plain.losses[2])
  return ("%s%s"):format(same_routing(r) and "" or "routing differs, ",
    r.digest == plain.digest and "same bits" or ("%.0e"):format(off))
end

local head, refused, ran = { "with" }, {}, 0
for i, t in ipairs(techniques) do head[i + 1] = t[1]:sub(1, 9) end
local pairs_of = { head }
for i, a in ipairs(techniques) do
  local row = { a[1] }
  for j, b in ipairs(techniques) do
    local text, why = "", nil
    if j >= i then text, why = verdict(a, b) end
    if why then refused[#refused + 1] = ("%s + %s: %s"):format(a[1], b[1], why) end
    ran = ran + ((j >= i and not why) and 1 or 0)
    row[j + 1] = why and "refused" or text
  end
  pairs_of[i + 1] = row
end
print(("\n%d pairs run, %d are refused; the difference of the second loss to the plain program's"):
  format(ran, #refused))
print(moe.table(pairs_of))
print("\nRefused:\n  " .. table.concat(refused, "\n  "))
