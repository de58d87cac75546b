-- Recipes that are wrong in one way; tests/bindings/wrong.lua has those that a training finds.
local expect = require "expect"
local test = require "test"

-- Rows: what follows the head on its line, the line of the error (without a number, the first one),
-- parts of the message.
local function all_fail(head, rows)
  for _, row in ipairs(rows) do
    local line = type(row[2]) == "number" and row[2]
    expect.fails(head .. row[1], line or 1, unpack(row, line and 3 or 2))
  end
end

local MOE = "local moe = require 'moe' "
local MODEL = MOE .. "local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, "
  .. "heads = 4, seq = 16, batch_per_device = 2, experts_per_device = 2 } "

test("fields that are not allowed, or not beside others, are refused at their line", function()
  all_fail(MOE, {
    { "moe.model.qwen3_30b_a3b 'config.json'",
      "model.qwen3_30b_a3b: 'config.json' is not allowed; give a table of the model's fields" },
    { "moe.merged({}, nil)", "moe.merged[2]: is missing" },
    { "moe.table 'x'", "moe.table: 'x' is not allowed; give a list" },
    { "moe.workload {}", "unknown workload 'a table'" },
    { "moe.workload 'zipf' { s = 0.1, max_over_mean = 3 }",
      "moe.workload.zipf.s: has no effect beside max_over_mean" },
    { "local a = moe.assumed { value = 1, lo = 1, hi = 2, why = 'a guess' } a.why = '\\255'\n"
      .. "moe.cluster.p4de { nodes = 2, a2a_base_us = a }", 2,
      ".why: was assigned after the assumed was made, so its value is not checked" },
    { "moe.collectives { cluster = moe.cluster.p4de { nodes = 2 },\nops = { { "
      .. "kind = 'all_to_all', bytes_per_pair = 1 },\n{ kind = 'all_reduce', bytes = -4 } } }", 3,
      "moe.collectives.ops[2].bytes: -4 is not allowed; give a number from 0 to 1e+18" },
    { "moe.collectives { cluster = moe.cluster.p4de { nodes = 2, nics_per_node = 3 }, ops = { { "
      .. "kind = 'all_to_all', bytes_per_pair = 1 } } }",
      "cluster.nics_per_node = 3: must divide devices_per_node = 8 or be a multiple of it" },
  })
end)

test("options of runs that have no meaning are refused at their line", function()
  all_fail(MODEL, {
    { "moe.train { model = m, ranks = 2, checkpoint_every = 5 }",
      "moe.train.checkpoint_every: writes nothing without checkpoint_to" },
    { "moe.infer { model = m, ranks = 2, system = moe.system 'x' { moe.pass.dw_schedule {} } }",
      "system 'x' has the pass 'dw_schedule', which decides by times of training steps" },
    { "moe.layouts { model = m, cluster = moe.cluster.p4de { nodes = 2 }, axes = { tp = 2 } }",
      "moe.layouts.axes.tp: 2 is not allowed; give a list" },
    { "moe.gap { model = m, cluster = moe.cluster.p4de { nodes = 2 }, measured_ms = 1,\n"
      .. "system = moe.system 'raf' {}, detail = 'turns' }", 2, "moe.gap: unknown key 'detail'" },
  })
end)

test("experiments that are run twice, or of one name are refused at their line", function()
  local e = "moe.experiment { name = 'same', model = m, "
    .. "cluster = moe.cluster.p4de { nodes = 2 }, systems = { moe.system 'raf' {} } }"
  all_fail(MODEL, {
    { "local a = " .. e .. " moe.run(a)\nreturn a",
      "experiment 'same': is run a second time; moe.run runs it, and so does returning it" },
    { ("\nmoe.run(%s)"):format(e):rep(2), 3,
      "experiment.name: 'same' is the name of another experiment that this recipe runs (line 2)" },
    { "local a = {} a[1] = a return moe.experiment { name = 'x',\nparams = { a = a }, "
      .. "case = function() return { model = m, systems = { moe.system 'raf' {} } } end }", 2,
      "experiment.params.a", "is a table in 17 others, or in itself; at most 16 are allowed" },
    { "return moe.experiment { name = 'x', model = m,\nsystems = { setmetatable({ name = 'raf', "
      .. "passes = {} }, getmetatable(moe.system 'raf' {})) } }", 2,
      "experiment.systems[1]: a table is not allowed; give a system" },
    { "return moe.experiment { name = 'x', over = {\nsystem = { 1, 2 } }, case = function() "
      .. "return { model = m, systems = { moe.system 'raf' {} } } end }", 2,
      "experiment.over.system: is the name of a field of runs" },
  })
end)

test("what only a plan shows to be wrong is refused by the engine", function()
  local plan = MOE .. "local function plan(stages, gate) return moe.plan { cluster = "
    .. "moe.cluster.p4de { nodes = 2 }, system = moe.system 'mine' (stages), model = "
    .. "moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32, "
    .. "batch_per_device = 2, experts_per_device = 2, gate = gate } } end\n"
  expect.plans(plan .. "plan { moe.pass.fastermoe_pipeline {}, moe.pass.hierarchical_a2a {} }",
    "op 'b1.moe.a2a_1.p0' is cut into rounds by fastermoe_pipeline",
    "leave one of the two stages out")
  local gate = plan .. "plan({ moe.pass.serial {} }, moe.policy.gate { name = 'g', "
    .. "scope = 'token', weight = 'prob', k = 1, route = print, bound = function() %s end } {})"
  expect.plans(gate:format "return 2147483647",
    "gate 'g': bound() returned 2147483647 slots for each of",
    "at most 2147483647 slots in all are allowed")
  expect.plans(gate:format "", "gate 'g': bound() returned nil; return a whole number")
  expect.plans(MOE .. [[return moe.experiment { name = "x", over = { seq = { 16, 2 } },
    case = function(p) return { cluster = moe.cluster.p3dn { nodes = 1 }, systems = {
      moe.system "raf" {}, moe.system "parts" { moe.pass.capacity_pipeline { degree = 2 } } },
      model = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = p.seq, vocab = 256,
        batch_per_device = 1, experts_per_device = 1 } } end }]],
    "recipe.lua:3: ", "a capacity of 1, so 1 to 1 is allowed (system 'parts', seq = 2)")
end)
