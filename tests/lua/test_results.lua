-- Selecting from results, claims, and the printed tables.
local expect = require "expect"
local world = require "world"
local test = require "test"

local function recipe(more)
  return expect.HEAD .. [[
local E = moe.experiment { name = "x", over = { nodes = { 2, 4 } },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "deepspeed" {}, moe.system "lancet_dw" {} } } end,
  run = { "simulate", { "cpu", ranks = 2, steps = 3 } },
  ]] .. (more or "") .. [[ }
R = moe.run(E)
]]
end

-- The results of the recipe, and its world.
local function results_of(more)
  local w = expect.runs(recipe(more))
  return w.globals.R, w
end

test("where selects by fields and by coordinates", function()
  local R = results_of()
  expect.equal(#R.runs, 9)
  expect.equal(#R:where { nodes = 4 }.runs, 3)
  expect.equal(#R:where { system = "raf", executor = "simulate" }.runs, 2)
  expect.equal(#R:where { system = "raf" }:where { nodes = 2 }.runs, 1)
  expect.equal(R:where { nodes = 8 }:get("iteration_ms"):mean(), nil)
end)

test("get, mean, max, min and median", function()
  local v = results_of():where { nodes = 2 }:get "iteration_ms"
  expect.equal({ v[1], v[2], v[3] }, { 100, 100, 80 })
  expect.equal({ v:mean(), v:max(), v:min(), v:median() }, { 280 / 3, 100, 80, 100 })
end)

test("ratio is the best of the others over one, a value a point", function()
  local R = results_of():where { executor = "simulate" }
  local v = R:ratio { "iteration_ms", of = "lancet_dw", to = { "raf", "deepspeed" } }
  expect.equal({ v[1], v[2], v[3] }, { 1.25, 1.25 })
  expect.equal(R:ratio({ "iteration_ms", of = "raf", to = "lancet_dw" }):mean(), 0.8)
end)

test("table puts systems across and points down", function()
  local text = results_of():where { executor = "simulate" }:table { rows = "nodes", cols = "system",
    cell = function(run) return ("%.1f"):format(run.iteration_ms) end }
  expect.equal(text, "nodes    raf  deepspeed  lancet_dw\n    2  100.0      100.0       80.0\n"
    .. "    4   50.0       50.0       40.0")
end)

test("fields and systems that no run has are errors, at the recipe's line", function()
  expect.fails(recipe() .. "R:where { nodez = 2 }", 8, "where: unknown field 'nodez'")
  expect.fails(recipe() .. 'R:get "iteration"', 8, "get: unknown field 'iteration'")
  expect.fails(recipe() .. 'R:ratio { "iteration_ms", of = "lancet_du", to = "raf" }', 8,
    "ratio: unknown system 'lancet_du'. Did you mean 'lancet_dw'?")
  expect.fails(recipe() .. 'R:ratio { "iteration_ms", of = "lancet_dw" }', 8, "ratio: give")
  expect.fails(recipe() .. 'R:table { rows = "nodes", cols = "system" }', 8, "cell: is missing")
end)

test("a ratio does not mix simulated and executed runs", function()
  expect.fails(recipe() .. 'R:ratio { "iteration_ms", of = "lancet_dw", to = "raf" }', 8,
    "simulated and measured runs do not mix")
end)

test("results on disk read back as they were", function()
  local R, w = results_of()
  local text = recipe() .. 'B = moe.results "old"'
  local back = expect.runs(text, {}, "run", function(new)
    new.files["old/results.json"] = w.files["out/results.json"]
  end)
  expect.equal(back.globals.B.runs, R.runs)
  expect.fails('local moe = require "moe"\nmoe.results "nowhere"', 2, "cannot read nowhere/results")
  w = world.run('local moe = require "moe"\nmoe.results "old"', {}, "run", function(new)
    new.files["old/results.json"] = '{"schema":7}'
  end)
  expect.failed(w, 2, "schema 7")
end)

local function claim(fields)
  local R, w = results_of(([[claims = { moe.claim { id = "lancet-034", value = function(R)
    return R:where { executor = "simulate" }:ratio({ "iteration_ms", of = "lancet_dw",
      to = "raf" }):mean() end, %s } }]]):format(fields))
  assert(R)
  return w.results.claims[1], w
end

test("a claim's verdict", function()
  -- ours is 1.25, the paper's 1.17
  expect.equal(claim("within = 0.1").verdict, "reproduced")
  expect.equal(claim("within = 0.01, neutral = 1").verdict, "direction only")
  expect.equal(claim("within = 0.01, neutral = 1.2").verdict, "contradicted")
  expect.equal(claim("within = 0.01").verdict, "contradicted")
  expect.equal(claim("fitted = 'efficiency'").verdict, "fitted")
  local c, w = claim("not_comparable = 'other gate'")
  expect.equal(c.verdict, "not comparable")
  assert(w.output:find("\n  other gate", 1, true), w.output)
end)

test("a claim without a run is undetermined, one that returns a text is an error", function()
  local _, w = results_of 'claims = { moe.claim { id = "lancet-034", value = function() end } }'
  expect.equal(w.results.claims[1].verdict, "undetermined")
  expect.fails(recipe [[claims = { moe.claim { id = "lancet-034",
value = function() return "x" end } }]], 7, "moe.claim.value: returned x")
  expect.fails('local moe = require "moe"\nmoe.claim { id = "lancet-3", value = print }', 2,
    "unknown figure 'lancet-3'")
end)

test("a claim that fails leaves the results on disk", function()
  local w = world.run(recipe('claims = { moe.claim { id = "lancet-034", value = function(R)\n'
    .. "return (R:where { nodez = 1 }) end } }"))
  expect.failed(w, 7, "unknown field 'nodez'")
  expect.equal(#w.results.runs, 9)
end)

test("executed runs are told apart by the coordinates in which they differ", function()
  local w = expect.runs(expect.HEAD .. [[
return moe.experiment { name = "x", over = { gate = { "switch", "top2" }, nodes = { 2, 4 } },
  case = function(p) return { model = moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4,
      vocab = 256, seq = 16, batch_per_device = 2, experts_per_device = 2, gate = p.gate },
    systems = { moe.system "raf" {} } } end,
  run = { { "cpu", ranks = 2 } } }
]])
  expect.equal(#w.executed, 2)
  for _, part in ipairs { "Points: gate = switch\n", "Points: gate = top2\n" } do
    assert(w.output:find(part, 1, true), part .. w.output)
  end
end)

test("the printed tables say what is simulated and executed and fit a terminal", function()
  local _, w = results_of()
  for line in w.output:gmatch("[^\n]+") do assert(#line <= 120, line) end
  for _, part in ipairs { "Simulated by a cost model that rests on", "1.25x", "Speed-up over raf",
    "Executed on 2 CPU ranks, no link; provenance: measured", "+10.0%",
    "Median prediction error over 3 runs: 10.0%", "raf = deepspeed = lancet_dw" } do
    assert(w.output:find(part, 1, true), part .. "\n" .. w.output)
  end
end)
