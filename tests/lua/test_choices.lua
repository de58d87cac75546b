-- Systems that are chosen: moe.best, moe.fallback, a system of systems; and plans beyond memory.
local expect = require "expect"
local test = require "test"
local world = require "world"

local GIB = 2 ^ 30

local function recipe(systems, more)
  return expect.HEAD .. [[
local function parts(p, more) return moe.fallback(moe.pass.partition, { max_parts = p }) end
R = moe.run(moe.experiment { name = "x", model = m,
  cluster = moe.cluster.p4de { nodes = 2, device = { memory_bytes = 4 * 2^30,
    gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e12 } },
  systems = { ]] .. systems .. " }," .. (more or "") .. " })\n"
end

-- Bytes of a plan: as many GiB as its partition may have parts, or 2 for each part along capacity.
local function bytes_of(spec)
  for _, s in ipairs(spec.system.stages) do
    if s.name == "partition" then return s.options.max_parts * GIB end
    if s.name == "capacity_pipeline" then return s.options.degree * 2 * GIB end
  end
  return GIB
end

local function run(systems, more)
  return expect.runs(recipe(systems, more), nil, "run", function(w) w.peak_bytes = bytes_of end)
end

local function labels(list)
  local out = {}
  for i, t in ipairs(list) do out[i] = t.choice end
  return out
end

test("a fall-back takes the first candidate that fits, and says why not those before", function()
  local r = run 'moe.system "s" { parts { 8, 4, 2 } }'.results.runs[1]
  expect.equal({ r.choice, r.oom or false, r.memory_bytes }, { "max_parts=4", false, 4 * GIB })
  expect.equal(labels(r.candidates), { "max_parts=8", "max_parts=4" })
  expect.equal({ r.candidates[1].oom, r.candidates[1].why },
    { true, "8.0 GiB do not fit in 4.0 GiB: parameters 8.0 GiB" })
  expect.equal(r.candidates[2].why, nil)
end)

test("a fall-back where nothing fits takes the last candidate, out of memory", function()
  local r = run 'moe.system "s" { parts { 16, 8 } }'.results.runs[1]
  expect.equal({ r.choice, r.oom }, { "max_parts=8", true })
  expect.equal(r.holders, { "big 1.0 GiB" })
  expect.equal(r.iteration_ms, 95)
end)

test("a fall-back where the memory is not known takes its first candidate", function()
  local w = expect.runs(recipe('moe.system "s" { parts { 8, 4 } }',
    'run = { { "cpu", ranks = 2, steps = 2 } }'), nil, "run",
    function(w) w.peak_bytes = bytes_of end)
  expect.equal(w.results.runs[1].choice, "max_parts=8")
end)

test("the best is the fastest of those that fit; of all, where none does", function()
  -- degree 4 is the fastest but takes 8 GiB
  local best = 'moe.system "s" { moe.best(moe.pass.capacity_pipeline, { degree = { %s } }) }'
  local r = run(best:format "1, 2, 4").results.runs[1]
  expect.equal({ r.choice, r.oom or false }, { "degree=2", false })
  r = run(best:format "8, 4").results.runs[1]
  expect.equal({ r.choice, r.oom }, { "degree=4", true })
end)

test("each alternative of a best falls back on its own", function()
  local w = run('moe.system "s" { '
    .. 'moe.best(moe.pass.dw_schedule, { if_slower = { "undo", "keep" } }), '
    .. "parts { 8, 4 } }")
  expect.equal(labels(w.results.runs[1].candidates), { "if_slower=undo max_parts=8",
    "if_slower=undo max_parts=4", "if_slower=keep max_parts=8", "if_slower=keep max_parts=4" })
  expect.equal(w.results.runs[1].choice, "if_slower=undo max_parts=4")
end)

test("a system of systems is the best of them and says which and what each took", function()
  local w = run [[moe.system "best_of" { of = { "raf", "tutel",
    moe.system "mine" { moe.pass.dw_schedule {}, all_reduce = { lane = "comm_reduce" } } } },
    moe.system "raf" {} ]]
  local r = w.results.runs[1]
  expect.equal({ r.system, r.choice, r.iteration_ms }, { "best_of", "mine", 80 })
  expect.equal(labels(r.candidates), { "raf", "tutel degree=1", "tutel degree=2", "tutel degree=4",
    "tutel degree=8", "mine" })
  expect.equal(r.candidates[1].iteration_ms, 100)
  expect.equal(r.stages[1].name, "dw_schedule")
  expect.equal(r.all_reduce.lane, "comm_reduce")
  assert(w.output:find("best_of (mine)", 1, true), w.output)
end)

test("a system of systems is executed as what it chose", function()
  local w = run('moe.system "any" { of = { "raf", "lancet_dw" } }',
    'run = { { "cpu", ranks = 2, steps = 2 } }')
  expect.equal(#w.executed, 1)
  expect.equal(w.executed[1].spec.system.choice, "lancet_dw")
  expect.equal(w.results.runs[1].choice, "lancet_dw")
  local t = expect.runs(expect.HEAD .. [[
T = moe.train { model = m, ranks = 2, system = moe.system "any" { of = { "raf", "lancet_dw" } } }
]])
  expect.equal(t.executed[1].spec.system.choice, "lancet_dw")
end)

test("a system's zero and recompute are in its plans, records and tables", function()
  local w = run([[moe.system "any" { of = { moe.system "raf" { zero = 1, recompute = "blocks" } } },
    moe.system "lancet_dw" {} ]], 'run = { "simulate", { "cpu", ranks = 2, steps = 2 } }')
  for _, stages in ipairs { w.executed[1].spec.system.stages, w.results.runs[1].stages } do
    expect.equal({ stages[1].name, stages[1].options.stage }, { "zero", 1 })
    expect.equal({ stages[#stages].name, stages[#stages].options.what }, { "recompute", "blocks" })
  end
  for _, stage in ipairs(w.results.runs[2].stages) do
    assert(stage.name ~= "zero" and stage.name ~= "recompute")
  end
  assert(w.output:find("zero=1 recompute=blocks)", 1, true), w.output)
  local head = 'local moe = require "moe"\nlocal s = moe.system "raf" '
  expect.fails(head .. "{ zero = 2 }", 2, "system 'raf'.zero: 2 is not allowed; give")
  expect.fails(head .. "{ recompute = 'layers' }", 2, "recompute", "'layers'", "none, blocks")
end)

test("systems of systems are checked", function()
  local head = 'local moe = require "moe"\nlocal s = moe.system "any" '
  expect.fails(head .. "{\n of = {} }", 2, "system 'any'.of: the list is empty")
  expect.fails(head .. "{ of = { 'rav' } }", 2, "of[1]: unknown system 'rav'. Did you mean 'raf'?")
  expect.fails(head .. "{ of = { 3 } }", 2, "of[1]: 3 is not allowed; give a system")
  expect.fails(head .. "{ of = 'raf' }", 2, "of: 'raf' is not allowed; give a list")
  expect.fails(head .. "{ of = { 'raf', 'raf' } }", 2, "'raf' is in the list twice")
  expect.fails(head .. "{ of = { 'raf' }, moe.pass.serial {} }", 2,
    "give `of` without other fields")
  expect.fails(head .. "{ of = { 'raf' }, all_reduce = {} }", 2, "give `of` without other fields")
  for _, field in ipairs { "zero = 1", "recompute = 'blocks'" } do
    expect.fails(head .. "{ of = { 'raf' }, " .. field .. " }", 2, "give `of` without other fields")
  end
end)

test("moe.fallback wants one option with a list", function()
  local head = 'local moe = require "moe"\nlocal b = moe.fallback('
  expect.fails(head .. "moe.pass.partition, { max_parts = 8 })", 2, "moe.fallback: give one option")
  expect.fails(head .. "moe.pass.partition {}, { max_parts = { 8 } })", 2,
    "the constructor of a pass")
  expect.fails(head .. "moe.pass.partition, { max_parts = { 8, 99 } })", 2, "from 1 to 64")
end)

test("Lancet's systems: what they hold, each falling back from 8 to 4 to 2 parts", function()
  local function stages(of)
    local names = {}
    for i, s in ipairs(of.stages) do names[i] = s.name end
    return names
  end
  local w = expect.runs(recipe [[moe.system "lancet" {}, moe.system "lancet_dw" {},
    moe.system "lancet_partition" {}, moe.system "raf_rows" {}, moe.system "raf_irregular" {} ]],
    nil, "run", function(w)
      w.peak_bytes = function(spec) return bytes_of(spec) + GIB end
    end)
  local r = w.results.runs
  expect.equal(stages(r[1]), { "irregular_a2a", "used_rows", "partition", "dw_schedule" })
  expect.equal(labels(r[1].candidates), { "max_parts=8", "max_parts=4", "max_parts=2" })
  expect.equal(r[1].stages[3].options.max_parts, 2)
  expect.equal(stages(r[2]), { "irregular_a2a", "used_rows", "dw_schedule" })
  expect.equal(stages(r[3]), { "irregular_a2a", "used_rows", "partition" })
  expect.equal(stages(r[4]), { "irregular_a2a", "used_rows", "serial" })
  expect.equal(stages(r[5]), { "irregular_a2a", "serial" })
  expect.equal(r[3].all_reduce, { lane = "comm", place = "after", bucket_bytes = 25 * 2 ^ 20 })
end)

local OOM = 'moe.system "raf" {}, moe.system "s" { parts { 8 } }, moe.system "lancet_dw" {}'

test("tables print OOM for the time of a plan beyond memory, and what holds it", function()
  local w = run(OOM)
  for _, part in ipairs { "s %(max_parts=8%) +OOM +OOM +%- +%- +%- +8.0\n",
    "lancet_dw +80.0 +1.25x",
    "OOM: gpt2_moe, s on p4de: 8.0 GiB do not fit in 4.0 GiB: parameters 8.0 GiB\n" } do
    assert(w.output:find(part), part .. "\n" .. w.output)
  end
  assert(not run('moe.system "raf" {}').output:find("OOM", 1, true))
end)

test("a table's head says the bytes of its numbers, each kind once", function()
  local w = expect.runs(expect.HEAD .. [[
return moe.experiment { name = "e", over = { dtype = { "f16", "bf16" }, o = { "sgd", "adamw" } },
  case = function(p) return { cluster = moe.cluster.p4de { nodes = 1 }, optimizer = { name = p.o },
    systems = { moe.system "raf" {}, moe.system "tutel" { zero = p.o == "adamw" and 1 or 0 } },
    model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
      batch_per_device = 2, experts_per_device = 2, dtype = p.dtype } } end } ]])
  local lines = {}
  for line in w.output:gmatch "Numbers: ([^\n]*)" do lines[#lines + 1] = line end
  local all = " (sharded where zero = 1)"
  expect.equal(lines, {
    "dtype f16, 2 bytes per parameter, 2 per gradient, 2 of sgd's states per parameter",
    "dtype f16, 2 bytes per parameter, 2 per gradient, 4 of adamw's states per parameter" .. all,
    "dtype bf16, 4 bytes per parameter, 4 per gradient, 4 of sgd's states per parameter",
    "dtype bf16, 4 bytes per parameter, 4 per gradient, 8 of adamw's states per parameter" .. all })
  w = expect.runs(expect.HEAD .. [[return moe.experiment { name = "e",
    over = { gpu = { "p3dn", "p4de" }, nodes = { 1, 2 } }, case = function(p) return { model = m,
      systems = { moe.system "raf" {} }, cluster = moe.cluster[p.gpu] { nodes = p.nodes } } end }]])
  assert(w.output:find("Numbers: dtype f16, [^\n]* %(gpu p3dn%)\nNumbers: megatron_bf16, [^\n]* "
    .. "%(gpu p4de%)"), w.output)
  w = expect.runs(expect.HEAD .. [[return moe.experiment { name = "e", model = m,
    systems = { moe.system "raf" {} },
    run = { { "cpu", ranks = 2, precision = "f64", steps = 2 } } } ]])
  assert(w.output:find("Numbers: dtype f64, 8 bytes per parameter, 8 per gradient, 8 of sgd's", 1,
    true), w.output)
end)

test("the head says what each pass makes of the states, and the same text once", function()
  local rows = {}
  for i, note in ipairs { "kept on the host", "kept on the host", "rounded" } do
    rows[i] = { name = "memory" .. i, kind = "step", inference = false, doc = "", reads = "nothing",
      needs = {}, gives = {}, options = {}, states_note = note }
  end
  local line
  world.with_rows("passes", rows, function()
    line = require("moe.results.number_bytes").line("f32", "sgd",
      { { name = "memory1" }, { name = "raf" }, { name = "memory2" }, { name = "memory3" } })
  end)
  assert(line:find("per parameter (kept on the host; rounded)", 1, true), line)
end)

test("a speed-up over a plan that no device can hold is none", function()
  local w = run('moe.system "s" { parts { 8 } }, moe.system "raf" {}')
  assert(w.output:find("raf +100 +%- "), w.output)
end)

test("ratio and best pass over runs out of memory", function()
  local R = run(OOM).globals.R
  expect.equal(#R:ratio { "iteration_ms", of = "s", to = "raf" }, 0)
  expect.equal(R:ratio { "iteration_ms", of = "lancet_dw", to = { "raf", "s" } }[1], 1.25)
  expect.equal(R:best { "peak_bytes" }.runs[1].system, "raf")
  expect.equal(R:best { "iteration_ms", among = { "raf", "s" } }.runs[1].system, "raf")
  expect.equal(#R:best { "iteration_ms", among = { "s" } }.runs, 0)
  expect.equal(#R:where { oom = true }.runs, 1)
  expect.equal(#R:where { oom = false }.runs, 2)
end)

test("a plan beyond memory says so, and of what its peak consists", function()
  local w = expect.runs(expect.HEAD .. [[
local function plan(gib)
  return moe.plan { model = m, system = moe.system "raf" {}, cluster = moe.cluster.p4de { nodes = 2,
    device = { memory_bytes = gib * 2^30, gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e12 } } }
end
local small, large = plan(8), plan(7)
S = { small:simulate().oom == nil, small:simulate { steps = 2 }.oom == nil, large:simulate().oom,
  large:simulate { steps = 2 }.oom }
WHY, TEXT, WHAT = large:simulate { steps = 2 }.misfit, large:text(), large:explain().text
FITS = small:text() .. small:explain().text
]], nil, "run", function(w)
    w.peak_bytes = function() return 8 * GIB end
    w.peak_parts = { { what = "parameters", bytes = 5 * GIB }, { what = "tiny", bytes = 2 ^ 20 },
      { what = "activations", bytes = 2.9 * GIB }, { what = "inputs", bytes = 0.091 * GIB } }
  end)
  expect.equal(w.globals.S, { true, true, true, true })
  local why = "8.0 GiB do not fit in 7.0 GiB: parameters 5.0 GiB, activations 2.9 GiB, inputs "
    .. "0.1 GiB"
  expect.equal(w.globals.WHY, why)
  expect.equal(w.warned, { "moe.plan: OOM: " .. why })
  assert(w.globals.TEXT:find("\n# OOM: " .. why .. "\ngraph", 1, true), w.globals.TEXT)
  expect.equal(w.globals.WHAT:match "^[^\n]*", "OOM: " .. why)
  assert(not w.globals.FITS:find("OOM", 1, true), w.globals.FITS)
end)

test("a plan's memory is that of the candidate that fits", function()
  local w = expect.runs(expect.HEAD .. [[
local p = moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2, device = {
    memory_bytes = 4 * 2^30, gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e12 } },
  system = moe.system "s" { moe.fallback(moe.pass.partition, { max_parts = { 8, 4 } }) } }
P = { p.choice, p:memory().peak_bytes }
]], nil, "run", function(w) w.peak_bytes = bytes_of end)
  expect.equal(w.globals.P, { "max_parts=4", 4 * GIB })
end)
