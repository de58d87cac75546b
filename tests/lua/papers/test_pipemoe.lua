-- moe.pipemoe and moe.judge: what is checked, and what the core gets.
local expect = require "expect"
local test = require "test"

local LINES = "alpha_a = 1e-4, beta_a = 2e-10, n_d = 1e7, alpha_e = 1e-5, beta_e = 3e-14, "
  .. "n_e = 1e10"

local function setup(world, core)
  for _, name in ipairs { "degree", "time", "simulate", "fit" } do
    core["pipemoe_" .. name] = function(spec, more)
      world.asked = { spec = spec, more = more }
      return { degree = 1, time_s = 2 }
    end
  end
end

local function runs(call, fields)
  return expect.runs(expect.HEAD .. ("R = moe.pipemoe.%s { %s }"):format(call, fields), nil, nil,
    setup)
end

local function fails(call, fields, ...)
  return expect.fails(expect.HEAD .. ("moe.pipemoe.%s { %s }"):format(call, fields), 2, ...)
end

test("a degree is asked for with defaults and an ascending set", function()
  local w = runs("degree", LINES .. ", allowed = { 8, 1, 2 }")
  local spec = w.asked.spec
  expect.equal({ spec.method, spec.objective, spec.max_degree }, { "exact", "forward", 64 })
  expect.equal(spec.allowed, { 1, 2, 8 })
  expect.equal(w.globals.R.degree, 1)
end)

test("lines that are missing or negative are named, and so are degrees that cannot be", function()
  fails("degree", "alpha_a = 1", "moe.pipemoe.degree.", ": is missing")
  fails("degree", LINES:gsub("alpha_e = 1e%-5", "alpha_e = -1"),
    "moe.pipemoe.degree.alpha_e: -1 is not allowed; give a number from 0")
  fails("time", LINES .. ", degree = 0", "moe.pipemoe.time.degree: 0 is not allowed")
  fails("degree", LINES .. ", allowed = { 2, 0 }", "allowed[2]: 0 is not allowed")
  fails("degree", LINES .. ", method = 'exakt'", "Did you mean 'exact'?")
  fails("degrees", LINES, "moe.pipemoe: unknown function 'degrees'. Did you mean 'degree'?")
end)

test("the paper's grid is 288 layers a cluster, in bytes and multiply-adds", function()
  local w = expect.runs(expect.HEAD .. [[
L = moe.pipemoe.layers { devices = 16 }
P = moe.pipemoe.layers { devices = 16, alpha_a_16 = "printed", times_experts = true }]])
  local layers, other = w.globals.L, w.globals.P
  expect.equal(#layers, 288)
  local l = layers[#layers]
  expect.equal({ l.batch, l.seq, l.hidden, l.ffn, l.experts_per_device, l.rows },
    { 8, 2048, 8192, 8192, 2, 32768 })
  expect.equal({ l.lines.n_d, l.lines.n_e }, { 32768 * 8192 * 2, 32768 * 8192 * 8192 })
  expect.equal({ l.alpha_a, other[1].alpha_a, other[2].rows }, { 1.72e-4, 1.72e-5, 4096 })
  local kept = 0
  for _, one in ipairs(layers) do kept = kept + (one.fits and 1 or 0) end
  expect.equal(kept, 522 / 3)
  fails("layers", "devices = 8", "moe.pipemoe.layers.devices: 8 is not allowed; give 16, 32 or 64")
end)

test("lines are fitted on a cluster or on ranks of this machine, not both", function()
  local w = runs("fit", "model = m, ranks = 2, link = { bytes_per_s = 1e8 }")
  expect.equal({ w.asked.spec.cost.kind, w.asked.spec.cost.link, w.asked.more },
    { "profile", true, "forward" })
  w = runs("fit", "model = m, cluster = moe.cluster.p4de { nodes = 2 }, objective = 'step'")
  expect.equal({ w.asked.spec.cost.kind, w.asked.spec.ranks, w.asked.more },
    { "roofline", 16, "step" })
  fails("fit", "model = m", "give either cluster or ranks, neither is given")
  fails("fit", "model = m, ranks = 2, cluster = moe.cluster.p4de { nodes = 2 }", "not both")
  fails("fit", "model = m, link = { bytes_per_s = 1e8 }, cluster = moe.cluster.p4de { nodes = 2 }",
    "moe.pipemoe.fit.link: is only used with ranks")
end)

test("claims without runs are judged over their readings", function()
  local w = expect.runs(expect.HEAD .. [[
V = moe.judge { name = "t", readings = { 17, 12 }, claims = {
  moe.claim { id = "pipemoe-032", neutral = 0, value = function(x) return x end },
  moe.claim { id = "pipemoe-036", neutral = 0, value = function(x) return x / 10 end } } }]])
  local v = w.globals.V
  expect.equal({ v[1].ours, v[1].lo, v[1].hi, v[1].verdict }, { 17, 12, 17, "reproduced" })
  expect.equal(v[2].verdict, "contradicted")
  expect.fails(expect.HEAD .. "moe.judge { name = 't', claims = {}, readings = {} }", 2,
    "moe.judge.readings: the list is empty")
end)

test("the reading that moves ours most is named by what differs in it", function()
  local w = expect.runs(expect.HEAD .. [[
V = moe.judge { name = "t", readings = { { a = 1, x = 30 }, { a = 2, x = 16 }, { a = 1, x = 20 } },
  head = "Numbers: dtype f16", claims = {
    moe.claim { id = "pipemoe-032", neutral = 0, value = function(r) return r.x end } } }]])
  local v = w.globals.V[1]
  expect.equal({ v.verdict, v.moved_by, v.reason }, { "constant open", "a = 2, x = 16",
    "the band decides; a = 2, x = 16 moves ours most, to 16" })
  assert(w.output:find("Numbers: dtype f16\n.*Claims, .*constant open: a = 2, x = 16"), w.output)
end)

test("the plans that are measured are in the head of a judgement's tables", function()
  local w = expect.runs(expect.HEAD .. [[
moe.judge { name = "t", readings = { 2, 8 }, claims = {}, measure = function(batch)
  return moe.plan { cluster = moe.cluster.p4de { nodes = 2 }, system = moe.system "raf" {},
    model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
      batch_per_device = batch, experts_per_device = 2, dtype = batch == 8 and "tf32" or nil } }
end }]])
  assert(w.output:find("megatron_bf16, .*dtype tf32, 4 bytes per parameter, .*\nSet%-up: batch "
    .. "2..8 per device, capacity factor 1.25, stack raf_2023\nRouting: gate switch", 1), w.output)
end)

local MEASURED = [[
DONE = {}
local function note(what) DONE[#DONE + 1] = what end
moe.judge { name = "t", readings = { 1, 2 }, measure = function(x) note("m" .. x) return 10 * x end,
  show = function(values) note(("show %d %d"):format(unpack(values))) end,
  claims = { moe.claim { id = "pipemoe-032", value = function(x) note("v" .. x) return x end } } }
note "behind"]]

test("readings are measured, shown and judged, in this order", function()
  local w = expect.runs(expect.HEAD .. MEASURED)
  expect.equal(w.globals.DONE, { "m1", "m2", "show 10 20", "v10", "v20", "behind" })
end)

test("a check measures ours alone, and shows and judges nothing", function()
  local w = expect.runs(expect.HEAD .. MEASURED, nil, "check")
  expect.equal(w.globals.DONE, { "m1" })
end)

test("a check ends at the first steps that a plan would simulate", function()
  local w = expect.runs(expect.HEAD .. [[
local p = moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "raf" {} }
DONE = { p:simulate().iteration_ms }
p:simulate { steps = 4 }
DONE[2] = "behind"]], nil, "check")
  expect.equal(w.globals.DONE, { 100 })
end)

local ENGINE = [[
local moe = require "moe"
local function with(t, more) for k, v in pairs(more) do t[k] = v end return t end
local function lines(more)
  return with({ alpha_a = 2.09e-4, beta_a = 3.54e-10, n_d = 1e7, alpha_e = 1.238e-4,
    beta_e = 8.2e-14, n_e = 1e10 }, more or {})
end
local function near(a, b) assert(math.abs(a - b) <= 1e-12 * b, a .. " " .. b) end
]]  -- 7 lines

test("a degree's time is that of the closed form and of the recurrence", function()
  expect.plans(ENGINE .. [[
local d = moe.pipemoe.degree(lines())
for _, by in ipairs { "closed_form", "recurrence" } do
  near(moe.pipemoe.time(lines { degree = d.degree, by = by }), d.time_s)
end
for r = 1, 64 do assert(moe.pipemoe.time(lines { degree = r }) >= d.time_s) end
for _, objective in ipairs { "forward", "step" } do
  local exact = moe.pipemoe.degree(lines { objective = objective })
  near(moe.pipemoe.degree(lines { objective = objective, method = "brute" }).time_s, exact.time_s)
end
assert(moe.pipemoe.degree(lines { allowed = { 16, 8 } }).degree == 8)
assert(moe.pipemoe.degree(lines { allowed = { 16, 8 }, method = "paper" }).degree == 8)
]])
  expect.plans(ENGINE .. "moe.pipemoe.degree(lines { allowed = {} })",
    "recipe.lua:8: moe.pipemoe.degree.allowed: the set is empty")
  expect.plans(ENGINE .. "moe.pipemoe.degree(lines { max_degree = 4, allowed = { 8 } })",
    "contains the degree 8; 1 to 4 is allowed")
  expect.plans(ENGINE .. "moe.pipemoe.degree(lines { max_degree = 0 })",
    "moe.pipemoe.degree.max_degree: 0 is not allowed")
end)

test("lines fitted on a cluster decide as the pass does", function()
  expect.plans(ENGINE .. [[
local cluster = moe.cluster.p3dn { nodes = 1 }
local model = moe.model.gpt2_moe { layers = 2, hidden = 512, heads = 8, seq = 512,
  batch_per_device = 8, experts_per_device = 1, capacity_factor = 1 }
local fit = moe.pipemoe.fit { model = model, cluster = cluster, objective = "step" }
assert(fit.capacity == 512 and fit.lines.n_d == 8 * 512 * 512 * 2, fit.lines.n_d)
assert(fit.error.transfer.worst < 0.01 and fit.lines.alpha_b > 0)
local d = moe.pipemoe.degree(with({ objective = "step" }, fit.lines))
local plan = moe.plan { model = model, cluster = cluster, system = moe.system "pipemoe_step" {} }
local text = plan:explain().text
assert(text:find(("degree %d: the layer's step predicted %.3f ms"):format(d.degree, 1e3 * d.time_s),
  1, true), text)
]])
  expect.plans(ENGINE .. [[moe.pipemoe.fit { cluster = moe.cluster.p4de { nodes = 1 },
  model = moe.model.gpt2_moe { layers = 1, hidden = 64, heads = 8, seq = 64,
    batch_per_device = 8, experts_per_device = 1 } }]],
    "moe.pipemoe.fit: the model has no all-to-all, with 0 MoE layers")
end)
