-- moe.infer and moe.lina.popularity: what is checked, and what the core gets.
local expect = require "expect"
local test = require "test"
local world = require "world"

local function setup(w, core)
  core.lina_popularity = function(spec)
    w.popularity = spec
    return "profile", 7
  end
  local plan = core.plan
  core.plan = function(spec)
    local made = plan(spec)
    local inner = made.run
    made.run = function(self, options)
      local result = inner(self, options)
      result.inference = { digest = "predictions", accuracy = { 0.5 }, answer_ms = { 1 },
        phase_2 = { false, true }, placed_again = { { false, true }, { false, false } } }
      return result
    end
    return made
  end
end

local HEAD = expect.HEAD .. [[
local p = moe.lina.popularity { routing = "out/t.trace", path = 1 }
]]

local function runs(text) return expect.runs(HEAD .. text, nil, nil, setup) end
local function fails(text, line, ...)
  expect.failed(world.run(HEAD .. text, nil, nil, setup),
    line + select(2, HEAD:gsub("\n", "")), ...)
end

test("a forward alone runs over batches that training does not see", function()
  local w = runs [[R = moe.infer { model = m, batches = 3, first_batch = 5, ranks = 2,
    parameters = "a.ckpt", record = "r.trace" }]]
  local run = w.executed[1]
  expect.equal({ run.spec.inference, run.spec.ranks, run.spec.system.name },
    { true, 2, "raf_rows" })
  local o = run.options
  expect.equal({ o.steps, o.first_step, o.data.held_out, o.parameters_from, o.record },
    { 3, 4, true, "out/a.ckpt", "r.trace" })
  expect.equal(o.checkpoint_to, nil)
  expect.equal({ w.globals.R.digest, w.globals.R.parameters_digest },
    { "predictions", "0011223344556677" })
  expect.equal(#w.globals.R.losses, 3)
  expect.equal(w.globals.R.again, { placed = 1, of = 2 })
end)

test("a forward runs on a GPU, in its precisions", function()
  local w = runs [[moe.infer { model = m, executor = "cuda", precision = "bf16",
    attention = "own", edits = { fuse_gelu = false } }]]
  local run = w.executed[1]
  expect.equal({ run.options.executor, run.options.precision, run.spec.model.dtype,
    run.spec.own_attention }, { "cuda", "bf16", "bf16", true })
  expect.equal(run.spec.edits, { fuse_gelu = false, pad_logits = true, round_once = true })
  expect.equal(runs [[moe.infer { model = m }]].executed[1].options.executor, "cpu")
  fails([[moe.infer { model = m, executor = "cuda", precision = "f64" }]], 1,
    "moe.infer.precision: 'f64' is only possible on cpu; cuda computes in f32 or bf16")
  fails([[moe.infer { model = m, precision = "bf16" }]], 1,
    "moe.infer.precision: 'bf16' is only possible on cuda")
  fails([[moe.infer { model = m, executor = "gpu" }]], 1, "moe.infer.executor: 'gpu'")
  fails([[moe.infer { model = m, attention = "own" }]], 1,
    "moe.infer.attention: 'own' is only for the executor cuda")
end)

test("lina_inference takes a profile of a recorded trace, by its file or as a routing", function()
  local w = runs [[moe.infer { popularity = p, model = m,
    system = moe.system "lina_inference" {} }]]
  expect.equal(w.executed[1].options.popularity, "profile")
  local p = w.popularity
  expect.equal({ p.routing.file, p.routing.handle, p.path, p.keep == nil, p.batches,
    p.step }, { "out/t.trace", "replay", 1, true, 1, 1 })
  expect.equal({ p.ranks, p.tokens, p.experts, p.k, p.layers }, { 1, 1, 2, 1, 2 })
  p = runs([[moe.lina.popularity { routing = moe.trace "other.trace" {}, batches = 4,
    step = 2 }]]).popularity
  expect.equal({ p.routing.file, p.path, p.batches, p.step }, { "other.trace", 3, 4, 2 })
end)

test("the profile of a workload takes the sizes that a trace has of its own", function()
  local sizes = "routing = moe.workload 'zipf' {}, ranks = 2, tokens = 3, experts = 4, k = 1, "
  local w = runs(("P = moe.lina.popularity { %s layers = 5, batches = 6 }"):format(sizes))
  local p = w.popularity
  expect.equal({ p.routing.handle, p.ranks, p.tokens, p.experts, p.k, p.layers, p.batches },
    { "handle", 2, 3, 4, 1, 5, 6 })
  expect.equal({ w.globals.P.paths, w.globals.P.layers }, { 7, 5 })
  fails(("moe.lina.popularity { %s batches = 6 }"):format(sizes), 1,
    "moe.lina.popularity.layers: is missing; only a trace has a value of its own")
  fails("moe.lina.popularity { routing = m }", 1, "popularity.routing", "or a recorded trace")
end)

test("a profile stands where something is estimated, and there alone", function()
  fails([[moe.infer { model = m, system = moe.system "lina_inference" {} }]], 1,
    "moe.infer.popularity: is missing; 'lina_inference'")
  fails([[moe.infer { model = m, system = moe.system "lina_no_fine_tuning" {} }]], 1,
    "moe.infer.popularity: is missing")
  fails([[moe.infer { model = m, system = moe.system "lina_no_estimation" {},
    popularity = p }]], 2, "'lina_no_estimation' makes no estimates")
  fails([[moe.infer { model = m, popularity = "p" }]], 1, "moe.lina.popularity")
  runs [[moe.infer { model = m, system = moe.system "lina_no_estimation" {} }]]
end)

test("systems of training are refused by name", function()
  fails([[moe.infer { model = m, system = moe.system "lancet" {} }]], 1, "'lancet'", "times")
  fails([[moe.infer { model = m, system = moe.system "s" { moe.pass.swap {} } }]], 1, "'swap'",
    "for the next training step")
  fails([[moe.infer { model = m, steps = 3 }]], 1, "unknown key 'steps'")
  fails([[moe.infer { model = m, first_batch = 0 }]], 1, "moe.infer.first_batch: 0")
  fails([[moe.infer { model = m, parameters = "../a" }]], 1, "moe.infer.parameters")
  fails([[moe.infer { model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4,
    seq = 16, batch_per_device = 2, experts = 2, gate = "top_k", k = 1,
    bias_balance = { rate = 0.1 } } }]], 1, "bias_balance")
end)

test("a simulation of a plan that no device can hold says so", function()
  local w = expect.runs(HEAD .. [[
local function simulated() return moe.infer { model = m, executor = "simulate",
  cluster = moe.cluster.p4de { nodes = 1 } } end
local fits = simulated()
LARGE = true
local r = simulated()
S = { fits.oom == nil, r.oom, r.misfit, r.peak_bytes }
]], nil, nil, function(w, core)
    setup(w, core)
    w.peak_bytes = function() return (w.globals.LARGE and 2 ^ 10 or 1) * 2 ^ 30 end
  end)
  local why = "1024.0 GiB do not fit in 79.1 GiB: parameters 1024.0 GiB"
  expect.equal(w.globals.S, { true, true, why, 2 ^ 40 })
  expect.equal(w.warned, { "moe.infer: OOM: " .. why })
end)

test("a simulation names padded rows as a table of runs does", function()
  local w = expect.runs(HEAD .. [[R = moe.infer { model = m, executor = "simulate",
  cluster = moe.cluster.p4de { nodes = 1 } }]], nil, nil, function(w, core)
    setup(w, core)
    w.padded_rows = function() return "send" end
  end)
  local line = w.globals.R.notes[1]
  assert(line:find("Padded rows: raf_rows: send a slot for every token", 1, true), line)
  assert(line:find("1.25 times the rows in use", 1, true), line)
  expect.equal(w.warned, { "moe.infer: " .. line })
end)

test("a simulation takes a cluster, and nothing that only real ranks have a use for", function()
  local w = runs [[R = moe.infer { executor = "simulate", batches = 3, first_batch = 2,
    model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 16, heads = 2, seq = 8,
      batch_per_device = 2, experts = 8, gate = "switch", routing = moe.workload "zipf" {} },
    cluster = moe.cluster.p4de { nodes = 1 }, popularity = p, swaps = { place_ms = 6.2 },
    system = moe.system "own" { moe.pass.lina_inference { path = 1 } } }]]
  local run = w.executed[1]
  expect.equal({ run.spec.inference, run.spec.ranks, run.spec.cost.kind }, { true, 8, "roofline" })
  expect.equal({ run.options.executor, run.options.steps, run.options.first_step,
    run.options.popularity }, { "simulate", 3, 1, "profile" })
  expect.equal(run.spec.cost.swaps, { place_ms = 6.2 })
  expect.equal({ w.globals.R.digest, w.globals.R.losses }, {})
  expect.equal(w.globals.R.answer_ms, { 1 })
  fails([[moe.infer { model = m, swaps = {} }]], 1,
    "moe.infer.swaps: is only used with executor = 'simulate'; here it is 'cpu'")
  fails([[moe.infer { model = m, executor = "simulate" }]], 1, "moe.infer.cluster: is missing")
  fails([[moe.infer { model = m, executor = "simulate", cluster = moe.cluster.p4de { nodes = 1 },
    system = moe.system "lina_no_estimation" {} }]], 1, "moe.infer.model.routing: is missing")
  fails([[moe.infer { model = m, cluster = moe.cluster.p4de { nodes = 1 } }]], 1,
    "moe.infer.cluster: is only used with executor = 'simulate'; here it is 'cpu'")
  fails([[moe.infer { model = m, executor = "simulate", record = "r.trace",
    cluster = moe.cluster.p4de { nodes = 1 } }]], 1,
    "moe.infer.record: is not used by a simulation")
end)
