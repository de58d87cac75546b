-- moebench run tests/bench/search_quality.lua --trust --set part=brute (or known, old): how good
-- what moe.search finds is. brute: against the best of all mixes of spaces of at least 2,000, each
-- of which is planned and simulated, on three clusters. known: on random cases of one pipeline
-- rank, against the best known system, simulated alone. old: two cases in which it was once worse.
local moe = require "moe"
local core = require "moe.core"
local explore = require "moe.search.explore"
local target = require "moe.spec.target"
local jobs = require "moe.run.jobs"
local space_lib = require "moe.search.space"

local set = moe.options { part = "brute", cases = 20, seed = 1, budget_s = 8, only = 0 }
local state = set.seed
local function pick(list)  -- a linear congruential generator (Numerical Recipes, 3rd ed., 7.1)
  state = (state * 1664525 + 1013904223) % 2 ^ 32
  return list[math.floor(state / 2 ^ 32 * #list) + 1]
end

local function gpt2(fields)
  local all = { vocab = 8192, layers = 4, hidden = 512, heads = 8, seq = 512, batch_per_device = 4,
    experts_per_device = 2, gate = "switch" }
  for key, value in pairs(fields) do all[key] = value end
  return moe.model.gpt2_moe(all)
end

local at = { name = "search_quality", line = 0 }

-- Returns the time of the fastest mix that fits, with its label, and the number of mixes.
local function brute_force(c)
  local techniques = {}
  for _, name in ipairs(c.techniques) do techniques[name] = true end
  local space = space_lib.new(techniques, {}, {}, { grids = {}, pipelines = {}, dispatchers = {} })
  local spec = jobs.simulated_spec { model = c.model, cluster = c.cluster, optimizer = c.optimizer }
  if c.model.routing then spec.simulate = { steps = target.PLACED_STEPS } end
  local best, label, n = math.huge, nil, 0
  explore.each_mix(space, function(mix)
    n = n + 1
    local ok, made = pcall(target.plan, spec, space:system(mix, "mix", at))
    if ok and not made.oom and made.sim.iteration_ms < best then
      best, label = made.sim.iteration_ms, space:label(mix)
    end
    collectgarbage "step"
  end)
  return best, label, n
end

local SPACE = { "irregular_a2a", "used_rows", "micro_ops", "partition", "dw_schedule", "fixed",
  "priority", "chunked", "all_reduce" }

if set.part == "brute" then
  local rows = { { "case", "mixes", "brute force ms", "search ms", "worse by", "simulated", "s" } }
  for i, c in ipairs {
    { "4 A100 nodes, switch", gpt2 {}, moe.cluster.a100 { nodes = 4 } },
    { "2 p3dn nodes, top-2", gpt2 { gate = "top2", experts_per_device = 1 },
      moe.cluster.p3dn { nodes = 2 } },
    { "2 A100 nodes, 32 experts, top-2, zipf", gpt2 { gate = "top2", experts_per_device = 2,
      layers = 2, routing = moe.workload "zipf" { s = 1.1 } }, moe.cluster.a100 { nodes = 2 } } } do
    if set.only == 0 or set.only == i then
      local best, label, n = brute_force { model = c[2], cluster = c[3], techniques = SPACE,
        optimizer = { name = "sgd", lr = 0.1, momentum = 0.9 } }
      local began = core.clock()
      local s = moe.search { name = "case " .. i, model = c[2], cluster = c[3], techniques = SPACE,
        contributions = false, budget_s = 600 }
      rows[#rows + 1] = { c[1], n, ("%.3f"):format(best), ("%.3f"):format(s.best.iteration_ms),
        ("%+.2f%%"):format(100 * (s.best.iteration_ms / best - 1)), s.simulated,
        ("%.0f"):format(core.clock() - began) }
      print(label, s.best.choice)
    end
  end
  print(moe.table(rows))
end

-- Returns the row of a search, which simulates each known system alone, too.
local function compare(title, model, cluster)
  local s = moe.search { name = title, model = model, cluster = cluster, contributions = false,
    budget_s = set.budget_s }
  local known = s.named[1]
  return { title, known.system, ("%.3f"):format(known.iteration_ms), ("%.3f"):format(
    s.best.iteration_ms), ("%+.2f%%"):format(100 * (s.best.iteration_ms / known.iteration_ms - 1)),
    s.known or s.best.choice }
end
local rows = { { "case", "best known", "ms", "search ms", "against it", "mix" } }
if set.part == "known" then
  for n = 1, set.cases do
    local gate, skew = pick { "switch", "top2" }, pick { 0, 0, 1.1 }
    rows[#rows + 1] = compare("case " .. n, gpt2 { gate = gate, layers = pick { 4, 8 },
        hidden = pick { 512, 1024 }, experts_per_device = pick { 1, 2 },
        batch_per_device = pick { 2, 8 }, capacity_factor = pick { 1, 1.25 },
        routing = skew > 0 and moe.workload "zipf" { s = skew } or nil },
      moe.cluster[pick { "a100", "p3dn", "h100" }] { nodes = pick { 1, 2, 4 } })
  end
elseif set.part == "old" then
  if set.only ~= 2 then
    rows[#rows + 1] = compare("32 experts, top-2, zipf 1.1, 16 A100", moe.model.gpt2_moe {
      layers = 12, hidden = 768, heads = 12, seq = 512, batch_per_device = 8, experts = 32,
      gate = "top2", routing = moe.workload "zipf" { s = 1.1 } },
      moe.cluster.a100 { nodes = 2 })
  end
  if set.only ~= 1 then
    rows[#rows + 1] = compare("Qwen3, 64 H200", moe.model.qwen3_30b_a3b { batch_per_device = 1,
      seq = 4096, ep = 8 }, moe.cluster.h200 { nodes = 8 })
  end
end
if set.part ~= "brute" then print(moe.table(rows)) end
