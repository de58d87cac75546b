-- moebench run tests/bench/search_quality.lua --trust --set part=brute (or mesh, known, old): how
-- good what moe.search finds is. brute: against the best of all mixes of spaces of at least 2,000,
-- each of which is planned and simulated, on three clusters. mesh: the same with pipeline ranks,
-- micro-batches, ranks per expert and schedules among the dimensions; --set only=2 --set share=10
-- searches the second alone, against a tenth of its mixes. known: on random cases of one pipeline
-- rank, against the best known system, simulated alone. old: two cases in which it was once worse.
local moe = require "moe"
local core = require "moe.core"
local explore = require "moe.search.explore"
local target = require "moe.spec.target"
local grid_lib = require "moe.spec.grid"
local jobs = require "moe.run.jobs"
local model_lib = require "moe.spec.model"
local space_lib = require "moe.search.space"

local set = moe.options { part = "brute", cases = 20, seed = 1, budget_s = 8, only = 0, share = 1 }
local state = set.seed
local function pick(list)  -- a linear congruential generator (Numerical Recipes, 3rd ed., 7.1)
  state = (state * 1664525 + 1013904223) % 2 ^ 32
  return list[math.floor(state / 2 ^ 32 * #list) + 1]
end

local function merged(all, fields)
  for key, value in pairs(fields) do all[key] = value end
  return all
end
local function gpt2(fields)
  return moe.model.gpt2_moe(merged({ vocab = 8192, layers = 4, hidden = 512, heads = 8, seq = 512,
    batch_per_device = 4, experts_per_device = 2, gate = "switch" }, fields))
end

local at = { name = "search_quality", line = 0 }

-- Returns the time of the fastest mix that fits, with its label, and the number of mixes.
local function brute_force(c)
  local techniques = {}
  for _, name in ipairs(c.techniques) do techniques[name] = true end
  local space = space_lib.new(techniques, c.options or {}, {}, { grids = c.grids or {},
    pipelines = c.pipelines or {}, dispatchers = {} })
  local best, label, n, refused = math.huge, nil, 0, 0
  explore.each_mix(space, function(mix)
    n = n + 1
    if (n - 1) % set.share ~= 0 then return end
    local ok, made = pcall(function()
      local changes, model = space:grid(mix), c.model
      if c.grid then model = model_lib.on(model, grid_lib.with(c.grid, changes, at)) end
      local spec = jobs.simulated_spec { model = model, cluster = c.cluster,
        optimizer = c.optimizer }
      if c.model.routing then spec.simulate = { steps = target.PLACED_STEPS } end
      return target.plan(spec, space:system(mix, "mix", at))
    end)
    refused = refused + (ok and 0 or 1)
    if ok and not made.oom and made.sim.iteration_ms < best then
      best, label = made.sim.iteration_ms, space:label(mix)
    end
    collectgarbage "step"
  end)
  return best, label, n, refused
end

-- Prints what a search of a space finds, and the best of all its mixes. c: { title, fields of
-- moe.search }.
local function against_brute_force(i, c)
  local fields = { name = "case " .. i, contributions = false, budget_s = 1e4 }
  for key, value in pairs(c[2]) do fields[key] = value end
  local began = core.clock()
  local s = moe.search(fields)
  local took = core.clock() - began
  local best, label, n, refused = brute_force(c[2])
  print(moe.table { { "case", "mixes", "refused", "brute force ms", "search ms", "worse by",
    "simulated", "s", "s of brute force" }, { c[1], n, refused, ("%.6f"):format(best),
    ("%.6f"):format(s.best.iteration_ms),
    ("%+.3f%%"):format(100 * (s.best.iteration_ms / best - 1)), s.simulated,
    ("%.0f"):format(took), ("%.0f"):format(core.clock() - began - took) } })
  print(("best of all: %s; found: %s"):format(label, s.known or s.best.choice))
end

local SPACE = { "irregular_a2a", "used_rows", "micro_ops", "partition", "dw_schedule", "fixed",
  "priority", "chunked", "all_reduce" }

local SGD = { name = "sgd", lr = 0.1, momentum = 0.9 }  -- the default of moe.search
local function flat(title, model, cluster)
  return { title, { model = model, cluster = cluster, techniques = SPACE, optimizer = SGD } }
end
-- A step of 32 sequences on 8 ranks, in 2 to 8 micro-batches on 2 or 4 pipeline ranks.
local function mesh(title, cluster, fields)
  return { title, { cluster = cluster, optimizer = SGD, grid = moe.grid { pp = 2,
      micro_batches = 4 },
    model = moe.model.gpt2_moe(merged({ vocab = 8192, layers = 8, hidden = 512, heads = 8,
      seq = 512, batch = 32, experts = 8, gate = "switch" }, fields)),
    techniques = { "irregular_a2a", "partition", "dw_schedule", "all_reduce", "hide_a2a" },
    options = { partition = { max_parts = { 2 } } },
    grids = { pp = { 4 }, micro_batches = { 2, 8 }, ep = { 2 } },
    pipelines = { moe.pipeline.interleaved {}, moe.pipeline.zb_h1 {},
      moe.pipeline.combined_1f1b {} } } }
end

local CASES = {
  brute = { flat("4 A100 nodes, switch", gpt2 {}, moe.cluster.a100 { nodes = 4 }),
    flat("2 p3dn nodes, top-2", gpt2 { gate = "top2", experts_per_device = 1 },
      moe.cluster.p3dn { nodes = 2 }),
    flat("2 A100 nodes, 32 experts, top-2, zipf", gpt2 { gate = "top2", layers = 2,
      routing = moe.workload "zipf" { s = 1.1 } }, moe.cluster.a100 { nodes = 2 }) },
  mesh = { mesh("8 A100, switch", moe.cluster.a100 { nodes = 1 }, {}),
    mesh("2 Lina nodes, top-2", moe.cluster.lina { nodes = 2 }, { gate = "top2" }),
    mesh("8 H100, wide, switch", moe.cluster.h100 { nodes = 1 }, { hidden = 1024,
      heads = 16 }) },
}
for i, c in ipairs(CASES[set.part] or {}) do
  if set.only == 0 or set.only == i then against_brute_force(i, c) end
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
if #rows > 1 then print(moe.table(rows)) end
