-- moe.lina.trace, inference, place, locality, token_classes: what is checked, and what the core
-- gets.
local expect = require "expect"
local test = require "test"
local world = require "world"

local function setup(w, core)
  core.lina_trace = function(spec)
    w.trace = spec
    return "handle", { paths = 7, most_rows = 2048 }
  end
  local plan = core.plan
  core.plan = function(spec)
    w.plan = spec
    return plan(spec)
  end
  core.lina_inference = function(handle, _, compare)
    w.inference = { handle = handle, compare = compare }
    return { median_ms = 1 }
  end
  for _, name in ipairs { "place", "locality" } do
    core["lina_" .. name] = function(spec)
      w[name] = spec
      return {}
    end
  end
  core.lina_token_classes = function(spec)
    w.classes = spec
    return "handle", "classes"
  end
end

local HEAD = expect.HEAD .. [[
local model = moe.model.lina { size = "bert_large", gate = "switch", batch_per_device = 8 }
local cluster = moe.cluster.lina { nodes = 4 }
local trace = moe.lina.trace { model = model, devices = 16,
  routing = moe.workload "zipf" { seed = 3 }, path = 6 }
]]

local function runs(text) return expect.runs(HEAD .. text, nil, nil, setup) end
local function fails(text, line, ...)
  expect.failed(world.run(HEAD .. text, nil, nil, setup),
    line + select(2, HEAD:gsub("\n", "")), ...)
end

test("a trace has the sizes of the model on the devices, and 20 batches for the profile", function()
  local spec = runs("").trace
  expect.equal({ spec.ranks, spec.experts, spec.k, spec.tokens, spec.layers },
    { 16, 16, 1, 8 * 512, 12 })
  expect.equal({ spec.path, spec.profile_batches, spec.batches, spec.step }, { 6, 20, 50, 1 })
  expect.equal(spec.routing.handle, "handle")
end)

test("phases take the paper's times, or place_ms and the links, or what is given", function()
  local swaps = runs("moe.lina.inference { trace = trace, cluster = cluster }").plan.cost.swaps
  expect.equal(swaps,
    { place_ms = 6.2, resume_ms = 1.45, rerun_ms = 6.2, host_bytes_per_s = 25e9 })
  swaps = runs([[moe.lina.inference { trace = trace, cluster = cluster, schedule = "closed_form",
    rerun_ms = 3 }]]).plan.cost.swaps
  expect.equal({ swaps.place_ms, swaps.resume_ms == nil, swaps.rerun_ms }, { 0.2, true, 3 })
end)

test("a system is a plan of the forward: with its pass, or with real rows alone", function()
  local function plan_of(more)
    return runs(("moe.lina.inference { trace = trace, cluster = cluster, %s }"):format(more)).plan
  end
  local function names(plan)
    local out = {}
    for i, stage in ipairs(plan.system.stages) do out[i] = stage.name end
    return table.concat(out, " ")
  end
  local plan = plan_of "cap = 3, normalise = true"
  expect.equal(names(plan), "lina_inference irregular_a2a used_rows")
  local o = plan.system.stages[1].options
  expect.equal({ o.path, o.cap, o.share, o.normalise, o.estimation, o.fine_tuning },
    { 6, 3, "even", true, true, true })
  expect.equal({ plan.inference, plan.ranks, plan.routing.handle }, { true, 16, "handle" })
  -- The fullest expert has half of a rank's tokens: eight times its share.
  expect.equal(math.floor(plan.model.capacity_factor * 1e6), 8e6)
  o = plan_of("system = 'no_estimation'").system.stages[1].options
  expect.equal({ o.estimation, o.fine_tuning }, { false, true })
  o = plan_of("system = 'no_fine_tuning'").system.stages[1].options
  expect.equal({ o.estimation, o.fine_tuning }, { true, false })
  expect.equal(names(plan_of "system = 'baseline'"), "irregular_a2a used_rows")
  expect.equal(plan_of("system = 'ideal'").routing, nil)
end)

test("a cluster's assumed constants may stand at an end of their bands, by name", function()
  local w = runs([[R = moe.lina.inference { trace = trace, cluster = cluster,
    ends = { ["cluster.nic.efficiency"] = "lo" } }]])
  expect.equal(w.plan.cluster.nic.bytes_per_s, 0.6 * 12.5e9)
  expect.equal(w.globals.R.assumed["cluster.nic.efficiency"].hi, 0.95)
  fails([[moe.lina.inference { trace = trace, cluster = cluster,
    ends = { ["cluster.nic.eficiency"] = "lo" } }]], 2, "cluster.nic.efficiency")
  fails([[moe.lina.inference { trace = trace, cluster = cluster,
    ends = { ["cluster.nic.efficiency"] = "middle" } }]], 2, "'lo' or 'hi'")
end)

test("a trace of other devices and an unknown system are refused", function()
  fails("moe.lina.inference { trace = trace, cluster = moe.cluster.lina { nodes = 2 } }", 1,
    "has 8 devices, but the trace was made for 16")
  fails("moe.lina.inference { trace = trace, cluster = cluster, system = 'linna' }", 1,
    "Did you mean 'lina'?")
end)

test("locality is of recorded choices or of a workload, not of both", function()
  local w = runs "moe.lina.locality { experts = 2, choices = { { 1 }, { 2 } } }"
  expect.equal(w.locality.top, 2)
  fails("moe.lina.locality { experts = 2 }", 1, "neither is given")
end)

test("devices are placed by popularity, with at most 4 experts each unless said", function()
  local spec = runs("moe.lina.place { popularity = { 1, 0.5 }, devices = 2 }").place
  expect.equal({ spec.cap, spec.devices, spec.share }, { 4, 2, "even" })
  fails("moe.lina.place { popularity = { 1, -1 }, devices = 2 }", 1, "popularity[2]: -1")
end)

test("token classes are a routing, with the recipe's seed", function()
  local w = runs [[
R = moe.lina.trace { model = model, devices = 16, routing = moe.lina.token_classes { stray = 0.1 } }
]]
  expect.equal({ w.classes.classes, w.classes.stray, w.classes.seed }, { 64, 0.1, 1 })
  expect.equal(w.globals.R.routing, "classes")
end)
