-- moe.train and moe.plan, called from scripts.
local expect = require "expect"
local world = require "world"
local test = require "test"

local function train(fields)
  return expect.HEAD .. "T = moe.train { model = m, " .. fields .. " }"
end

local function options_of(fields, args)
  return expect.runs(train(fields), args).executed[1].options
end

test("a run's options reach the executor, with their defaults", function()
  local o = options_of("ranks = 2, steps = 4, tokens = 'reference', precision = 'f64', "
    .. "link = { bytes_per_s = 1e8 }")
  expect.equal(o.data, { kind = "reference" })
  expect.equal({ o.executor, o.steps, o.precision, o.emulate_link, o.timeout_s },
    { "cpu", 4, "f64", true, 60 })
  expect.equal(options_of("").data, { kind = "text", seed = 1,
    path = require("moe.core").default_corpus() })
  expect.equal(options_of("text = '/any/where'").data.path, "/any/where")
end)

test("fields of moe.train are checked", function()
  expect.fails(train "stepz = 3", 2, "moe.train: unknown key 'stepz'")
  expect.fails(train "link = { latency_us = 3 }", 2, "moe.train.link.bytes_per_s: is missing")
  expect.fails(train "optimizer = { name = 'adam' }", 2, "optimizer.name: 'adam' is not allowed")
  expect.fails(train "text = 'a', tokens = 'reference'", 2, "is not used with tokens = 'reference'")
  expect.fails(train "executor = 'gpu'", 2, "moe.train.executor: 'gpu' is not allowed")
  expect.fails('local moe = require "moe"\nmoe.train { model = { layers = 2 } }', 2,
    "moe.train.model: a table is not allowed; give a model, for example moe.model.gpt2_moe {...}")
end)

test("each executor computes in its own precisions, which is said before anything is planned",
  function()
    local runs = expect.runs(train "executor = 'cuda', precision = 'bf16'").executed[1]
    expect.equal({ runs.options.precision, runs.spec.element_bytes, runs.spec.model.dtype },
      { "bf16", 0, "bf16" })
    -- Whatever a model says of its types, f32 stores and sends every number in four bytes.
    for _, dtype in ipairs { "f16", "bf16", "f32" } do
      local source = train(""):gsub("gpt2_moe {", ("gpt2_moe { dtype = '%s',"):format(dtype))
      local spec = expect.runs(source).executed[1].spec
      expect.equal({ spec.element_bytes, spec.model.dtype }, { 4, "f32" })
    end
    expect.fails(train "precision = 'f16'", 2, "moe.train.precision: 'f16' is not allowed")
    local head = expect.HEAD .. [[
local s = { moe.system "raf" {} }
local c = moe.cluster.p4de { nodes = 2 }
]]
    local entry = 'return moe.experiment { name = "x", model = m, systems = s, run = { { "cpu", '
      .. 'precision = "bf16" } } }'
    for _, case in ipairs {
      { train "precision = 'bf16'", 2, 0, "moe.train.precision: 'bf16' is only possible on cuda; "
        .. "cpu computes in f32 or f64" },
      { train "executor = 'cuda', precision = 'f64'", 2, 0,
        "moe.train.precision: 'f64' is only possible on cpu; cuda computes in f32 or bf16" },
      { expect.HEAD .. "moe.infer { model = m, precision = 'bf16' }", 2, 0,
        "moe.infer.precision: 'bf16' is only possible on cuda" },
      { head .. entry, 4, 0, "experiment.run[1].precision: 'bf16' is only possible on cuda" },
      { head .. 'local p = moe.plan { model = m, cluster = c, system = s[1] }\n'
        .. 'p:run("cpu", { precision = "bf16" })', 5, 1,
        "moe.plan.run.precision: 'bf16' is only possible on cuda" } } do
      expect.equal(#expect.fails(case[1], case[2], case[4]).plans, case[3])
    end
  end)

test("kernels of attention are said for bf16 on the executor cuda, and reach its plan", function()
  local function own(text) return expect.runs(text).executed[1].spec.own_attention end
  local head = expect.HEAD .. [[
local s = { moe.system "raf" {} }
local c = moe.cluster.p4de { nodes = 2 }
]]
  local function entry(executor)
    return head .. ('return moe.experiment { name = "x", model = m, cluster = c, systems = s, '
      .. 'run = { { "%s", ranks = 2, attention = "own" } } }'):format(executor)
  end
  local function planned(executor)
    return head .. ('local p = moe.plan { model = m, cluster = c, system = s[1] }\n'
      .. 'p:run("%s", { attention = "own" })'):format(executor)
  end
  expect.equal(own(train "executor = 'cuda', precision = 'bf16', attention = 'own'"), true)
  expect.equal(own(train "executor = 'cuda', precision = 'bf16', attention = 'cudnn'"), false)
  expect.equal(own(train "executor = 'cuda', attention = 'own'"), true)
  expect.equal(own(train "executor = 'cuda'"), false)
  expect.equal(own(entry "cuda"), true)
  expect.equal(expect.runs(entry "cuda").results.runs[1].attention, "own")
  expect.equal(own(planned "cuda"), true)
  expect.fails(entry "cpu", 4, "experiment.run[1].attention: 'own' is only for")
  expect.fails(planned "cpu", 5, "moe.plan.run.attention: 'own' is only for")
  expect.fails(train "executor = 'cuda', attention = 'cudnn'", 2,
    "moe.train.attention: 'cudnn' is only for precision 'bf16', and here it is 'f32'")
  expect.fails(train "attention = 'own'", 2,
    "moe.train.attention: 'own' is only for the executor cuda, and here it is cpu")
  expect.fails(train "executor = 'cuda', attention = 'flash'", 2,
    "moe.train.attention: 'flash' is not allowed; give one of: cudnn, own")
end)

test("plans' graphs are edited for the executor cuda, and elsewhere only where that is asked for",
  function()
    local function edits(text) return expect.runs(text).executed[1].spec.edits end
    local head = expect.HEAD .. [[
local s = { moe.system "raf" {} }
local c = moe.cluster.p4de { nodes = 2 }
]]
    local function entry(text)
      return head .. ('return moe.experiment { name = "x", model = m, cluster = c, systems = s, '
        .. 'run = { { %s } } }'):format(text)
    end
    local function planned(executor, edited, given)
      return head .. ('local p = moe.plan { model = m, cluster = c, system = s[1], %s }\n'
        .. 'p:run("%s", { %s })'):format(edited, executor, given)
    end
    local all = { fuse_gelu = true, pad_logits = true, round_once = true }
    local bf16 = "precision = 'bf16'"
    expect.equal(edits(train("executor = 'cuda', " .. bf16)), all)
    expect.equal(edits(train "executor = 'cuda'"),
      { fuse_gelu = true, pad_logits = false, round_once = false })
    expect.equal(edits(train("executor = 'cuda', edits = { fuse_gelu = false }, " .. bf16)),
      { fuse_gelu = false, pad_logits = true, round_once = true })
    expect.equal(edits(train ""), nil)
    local ran = expect.runs(entry('"cuda", ranks = 2, edits = { round_once = false }, ' .. bf16))
    local unrounded = { fuse_gelu = true, pad_logits = true, round_once = false }
    expect.equal(ran.executed[1].spec.edits, unrounded)
    expect.equal(ran.results.runs[1].edits, unrounded)
    local simulated = expect.runs(entry '"simulate", edits = { fuse_gelu = true }')
    expect.equal(simulated.plans[1].edits, { fuse_gelu = true })
    expect.equal(simulated.results.runs[1].edits, { fuse_gelu = true })
    expect.equal(expect.runs(entry '"simulate"').plans[1].edits, nil)
    local w = expect.runs(planned("cpu", "edits = { fuse_gelu = true }", ""))
    expect.equal({ w.plans[1].edits, w.executed[1].spec.edits == nil },
      { { fuse_gelu = true }, true })
    expect.equal(edits(planned("cuda", "", bf16)), all)
    expect.fails(train "edits = { fuse_gelu = false }", 2, "moe.train.edits.fuse_gelu: is only for "
      .. "the executor cuda, and here it is cpu; omit the field")
    expect.fails(train "executor = 'cuda', edits = { round_once = true }", 2,
      "edits.round_once: is only for precision 'bf16', and moe.train.precision is 'f32'")
    expect.fails(train "executor = 'cuda', edits = { round = true }", 2,
      "moe.train.edits: unknown key 'round'. Did you mean 'round_once'?")
    expect.fails(entry '"cpu", edits = { round_once = true }', 4,
      "experiment.run[1].edits.round_once: is only for the executor cuda")
  end)

test("how a run uses a GPU reaches the executor and the profiler, with its defaults", function()
  local function processes(w, core) core.processes = 2 end
  local function run(fields, setup)
    return expect.runs(train("executor = 'cuda', ranks = 2, " .. fields), nil, nil, setup)
      .executed[1]
  end
  local plain = run ""
  expect.equal({ plain.options.urgent_comm, plain.options.nccl == nil,
    plain.options.link_blocks == nil, plain.spec.cost.blocks == nil }, { true, true, true, true })
  local link = run "comm_priority = 'normal', link = { bytes_per_s = 1e9 }"
  expect.equal({ link.options.urgent_comm, link.options.link_blocks }, { false, 8 })
  expect.equal(run "link = { bytes_per_s = 1e9, blocks = 16 }".options.link_blocks, 16)
  local nccl = run("nccl = { channels = 4, channels_per_net_peer = 2 }, comm_priority = 'high'",
    processes)
  expect.equal({ nccl.options.urgent_comm, nccl.options.nccl },
    { true, { channels = 4, channels_per_net_peer = 2 } })
end)

test("what only a GPU, or only NCCL, can be told is refused elsewhere, and so are odd numbers",
  function()
    for field, key in pairs { ["nccl = { channels = 4 }"] = "nccl",
      ["comm_priority = 'high'"] = "comm_priority",
      ["link = { bytes_per_s = 1e9, blocks = 8 }"] = "link.blocks" } do
      expect.fails(train(field), 2, "moe.train." .. key .. ": is only for the executor cuda")
      expect.fails(expect.HEAD .. 'return moe.experiment { name = "x", model = m, '
        .. 'systems = { moe.system "raf" {} }, run = { { "cpu", ' .. field .. " } } }", 2,
        "experiment.run[1]." .. key .. ": is only for the executor cuda")
    end
    local cuda = "executor = 'cuda', ranks = 2, "
    expect.fails(train(cuda .. "nccl = { channels = 4 }"), 2,
      "moe.train.nccl: NCCL is only used between processes")
    expect.fails(train(cuda .. "nccl = { channels = 6 }"), 2,
      "moe.train.nccl.channels: 6 is not a power of two")
    expect.fails(train(cuda .. "nccl = { channels = 64 }"), 2,
      "moe.train.nccl.channels: 64 is not allowed; give an integer from 1 to 32")
    expect.fails(train(cuda .. "nccl = { chanels = 4 }"), 2, "Did you mean 'channels'?")
    expect.fails(train(cuda .. "nccl = { channels_per_net_peer = 3 }"), 2,
      "channels_per_net_peer: 3 is not a power of two")
    expect.fails(train(cuda .. "comm_priority = 'low'"), 2,
      "moe.train.comm_priority: 'low' is not allowed; give one of: high, normal")
    expect.fails(train(cuda .. "link = { bytes_per_s = 1e9, blocks = 12 }"), 2,
      "moe.train.link.blocks: 12 is not a power of two")
    expect.fails(expect.HEAD .. "moe.pipemoe.fit { model = m, ranks = 2, "
      .. "link = { bytes_per_s = 1e9, blocks = 8 } }", 2, "fit.link.blocks: is only for")
  end)

test("what transfers do to compute is profiled by the blocks that the run's transfers have",
  function()
    local function blocks(entry, setup)
      local w = expect.runs(expect.HEAD .. 'return moe.experiment { name = "x", model = m, '
        .. 'systems = { moe.system "raf" {} }, run = { { ' .. entry .. ", ranks = 2 } } }", nil,
        nil, setup)
      return w.executed[1].spec.cost.blocks
    end
    expect.equal(blocks '"cpu", link = { bytes_per_s = 1e9 }', nil)
    expect.equal(blocks '"cuda", link = { bytes_per_s = 1e9 }', 8)
    expect.equal(blocks '"cuda", link = { bytes_per_s = 1e9, blocks = 4 }', 4)
    expect.equal(blocks '"cuda"', nil)
    expect.equal(blocks('"cuda", nccl = { channels = 16 }',
      function(_, core) core.processes = 2 end), 16)
  end)

test("an optimizer takes its own fields, with its own defaults", function()
  local function optimizer(fields)
    return expect.runs(train(("optimizer = { %s }"):format(fields))).executed[1].spec.optimizer
  end
  expect.equal(optimizer "", { name = "sgd", lr = 0.1, momentum = 0.9, clip_norm = 0 })
  expect.equal(optimizer "name = 'adamw', beta2 = 0.95",
    { name = "adamw", lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01,
      clip_norm = 0 })
  expect.fails(train "optimizer = { name = 'adamw', momentum = 0.9 }", 2,
    "moe.train.optimizer.momentum: is not a field of adamw, which has: beta1, beta2, clip_norm")
  expect.fails(train "optimizer = { weight_decay = 0.1 }", 2,
    "weight_decay: is not a field of sgd, which has: clip_norm, lr, momentum")
  expect.fails(train "optimizer = { name = 'adamw', beta2 = 1 }", 2,
    "optimizer.beta2: 1 is not allowed; give a number from 0 to")
  expect.fails(train "optimizer = { name = 'adamw', eps = 0 }", 2, "eps: 0 is not allowed")
end)

test("a vocabulary too small for bytes is refused where text is read", function()
  local text = expect.HEAD:gsub("vocab = 256", "vocab = 100") .. "moe.train { model = m%s }"
  expect.fails(text:format "", 2, "model.vocab: 100 is too small")
  expect.runs(text:format ", tokens = 'reference'")
end)

test("checkpoints are in the output folder; --trust reads others", function()
  local o = options_of "checkpoint_to = 'a.ckpt', resume_from = 'sub/b.ckpt'"
  expect.equal({ o.checkpoint_to, o.resume_from }, { "a.ckpt", "out/sub/b.ckpt" })
  for _, name in ipairs { "/tmp/a", "../a", "b/../../a", ".." } do
    for _, field in ipairs { "checkpoint_to", "resume_from" } do
      expect.fails(train(("steps = 1,\n%s = '%s'"):format(field, name)), 3,
        ("moe.train.%s: '%s' is outside the output folder"):format(field, name))
    end
  end
  for _, field in ipairs { "checkpoint_to", "resume_from", "record" } do
    expect.fails(train(("steps = 1,\n%s = ''"):format(field)), 3,
      ("moe.train.%s: '' is not allowed; give the name of a file"):format(field))
  end
  o = options_of("resume_from = '/tmp/b'", { trust = true })
  expect.equal(o.resume_from, "/tmp/b")
  expect.failed(world.run(train "checkpoint_to = '/tmp/a'", { trust = true }), 2,
    "moe.train.checkpoint_to: '/tmp/a' is outside the output folder; give a name in that folder")
end)

test("op times are measured only where the plan needs them", function()
  local function cost(system)
    return expect.runs(train("system = " .. system)).plans[1].cost.kind
  end
  expect.equal(cost "moe.system 'raf' {}", "none")
  expect.equal(cost "moe.system 'lancet' {}", "profile")
  expect.equal(cost "moe.system 'tutel' {}", "profile")
  expect.equal(cost "moe.system 'x' { moe.policy.schedule { name = 'y', apply = print } {} }",
    "profile")
  -- Rates of a machine that does not exist would decide what moves.
  for _, pass in ipairs { "eplb { horizon = 10 }", "swap { horizon = 10 }",
    "top_k { split = true }", "prophet { shadows = 2 }" } do
    expect.equal(cost("moe.system 'x' { moe.pass." .. pass .. " }"), "profile")
  end
  for _, pass in ipairs { "eplb {}", "swap {}", "top_k {}", "placed {}" } do
    expect.equal(cost("moe.system 'x' { moe.pass." .. pass .. " }"), "none")
  end
end)

test("a plan answers what it is, and runs on CPU ranks", function()
  local w = expect.runs(expect.HEAD .. [[
local p = moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "tutel" {} }
local r = p:run("cpu", { steps = 3, tokens = "reference" })
S = { p.choice, p:order "compute", p:text(), p:explain().text:match "a  %[s%].*",
  p:memory().peak_bytes,
  p:simulate().iteration_ms, #r.losses }
]])
  expect.equal(w.globals.S, { "degree=4", { "a", "b" }, "# Numbers: megatron_bf16, "
    .. "2 bytes per parameter, 4 per gradient, 8 of sgd's states and master copy per parameter\n"
    .. "graph gpt2_moe",
    "a  [s]  because", 2 ^ 30, 90, 3 })
  local spec = w.executed[1].spec
  expect.equal({ spec.ranks, spec.model.dtype, spec.element_bytes }, { 16, "f32", 4 })
  expect.equal(spec.system.stages[1].options, { degree = 4 })
end)

test("a plan tells what is exposed, why, and what would help", function()
  local w = expect.runs(expect.HEAD .. [[
local e = moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "tutel" {} }:explain()
S = tostring(e)
]])
  for _, part in ipairs { "5.000 ms are exposed",
    "below 80.000 ms (the critical path), which is 10.000 ms less",
    "data edge", "1. 2.000 ms per step, by simulation: c. 'a' is exposed because 'b' needs it",
    "t: no MoE layer" } do
    assert(w.globals.S:find(part, 1, true), w.globals.S)
  end
end)

test("a plan is simulated once for what it tells, and once more for steps beyond", function()
  local head = expect.HEAD:gsub("experts_per_device = 2", "%0, routing = moe.workload 'zipf' {}")
    .. [[
local p = moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "raf" {} }
p:simulate() p:explain() p:spans() p:spans { all_ranks = true }
]]
  local w = expect.runs(head)
  expect.equal({ #w.simulated, #w.shown }, { 1, 3 })
  for _, timelines in ipairs(w.shown) do assert(timelines == w.simulated[1]) end
  w = expect.runs(head .. "p:simulate { steps = 5 } for i = 1, 5 do p:spans { step = i } "
    .. "p:explain { step = i } end")
  expect.equal(#w.simulated, 3)
  assert(w.shown[#w.shown] == w.simulated[3])
  expect.equal(w.simulated[3].options, { keep = "all", steps = 5 })
  w = expect.runs(head:gsub("routing = moe.workload 'zipf' {}", "") .. "p:spans { step = 9 }")
  expect.equal(#w.simulated, 1)  -- without a routing model one step stands for all
end)

test("a plan runs on what there is, with options that there are", function()
  local head = expect.HEAD .. [[
local p = moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "raf" {} }
]]
  expect.fails(head .. 'p:run("gpu")', 4, "'gpu' is not allowed")
  expect.fails(head .. 'p:run("cpu", { stepz = 1 })', 4, "moe.plan.run: unknown key 'stepz'")
end)

test("checking a script plans what it would run first, and stops there", function()
  for _, call in ipairs { "moe.train { model = m, tokens = 'reference' }", [[
moe.run(moe.experiment { name = "x", model = m, systems = { moe.system "raf" {} },
  cluster = moe.cluster.p4de { nodes = 2 } })]] } do
    local w = expect.runs(expect.HEAD .. call .. "\nAFTER = true", {}, "check")
    expect.equal({ #w.plans, #w.executed, w.globals.AFTER or false }, { 1, 0, false })
    expect.equal(w.output, "ok up to the first call in the recipe that runs something")
  end
  expect.failed(world.run(expect.HEAD .. "\nmoe.train { stepz = 1 }", {}, "check"), 3, "'stepz'")
end)

test("an error in the recipe's own code keeps its line and traceback", function()
  local w = world.run(expect.HEAD .. [[
return moe.experiment { name = "x", case = function()
  local t = nil
  return t.x
end }
]])
  expect.equal(w.error.kind, "lua")
  assert(w.message:find("recipe.lua:4: attempt to index", 1, true), w.message)
  assert(w.error.traceback:find("recipe.lua:4", 1, true), w.error.traceback)
end)
