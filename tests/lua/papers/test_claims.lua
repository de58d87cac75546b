-- Claims: what each verdict means, and the band that a claim's value has.
local expect = require "expect"
local world = require "world"
local test = require "test"

-- The verdict on ours in [lo, hi], of a claim whose paper says `paper`; most: its bound, if any.
local function verdict(paper, fields, ours, lo, hi, most)
  local claims = world.run("").moe and require "moe.results.claims"
  local c = { paper = { value = paper }, within = 0.1 }
  for k, v in pairs(fields) do c[k] = v end
  return (claims.verdict(c, { ours = ours, lo = lo or ours, hi = hi or ours }, most))
end

test("reproduced: ours is near the paper's, as a share of the effect", function()
  expect.equal(verdict(1.2, { neutral = 1 }, 1.21), "reproduced")
  expect.equal(verdict(1.2, { neutral = 1 }, 1.19, 1.01, 3), "reproduced")
  expect.equal(verdict(1.2, {}, 1.19, 0.9, 3), "reproduced")
  expect.equal(verdict(1.2, { neutral = 1 }, 1.1), "direction only")
  expect.equal(verdict(1.2, { neutral = 1, within = 0.5 }, 1.1), "reproduced")
  expect.equal(verdict(1.2, {}, 1.1), "reproduced")
  expect.equal(verdict(40, { neutral = 0 }, 37), "reproduced")
end)

test("a number on the other side of neutral, or on it, is never reproduced", function()
  expect.equal(verdict(1.2, { neutral = 1, within = 2 }, 0.9), "contradicted")
  expect.equal(verdict(1.2, { neutral = 1, within = 2 }, 1), "contradicted")
  expect.equal(verdict(0.8, { neutral = 1, within = 2 }, 1.1), "contradicted")
end)

test("constant open: the nominal misses but some of the band is near", function()
  expect.equal(verdict(1.2, { neutral = 1 }, 1.1, 1.05, 1.3), "constant open")
  expect.equal(verdict(1.2, { neutral = 1 }, 1.1, 1.05, 1.185), "constant open")
  expect.equal(verdict(1.2, { neutral = 1 }, 1.1, 1.05, 1.17), "direction only")
  expect.equal(verdict(1.2, {}, 2, 1.3, 3), "constant open")
end)

test("constant open: the band holds the neutral value", function()
  expect.equal(verdict(1.2, { neutral = 1 }, 1.1, 0.95, 1.12), "constant open")
  expect.equal(verdict(1.2, { neutral = 1 }, 0.97, 0.95, 1), "constant open")
  expect.equal(verdict(1.2, { neutral = 1 }, 1.2, 0.95, 1.5), "constant open")
end)

test("direction only: the band on the paper's side, its effect within a factor of 3", function()
  expect.equal(verdict(1.3, { neutral = 1 }, 1.15, 1.12, 1.2), "direction only")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.06, 1.05, 1.11), "direction only")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.06, 1.05, 1.09), "contradicted")
  expect.equal(verdict(1.3, { neutral = 1 }, 2, 1.85, 2.1), "direction only")
  expect.equal(verdict(1.3, { neutral = 1 }, 2, 1.95, 2.1), "contradicted")
  expect.equal(verdict(0.5, { neutral = 1 }, 0.7, 0.65, 0.75), "direction only")
end)

test("contradicted: the whole band on the other side, or far without a neutral value", function()
  expect.equal(verdict(1.2, { neutral = 1 }, 0.9, 0.85, 0.97), "contradicted")
  expect.equal(verdict(1.2, {}, 1.5, 1.4, 1.6), "contradicted")
end)

test("not published: only where the band would decide", function()
  local fields = { neutral = 1, not_published = "the routing" }
  expect.equal(verdict(1.2, fields, 1.1, 1.05, 1.3), "not published")
  expect.equal(verdict(1.2, fields, 1.1, 0.95, 1.12), "not published")
  expect.equal(verdict(1.2, fields, 1.19, 1.1, 1.3), "reproduced")
  expect.equal(verdict(1.2, fields, 0.9, 0.85, 0.97), "contradicted")
  expect.equal(verdict(1.2, fields, nil), "no run")
end)

test("bounded: the paper's number is beyond the bound, and no part of the band near it", function()
  expect.equal(verdict(1.3, { neutral = 1 }, 1.15, 1.12, 1.2, 1.25), "bounded")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.15, 1.12, 1.2, 1.3), "direction only")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.15, 1.12, 1.28, 1.29), "constant open")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.04, 1, 1.08, 1.1), "bounded")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.02, 1.01, 1.03, 1.05), "bounded")
  expect.equal(verdict(0.5, { neutral = 1 }, 0.7, 0.65, 0.75, 0.6), "bounded")
  expect.equal(verdict(0.5, { neutral = 1 }, 0.7, 0.65, 0.75, 0.5), "direction only")
end)

test("bounded is given neither on the other side of neutral, nor where ours is near", function()
  expect.equal(verdict(1.3, { neutral = 1 }, 0.9, 0.85, 0.97, 1.05), "contradicted")
  expect.equal(verdict(0.7, { neutral = 1 }, 1.1, 1.05, 1.2, 0.9), "contradicted")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.15, 1.12, 1.2, 3), "direction only")
  expect.equal(verdict(0.5, { neutral = 1 }, 0.7, 0.65, 0.75, 0.1), "direction only")
  expect.equal(verdict(1.3, { neutral = 1 }, 1.29, 1.2, 1.3, 1.1), "reproduced")
  expect.equal(verdict(1.3, { neutral = 1, fitted = "x" }, 1.29, 1.2, 1.3, 1.1), "fitted")
  expect.equal(verdict(1.3, { neutral = 1, fitted = "x" }, 1.1, 1.1, 1.1, 1.1), "bounded")
end)

test("fitted, not comparable and no run stand before all numbers", function()
  expect.equal(verdict(1.2, { fitted = "fill" }, 1.2), "fitted")
  expect.equal(verdict(1.2, { not_comparable = "x", fitted = "y" }, 1.2), "not comparable")
  expect.equal(verdict(1.2, {}, nil), "no run")
end)

local function near(got, expected)
  assert(math.abs(got - expected) < 1e-9, ("expected %.17g, got %.17g"):format(expected, got))
end

-- Two clusters, one constant of one name in both, one in the second alone, one in the model; the
-- made-up step takes 100, for raf plus the start-up and 1000 times the fill less 500.
local function recipe(claims, more)
  return [[
local moe = require "moe"
local function assumed(value, lo, hi)
  return moe.assumed { value = value, lo = lo, hi = hi, why = "a guess" }
end
local function cluster(name, base, peer)
  return moe.cluster.custom { name = name, nodes = 2, devices_per_node = 8, a2a_base_us = base,
    a2a_per_peer_us = peer, device = { gemm_flops_per_s = 1, memory_bytes_per_s = 1 },
    intra = { bytes_per_s = 1 }, nic = { bytes_per_s = 1 } }
end
E = moe.experiment { name = "x", over = { gpu = { "a", "b" } },
  case = function(p) return {
    model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
      batch_per_device = 2, experts_per_device = 2, fill = assumed(0.5, 0.49, 0.52) },
    cluster = p.gpu == "a" and cluster("a", assumed(17, 10, 30), 0)
      or cluster("b", assumed(17, 7, 17), assumed(2, 1, 4)),
    systems = { moe.system "raf" {}, moe.system "deepspeed" {} } } end,
  run = { "simulate", { "cpu", ranks = 2, steps = 2 } },
  claims = { ]] .. claims .. "}," .. (more or "") .. [[ }
R = moe.run(E)
]]
end

local SPEEDUP = [[moe.claim { id = "lancet-034", neutral = 1, value = function(R)
  return R:where { executor = "simulate", gpu = %s }:ratio { "iteration_ms", of = "deepspeed",
    to = "raf" }:mean() end }, ]]

local function made_up(w)
  w.step_ms = function(spec)
    local c = spec.cluster
    return spec.system.name ~= "raf" and 100
      or 100 + c.a2a_base_us + c.a2a_per_peer_us + 1000 * spec.fill - 500
  end
end

local function run(claims, more, args)
  return expect.runs(recipe(claims, more), args, "run", made_up)
end

test("a system's stack is in its plans alone, in the head, in the band and in the runs", function()
  local w = expect.runs([[
local moe = require "moe"
E = moe.experiment { name = "x", over = { nodes = { 2, 4 } },
  case = function(p) return { cluster = moe.cluster.p4de { nodes = p.nodes },
    model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
      batch_per_device = 2, experts_per_device = 2 },
    systems = { moe.system "raf" {}, moe.system "plain" { stack = false },
      moe.system "deepspeed" { stack = "eager_2021" } } } end,
  claims = { moe.claim { id = "lancet-034", neutral = 1, value = function(R)
    return R:ratio { "iteration_ms", of = "deepspeed", to = "raf" }:mean() end } } }
R = moe.run(E)]], nil, "run", function(w)
    w.step_ms = function(spec)
      local stack = spec.cluster.stack
      return 100 + (stack and stack.host_launch_us + stack.host_op_us or 0)
    end
  end)
  assert(w.output:find("stack eager_2021 (deepspeed), raf_2023 (raf)\n", 1, true), w.output)
  local stacks = {}
  for r in w.globals.R:each() do
    stacks[#stacks + 1] = ("%s %s %g"):format(r.system, r.stack or "none", r.iteration_ms)
  end
  expect.equal(stacks, { "raf raf_2023 108", "plain none 100", "deepspeed eager_2021 132",
    "raf raf_2023 108", "plain none 100", "deepspeed eager_2021 132" })
  -- Launches of both stacks move together.
  local c = w.results.claims[1]
  near(c.ours, 108 / 132)
  near(c.hi, 108 / (100 + 7))
  near(c.lo, 102 / (100 + 4 + 80))
  expect.fails(expect.HEAD .. 'moe.system "raf" { stack = "eager" }', 2,
    "system 'raf'.stack: 'eager' is not allowed; give one of: ")
  expect.fails(expect.HEAD .. 'moe.system "x" { of = { moe.system "raf" { stack = false } } }', 2,
    "of[1].stack: the systems of a list are compared under one stack; give it as the cluster's")
end)

test("a claim has a band over the ends and the two corners, and what moves it most", function()
  local c = run(SPEEDUP:format "'a'").results.claims[1]
  near(c.ours, 1.17)
  near(c.lo, 1.00)
  near(c.hi, 1.50)
  expect.equal(#c.sensitivity, 2)
  local s = c.sensitivity[1]
  expect.equal({ s.constant, s.lo, s.hi }, { "model.fill", 0.49, 0.52 })
  near(s.at_lo, 1.07)
  near(s.at_hi, 1.37)
  near(s.moves, 0.30)
  expect.equal(c.sensitivity[2].constant, "cluster.a2a_base_us")
  near(c.sensitivity[2].at_hi, 1.30)
end)

test("constants of one name move together, each to the end of its own band", function()
  local c = run(SPEEDUP:format "{ 'a', 'b' }").results.claims[1]
  local base
  for _, s in ipairs(c.sensitivity) do
    if s.constant == "cluster.a2a_base_us" then base = s end
  end
  near(base.at_lo, (1.10 + 1.09) / 2)
  near(base.at_hi, (1.30 + 1.19) / 2)
end)

test("runs are done again where a claim reads them and a constant moves them, once", function()
  local w = run(SPEEDUP:format "'a'" .. SPEEDUP:format "'b'")
  expect.equal(#w.executed, 2)
  -- 4 simulated and 2 executed runs; of a two runs at the ends of base and fill and at two corners,
  -- of b two at the ends of per_peer too
  expect.equal(#w.plans, 6 + (2 * 4 + 2 * 2) + (2 * 6 + 2 * 2))
  expect.equal(#w.results.runs, 6)
end)

test("the results and the model that a recipe sees are those at the constants' values", function()
  local w = run(SPEEDUP:format "'a'")
  expect.equal(w.results.runs[1].fill, 0.5)
  near(w.results.runs[1].iteration_ms, 117)
  expect.equal(w.results.runs[1].assumed["model.gpt2_moe.fill"].hi, 0.52)
end)

test("band: none is the value alone, corners are all ends at once", function()
  local w = run(SPEEDUP:format "'b'", "band = 'none'")
  local c = w.results.claims[1]
  expect.equal({ c.lo == c.ours, c.hi == c.ours, #c.sensitivity, #w.plans }, { true, true, 0, 6 })
  w = run(SPEEDUP:format "'b'", "band = 'corners'")
  local each = run(SPEEDUP:format "'b'").results.claims[1]
  near(w.results.claims[1].lo, each.lo)
  near(w.results.claims[1].hi, each.hi)
  expect.equal(#w.plans, 6 + 2 * 6 + 2 * 8)
  expect.failed(world.run(recipe("", "\nband = 'edges'")), nil,
    "experiment.band: 'edges' is not allowed; give one of: each, corners, none")
end)

test("corners of many constants are refused before anything runs", function()
  local many = {}
  for i, name in ipairs { "vocab", "layers", "seq", "ffn", "batch_per_device", "k", "moe_every",
    "experts_per_device", "fill" } do
    many[i] = name .. " = a"
  end
  local w = world.run([[
local moe = require "moe"
local a = moe.assumed { value = 1, lo = 1, hi = 2, why = "x" }
moe.run(moe.experiment { name = "x", model = moe.model.gpt2_moe { hidden = 32, heads = 4,
  gate = "top_k", vocab = moe.assumed { value = 2, lo = 2, hi = 3, why = "x" },
  fill = moe.assumed { value = 0.5, lo = 0.4, hi = 0.6, why = "x" }, ]]
    .. table.concat(many, ", ", 2, 8) .. [[ },
  cluster = moe.cluster.p4de { nodes = 2 }, systems = { moe.system "raf" {} },
  band = "corners", claims = { moe.claim { id = "lancet-034", value = print } } })
]])
  expect.failed(w, 7, "experiment.band: 'corners' with 19 assumed constants needs 524288")
  expect.equal(#w.plans, 0)
end)

test("a model that cannot be at an end of a band is an error before anything runs", function()
  local function run_with(ends)
    return world.run(expect.HEAD .. [[
local n = moe.model.gpt2_moe { layers = 2, hidden = 32, seq = 16, batch_per_device = 2,
  experts_per_device = 2, vocab = 256, heads = moe.assumed { value = 4, why = "x",
  ]] .. ends .. [[ } }
moe.run(moe.experiment { name = "x", model = n, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {} },
  claims = { moe.claim { id = "lancet-034", value = function() end } } })
]])
  end
  local w = run_with "lo = 4, hi = 5"
  expect.failed(w, 3, "model.gpt2_moe.heads: 5 does not divide hidden = 32")
  expect.equal(#w.plans, 0)
  expect.failed(run_with "lo = 3.5, hi = 4", 4, "heads.lo: 3.5 is not allowed; give an integer")
end)

test("an executed number and one without a run have no band", function()
  local c = run([[moe.claim { id = "lancet-040", value = function(R)
    return R:where { executor = "cpu" }:map(function(r) return r.prediction.error end):max() end },
    moe.claim { id = "lancet-041", value = function() end } ]]).results.claims
  expect.equal({ c[1].lo == c[1].ours, c[1].hi == c[1].ours, #c[1].sensitivity }, { true, true, 0 })
  expect.equal({ c[2].verdict, c[2].reason, c[2].lo or "none" },
    { "no run", "there is no run that gives our number", "none" })
end)

test("a claim's bound is the loosest over the band, and its reason says by what", function()
  local c = run(([[moe.claim { id = "lancet-027", neutral = 1, value = function(R) return R.runs[1]
    .iteration_ms / 100 end, bound_by = "a law", bound = function(R) return R.runs[1].iteration_ms
    / %s end }, ]]):rep(2):format("90", "10")).results.claims
  near(c[1].bound, 1.5 * 100 / 90)
  expect.equal({ c[1].verdict, c[2].verdict }, { "bounded", "constant open" })
  assert(c[1].reason:find("at most 1.67 over the band: a law; the paper's", 1, true), c[1].reason)
  expect.equal(c[2].moved_by, "model.fill")
end)

test("a bound that ours passes is an error, and so is one without a side or a reason", function()
  local claim = [[local moe = require "moe"
moe.judge { name = "x", readings = { 1.1 }, claims = { moe.claim { id = "lancet-034", %s
  value = function(x) return x end, bound = function() return %s end } } }]]
  local by = "neutral = 1, bound_by = 'b',"
  expect.fails(claim:format(by, "1.05"), 3, "moe.claim.bound: returned 1.05, but our number, 1.1, "
    .. "is beyond it; return what no schedule of the same ops can pass")
  expect.fails(claim:format(by, "'x'"), 3, "moe.claim.bound: returned 'x'; return a number")
  expect.fails(claim:format("bound_by = 'b',", "2"), 3, "moe.claim.bound: bound, bound_by and "
    .. "neutral belong together")
  expect.equal(expect.runs(claim:format(by, "nil")).results.claims[1].bound or "none", "none")
end)

test("the table shows the band, and below it by how much the paper's number is outside", function()
  local far = SPEEDUP:gsub("lancet%-034", "lancet-027"):format "'b'"
  local w = run(far, nil, { executor = "simulate" })
  for _, part in ipairs { "3.36 x  1.19  0.98..1.41  constant open: fill", "at most\n"
    .. "  the band decides, it holds 1, no effect\n"
    .. "  the paper's number is 1.95 above the band\n"
    .. "  model.fill moves ours most, 1.09 at 0.49 and 1.39 at 0.52" } do
    assert(w.output:find(part, 1, true), part .. "\n" .. w.output)
  end
end)

test("a claim's neutral value is not the paper's number", function()
  expect.fails('local moe = require "moe"\nmoe.claim { id = "lancet-034", value = print,\n'
    .. "neutral = 1.17 }", 3, "moe.claim.neutral: 1.17 is equal to the paper's number")
end)

local function statement(value, more)
  return ([[moe.claim { id = "lancet-042", %s value = function(R)
    local v = R:where { executor = "simulate", gpu = "b" }:ratio { "iteration_ms",
      of = "deepspeed", to = "raf" }[1]
    return %s end }, ]]):format(more or "", value)
end

test("a statement holds or not; the band decides where it does at one end alone", function()
  local w = run(statement "v > 0.9" .. statement "v > 3" .. statement "v > 1.2")
  local c = w.results.claims
  expect.equal({ c[1].verdict, c[2].verdict, c[3].verdict },
    { "reproduced", "contradicted", "constant open" })
  expect.equal({ c[3].ours, c[3].lo, c[3].hi, c[3].paper }, { 0, 0, 1, 1 })
  assert(w.output:find("lancet%-042 +figure 16 +yes +no +no..yes +constant open: a2a_per_peer"),
    w.output)
  assert(not w.output:find("no effect", 1, true), w.output)
end)

test("a claim's label stands by its id, its note where ours differs from the paper's", function()
  local more = [[label = "of b", note = "a reason",]]
  local w = run(statement("v > 0.9", more) .. statement("v > 3", more))
  expect.equal({ w.results.claims[1].note or "none", w.results.claims[2].note },
    { "none", "a reason" })
  expect.equal(w.results.claims[1].label, "of b")
  assert(w.output:find("lancet-042 (of b)", 1, true), w.output)
  assert(w.output:find("alone\n  a reason", 1, true), w.output)
end)
