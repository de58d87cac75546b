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

test("where takes a list, a function, and false for what is not there", function()
  local R = results_of()
  expect.equal(#R:where { system = { "raf", "lancet_dw" }, nodes = 4 }.runs, 2)
  expect.equal(#R:where { system = {} }.runs, 0)
  expect.equal(#R:where { nodes = function(n) return n and n > 2 end }.runs, 3)
  expect.equal(#R:where { trace = false, executor = "cpu" }.runs, 0)
  expect.equal(#R:where { oom = false }.runs, 9)
end)

test("by gives the results of each value, or of each list of values, in order", function()
  local R, seen = results_of():where { executor = "simulate" }, {}
  for nodes, some in R:by "nodes" do seen[#seen + 1] = { nodes, #some.runs } end
  expect.equal(seen, { { 2, 3 }, { 4, 3 } })
  seen = {}
  for key, some in R:by { "system", "nodes" } do
    seen[#seen + 1] = ("%s %d %d"):format(key[1], key[2], #some.runs)
  end
  expect.equal({ #seen, seen[1], seen[6] }, { 6, "raf 2 1", "lancet_dw 4 1" })
end)

test("map makes values of runs and leaves out those that give nil; each brings the run", function()
  local v = results_of():map(function(run)
    return run.executor == "simulate" and run.system == "raf" and run.iteration_ms / 2 or nil
  end)
  local seen = {}
  for value, run in v:each() do seen[#seen + 1] = { value, run.devices } end
  expect.equal(seen, { { 50, 16 }, { 25, 32 } })
end)

test("best is a run per point: of some systems or of all", function()
  local R = results_of():where { executor = "simulate" }
  local best = R:best { "iteration_ms" }
  expect.equal({ #best.runs, best.runs[1].system, best.runs[2].point.nodes },
    { 2, "lancet_dw", 4 })
  best = R:best { "iteration_ms", among = { "raf", "deepspeed" } }
  expect.equal({ best.runs[1].system, best:get "iteration_ms"[1] }, { "raf", 100 })
end)

test("show prints instead of the simulated tables, before the claims", function()
  local _, w = results_of('show = function(R) SHOWN = #R.runs end, ')
  expect.equal(w.globals.SHOWN, 6)
  assert(not w.output:find("vs first", 1, true), w.output)
  assert(w.output:find("Executed on", 1, true), w.output)
  _, w = results_of()
  assert(w.output:find("vs first", 1, true), w.output)
end)

test("moe.table aligns cells, numbers to the right", function()
  local w = expect.runs 'T = require "moe".table { { "a", "b" }, { "x", 10 }, {}, { "yy", 5 } }'
  expect.equal(w.globals.T, "a    b\nx   10\n\nyy   5")
end)

test("get, mean, max, min and median", function()
  local v = results_of():where { nodes = 2 }:get "iteration_ms"
  expect.equal({ v[1], v[2], v[3] }, { 100, 100, 80 })
  expect.equal({ v:mean(), v:max(), v:min(), v:median() }, { 280 / 3, 100, 80, 100 })
end)

test("moe.values takes a list and leaves it as it is", function()
  local w = expect.runs [[local moe = require "moe"
    list = { 5, 1, 4, 2, 3 }
    local v = moe.values(list)
    V = { v:mean(), v:quantile(0.2), v:quantile(0.21), v:quantile(0), v:quantile(1), #v }
    NONE = moe.values({}):quantile(0.5)]]
  expect.equal(w.globals.V, { 3, 1, 2, 1, 5, 5 })
  expect.equal({ w.globals.list, getmetatable(w.globals.list), w.globals.NONE },
    { { 5, 1, 4, 2, 3 } })
  expect.fails('require "moe".values(7)', 1, "moe.values: 7 is not allowed; give a list")
  expect.fails('require "moe".values({ 1 }):quantile(2)', 1,
    "quantile: 2 is not allowed; give a number from 0 to 1")
  expect.fails('require "moe".values({ 1, "x" }):median()', 1, "median: value 2 of the list")
end)

test("ratio is the best of the others over one, a value per point", function()
  local R = results_of():where { executor = "simulate" }
  local v = R:ratio { "iteration_ms", of = "lancet_dw", to = { "raf", "deepspeed" } }
  expect.equal({ v[1], v[2], v[3] }, { 1.25, 1.25 })
  expect.equal(R:ratio({ "iteration_ms", of = "raf", to = "lancet_dw" }):mean(), 0.8)
  for value, run in v:each() do expect.equal({ value, run.system }, { 1.25, "lancet_dw" }) end
end)

test("table puts systems across and points down", function()
  local text = results_of():where { executor = "simulate" }:table { rows = "nodes", cols = "system",
    cell = function(run) return ("%.1f"):format(run.iteration_ms) end }
  expect.equal(text, "nodes    raf  deepspeed  lancet_dw\n    2  100.0      100.0       80.0\n"
    .. "    4   50.0       50.0       40.0")
end)

test("a table with several runs in one cell is refused, with what they differ in", function()
  local cell = "cell = function(run) return '' end }"
  expect.fails(recipe() .. "R:where { executor = 'simulate' }:table { rows = 'executor', "
    .. "cols = 'system', " .. cell, 8, "table: 2 runs for executor = simulate, system = raf, which "
    .. "differ in nodes; add it to rows, or select runs by where")
  expect.fails(recipe() .. "R:table { rows = 'nodes', cols = 'provenance', " .. cell, 8,
    "table: 3 runs for nodes = 2, provenance = simulated, which differ in system;")
end)

test("fields and systems that no run has are errors, at the recipe's line", function()
  expect.fails(recipe() .. "R:where { nodez = 2 }", 8, "where: unknown field 'nodez'")
  expect.fails(recipe() .. 'R:get "iteration"', 8, "get: unknown field 'iteration'")
  expect.fails(recipe() .. 'R:ratio { "iteration_ms", of = "lancet_du", to = "raf" }', 8,
    "ratio: unknown system 'lancet_du'. Did you mean 'lancet_dw'?")
  expect.fails(recipe() .. 'R:ratio { "iteration_ms", of = "lancet_dw" }', 8, "ratio: the argument")
  expect.fails(recipe() .. 'R:table { rows = "nodes", cols = "system" }', 8, "cell: is missing")
  expect.fails(recipe() .. 'R:by "nodez"', 8, "by: unknown field 'nodez'")
  expect.fails(recipe() .. 'R:best { "iteration" }', 8, "best: unknown field 'iteration'")
  expect.fails(recipe() .. 'R:best { "iteration_ms", among = { "rav" } }', 8,
    "best: unknown system 'rav'. Did you mean 'raf'?")
  expect.fails(recipe() .. 'R:best "iteration_ms"', 8, "best: the argument")
  expect.fails(recipe() .. 'R:map "iteration_ms"', 8, "map: 'iteration_ms' is not allowed")
end)

test("a ratio does not mix simulated and executed runs", function()
  expect.fails(recipe() .. 'R:ratio { "iteration_ms", of = "lancet_dw", to = "raf" }', 8,
    "simulated and measured runs, which cannot be mixed")
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
  expect.failed(w, 2, "schema version 7")
end)

test("what moebench did not write into results.json is refused at the recipe's line", function()
  local _, w = results_of()
  local function refused(change, ...)
    local data = world.decode(w.files["out/results.json"])
    change(data)
    expect.failed(world.run('local moe = require "moe"\nmoe.results "old"', {}, "run", function(new)
      new.files["old/results.json"] = world.encode(data)
    end), 2, "old/results.json: ", ...)
  end
  refused(function(d) d.runs = nil end, "runs: is missing")
  refused(function(d) d.runs = 7 end, "runs: is a number, but must be a table")
  refused(function(d) d.runs[1] = "x" end, "runs[1]: is a string, but must be a table")
  refused(function(d) d.runs[1].iteration_ms = "x" end, "runs[1].iteration_ms: is a string")
  refused(function(d) d.runs[1].system = 1 end, "runs[1].system: is a number")
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

test("a claim without a run has no number, one that returns a text is an error", function()
  local _, w = results_of 'claims = { moe.claim { id = "lancet-034", value = function() end } }'
  expect.equal(w.results.claims[1].verdict, "no run")
  expect.fails(recipe [[claims = { moe.claim { id = "lancet-034",
value = function() return "x" end } }]], 7, "moe.claim.value: returned 'x'")
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

-- Runs the recipe; change(r) edits the result of each executed run.
local function runs_with(change)
  return expect.runs(recipe(), nil, "run", function(_, core)
    local plan = core.plan
    core.plan = function(spec)
      local p = plan(spec)
      local run = p.run
      p.run = function(self, options)
        local r = run(self, options)
        change(r)
        return r
      end
      return p
    end
  end)
end

test("a spread of executed samples above a tenth of the median is marked", function()
  local function output(jitter)
    local n = 0
    return runs_with(function(r)
      n = n + 1
      r.samples_ms[3] = r.samples_ms[3] * (n == 1 and jitter or 1)
    end).output
  end
  local wide = output(1.12)
  assert(wide:find("raf +880 +880..986 ! ") and wide:find("deepspeed +880 +880..880 "), wide)
  assert(wide:find("\n! a spread above 10%% of the median"), wide)
  assert(not output(1.08):find("!", 1, true))
end)

-- Runs raf, which takes 10 ms, and eplb, which takes 8, but 30 in the fourth and the eighth step.
local function with_moves()
  return expect.runs(expect.HEAD .. [[
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {}, moe.system "eplb" {} },
  run = { "simulate", { "cpu", ranks = 2, steps = 9 } } }
]], nil, "run", function(w, core)
    w.asked = {}
    local plan = core.plan
    local function steps(p, t, n)
      local samples = {}
      for i = 1, n do
        samples[i] = p.spec.system.name == "raf" and 10 or i % 4 == 0 and 30 or 8
        if t.metrics then t.metrics[i].iteration_ms = samples[i] end
      end
      t.samples_ms = samples
    end
    core.plan = function(spec)
      local p = plan(spec)
      local run, simulate = p.run, p.simulate
      p.run = function(self, options)
        local r = run(self, options)
        steps(p, r, 9)
        return r
      end
      p.simulate = function(self, options)
        local sim = simulate(self, options)
        table.insert(w.asked, options and options.statistic or "mean")
        steps(p, sim, 8)
        sim.iteration_ms = spec.system.name == "raf" and 10 or 13.5
        sim.load_imbalance = spec.system.name == "raf" and 2 or 1.25
        return sim
      end
      return p
    end
  end)
end

test("where steps differ the mean is the headline, with median, range and imbalance beside it",
  function()
    local w = with_moves()
    for _, part in ipairs { "Times are means over 8 steps, which differ; moves of experts count",
      "imbalance\n", "13.5  8.00 (8.00..30.0)", "0.74x", "1.25\n",
      "Means over the 8 steps after the first, since systems here place experts",
      "8.00, 8.00..30.0 !", "ratio of means with its 95% interval", "1.350 (" } do
      assert(w.output:find(part, 1, true), part .. "\n" .. w.output)
    end
    local run = w.results.runs[#w.results.runs]
    expect.equal({ run.system, run.statistic, run.iteration_ms, run.median_ms },
      { "eplb", "mean", 13.5, 8 })
    expect.equal({ w.asked[1], w.asked[#w.asked] }, { "mean", "mean_after_first" })
    assert(not runs_with(function() end).output:find("[Mm]eans"))
  end)

-- Executed runs of 13 steps; factor(system, step) multiplies the time of a step.
local function compared(factor, steps)
  local n = 0
  local names = { "raf", "deepspeed", "lancet_dw" }
  local w = expect.runs((recipe():gsub("steps = 3", "steps = " .. (steps or 13))), nil, "run",
    function(_, core)
      local result = core.result_in_turns
      core.result_in_turns = function(turns, i)
        n = n + 1
        local r = result(turns, i)
        for step in ipairs(r.samples_ms) do
          r.samples_ms[step] = r.samples_ms[step] * factor(names[n], step)
        end
        return r
      end
    end)
  return w.globals.R:differences(), w
end

test("systems in turns are compared step by step, so that drift of the machine cancels", function()
  local all = compared(function(name, step)  -- twice as slow at the end as at the beginning
    return 2 ^ (step / 13) * (name == "deepspeed" and 0.9 or 1)
  end)
  expect.equal(#all, 3)
  local ms = { raf = 880, deepspeed = 0.9 * 880, lancet_dw = 704 }
  for _, d in ipairs(all) do
    local ratio = ms[d.a.system] / ms[d.b.system]
    local near = math.abs(d.ratio / ratio - 1) < 1e-9 and math.abs(d.hi / d.lo - 1) < 1e-9
    assert(near, ("%s %s %g %g"):format(d.a.system, d.b.system, d.ratio, ratio))
    expect.equal(d.verdict, ratio < 0.999 and "faster" or ratio > 1.001 and "slower"
      or "not resolved")
  end
end)

test("a difference within the noise, or of too few steps, is not resolved", function()
  local function noise(name, step)
    return name == "raf" and 1 + 0.1 * math.sin(7 * step) or 1.01
  end
  local all, w = compared(noise)
  expect.equal(all[1].verdict, "not resolved")
  assert(all[1].lo < 1 and all[1].hi > 1)
  assert(w.output:find("In turns, step by step. To first: times of the same steps", 1, true))
  local few = compared(function(name) return name == "raf" and 1 or 2 end, 6)
  expect.equal({ few[1].verdict, few[1].lo == nil, few[1].ratio }, { "not resolved", true, 0.5 })
end)

-- Of 200 pairs whose median ratio is 1, with noise of any law, about 95% of intervals hold 1.
test("the interval of a difference holds the median ratio as often as it says", function()
  local state, inside, runs = 1, 0, 200
  local function draw()
    state = state * 16807 % 2147483647
    return state / 2147483647
  end
  local _, w = compared(function() return 1 end)
  local R = w.globals.R:where { executor = "cpu" }
  for _ = 1, runs do
    for step in ipairs(R.runs[1].samples_ms) do
      R.runs[2].samples_ms[step] = R.runs[1].samples_ms[step]
        * (draw() < 0.5 and 1 - 0.3 * draw() or 1 + 5 * draw() ^ 3)
    end
    local d = R:differences()[1]
    if d.lo <= 1 and 1 <= d.hi then inside = inside + 1 end
  end
  assert(inside / runs >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / runs), inside)
end)

test("systems too large to be in memory together run one after the other", function()
  local w = expect.runs(recipe(), nil, "run",
    function(made) made.too_large = "together they need 9 GiB" end)
  expect.equal(#w.globals.R:differences(), 0)
  assert(w.output:find("One after the other, not in turns: together they need 9 GiB", 1, true))
  expect.equal(w.results.runs[#w.results.runs].turn_steps, nil)
end)

test("a prediction is compared at the speed that the machine had in each step", function()
  local function ran(beside)
    local w = expect.runs((recipe():gsub("steps = 3", "steps = 5")), nil, "run", function(m, core)
      local result = core.result_in_turns
      core.result_in_turns = function(...)
        local r = result(...)
        r.beside, m.slower_beside = beside, beside and beside.slower
        -- Compute is 0.6 of a step here, in a run as in a simulation.
        for i, speed in ipairs(beside and beside.steps or {}) do
          r.samples_ms[i + 1] = r.samples_ms[i + 1] * (1 + 0.6 * (speed - 1))
          r.metrics[i + 1].iteration_ms = r.samples_ms[i + 1]
        end
        return r
      end
    end)
    return w.results.runs[#w.results.runs].prediction, w
  end
  local p = ran(nil)
  assert(p.error == p.frozen_error and p.same_speed_ms == nil and p.lo_ms < p.iteration_ms)
  local q, w = ran { slower = 1.1, steps = { 1, 1, 1, 1 }, compute_share = 1 }
  expect.equal({ q.frozen_error, q.slower }, { p.frozen_error, 1.1 })
  assert(math.abs(q.same_speed_ms / q.iteration_ms - 1.06) < 1e-12)
  assert(w.output:find("Compute took 1.100 times as long during the runs", 1, true))
  -- Most steps meet a machine that is slow by half; the rehearsal beside them only computes.
  local steps = {}
  for i = 1, 4 do steps[i] = i == 1 and 1 or 1.5 end
  local slow = ran { slower = 1, steps = steps, compute_share = 1 }
  assert(slow.frozen_error > p.frozen_error + 0.2, slow.frozen_error)
  assert(math.abs(slow.error - p.error) < 1e-12, slow.error)
  expect.equal(slow.inside, math.abs(slow.error) < 0.03)
  local half = ran { slower = 1, steps = { 1, 1.25, 1.25, 1.25 }, compute_share = 0.5 }
  assert(half.steady_ms < slow.steady_ms)
  -- Transfers alone were quicker in the steps beside the run; no speed of cores explains it.
  local odd = ran { slower = 1, steps = { 0.5, 0.5, 0.5, 0.5 }, compute_share = 0.1 }
  assert(odd.steady_ms > 0 and odd.error > -1, odd.steady_ms)
end)

test("a prediction is compared with the routing of the run if that was not known before", function()
  local asked
  local function ran(text, differ)
    asked = nil
    local w = expect.runs(text, nil, "run", function(made, core)
      local result = core.result_in_turns
      core.result_in_turns = function(...)
        local r = result(...)
        r.beside = { slower = 1, steps = { 1, 1 }, compute_share = 1 }
        return r
      end
      made.routed_ms = function(ms, options)
        asked = options
        return ms * differ
      end
    end)
    return w.results.runs[#w.results.runs].prediction, w.output
  end
  local same, text = ran(recipe(), 1)
  expect.equal({ asked.steps, asked.executed }, { 3, { { { 1, 8 }, { 2, 6 } },
    { { 2, 8 }, { 2, 6 } }, { { 3, 8 }, { 2, 6 } } } })
  expect.equal(same.same_routing_ms, same.same_speed_ms)
  assert(text:find("errors are for equal speed and for the routing of the runs", 1, true), text)
  local other = ran(recipe(), 1.1)
  expect.equal({ other.frozen_error, other.same_speed_ms }, { same.frozen_error,
    same.same_speed_ms })
  assert(math.abs((1 + same.error) / (1 + other.error) - 1.1) < 1e-12, other.error)
  expect.equal({ other.inside, same.inside }, { math.abs(other.error) < 0.03, false })
  local law = recipe():gsub("seq = 16", "seq = 16, routing = moe.workload 'zipf' {}")
  local known, said = ran(law, 1.1)
  expect.equal({ known.same_routing_ms, asked }, {})
  assert(not said:find("for the routing of the runs", 1, true), said)
end)

test("intervals are wider where cores vary in speed, and where fewer steps run", function()
  local function half(speed_spread, steps)
    local text = recipe():gsub("steps = %d+", "steps = " .. steps)
    local w = expect.runs(text, nil, "run", function(made)
      made.speed_spread = speed_spread
    end)
    local p = w.results.runs[#w.results.runs].prediction
    expect.equal(p.speed_spread, speed_spread)
    return math.log(p.hi_ms / p.iteration_ms)
  end
  local still = half(0, 9)
  -- Of the median of 8 steps, neighbours of which are alike.
  local expected = 1.645 * 1.25 * 1.25 * 0.1 / math.sqrt(8)
  assert(math.abs(half(0.1, 9) ^ 2 - still ^ 2 - expected ^ 2) < 1e-9)
  assert(half(0.1, 5) > half(0.1, 9) and half(0.1, 9) > still)
end)

test("a run is marked as disturbed where others took more than 5% of the cores", function()
  local function ran(others)
    return runs_with(function(r) r.machine_state[#r.machine_state].others = others end)
  end
  local marked, quiet = ran(0.12), ran(0.05)
  local run = marked.results.runs[#marked.results.runs]
  expect.equal({ run.others, run.reference_ms }, { 0.12, 0.5 })
  expect.equal(run.disturbed, "other processes or the hypervisor took 12% of the cores' time")
  assert(marked.output:find("% ? ", 1, true), marked.output)
  assert(marked.output:find("? raf was disturbed: " .. run.disturbed, 1, true), marked.output)
  expect.equal(quiet.results.runs[#quiet.results.runs].disturbed, nil)
  assert(not quiet.output:find("?", 1, true), quiet.output)
  -- One line above a table whose rows are all disturbed, none if one is not.
  local head = "\nNothing in this table but its memory can be trusted: the machine was busy"
  local at, above = marked.output:find(head, 1, true), marked.output:find("\nsystem ", 1, true)
  assert(at and at < above and not quiet.output:find(head, 1, true), marked.output)
  local first = true
  local some = runs_with(function(r)
    r.machine_state[#r.machine_state].others, first = first and 0.01 or 0.12, false
  end)
  assert(some.output:find("was disturbed", 1, true) and not some.output:find(head, 1, true))
end)

test("a short run is marked only where the count of 10 ms per core is not what makes it", function()
  local function disturbed(others, ms)
    local w = runs_with(function(r)
      r.machine_state[#r.machine_state].others = others
      for step in ipairs(r.samples_ms) do r.samples_ms[step] = ms end
    end)
    return w.results.runs[#w.results.runs].disturbed ~= nil
  end
  expect.equal({ disturbed(0.11, 80), disturbed(0.11, 40) }, { true, false })  -- of three steps
end)

test("a prediction from times of a disturbed machine is marked, with their number", function()
  for number, says in pairs { "? 1 op time of the prediction of raf was measured while",
    "? 2 op times of the prediction of raf were measured while the machine was disturbed\n" } do
    local w = expect.runs(recipe(), nil, "run", function(of) of.num_disturbed = number end)
    expect.equal(w.globals.R.runs[#w.globals.R.runs].prediction.disturbed_ops, number)
    assert(w.output:find("% ?", 1, true), w.output)
    assert(w.output:find(says, 1, true), w.output)
    assert(not w.output:find("can be trusted", 1, true), w.output)
  end
  local w = expect.runs(recipe())
  expect.equal(w.globals.R.runs[#w.globals.R.runs].prediction.disturbed_ops, nil)
end)

test("a name with a line end is one cell of a table", function()
  local w = expect.runs("local moe = require 'moe'\n"
    .. "text = moe.table { { 'a\\nb', 'c' }, { 1, 2 } }")
  expect.equal(w.globals.text, "a\\nb  c\n   1  2")
end)

test("of a long table the first rows are printed, and how to see the others", function()
  local many = {}
  for i = 1, 250 do many[i] = i end
  local function output(n)
    return expect.runs(expect.HEAD .. ([[
      moe.run(moe.experiment { name = "x", over = { batch = { %s } }, case = function(p)
        return { model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4,
            seq = 16, batch_per_device = p.batch, experts_per_device = 2 },
          cluster = moe.cluster.p4de { nodes = 2 },
          systems = { moe.system "raf" {} } } end })]]):format(
            table.concat({ unpack(many, 1, n) }, ","))).output
  end
  assert(output(250):find("... and 50 more rows; `moebench report out`", 1, true))
  assert(not output(200):find("more rows", 1, true))
end)
