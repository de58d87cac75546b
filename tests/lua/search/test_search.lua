local expect = require "expect"
local test = require "test"

-- A recipe with a search of these fields, on line 2.
local function search_of(fields)
  return expect.HEAD .. "moe.search { model = m, cluster = moe.cluster.p4de { nodes = 2 },"
    .. fields .. " }\n"
end

-- Runs the search of the fields, in which the plan of number n + 1 is interrupted, and all after
-- it. first: the message of the first interruption.
local function interrupted(fields, n, first)
  local world = require "world"
  return world.run(search_of(fields), {}, "run", function(w, core)
    local plan = core.plan
    function core.plan(spec)
      if #w.plans >= n then
        local message = first or "interrupted"
        first = nil
        error(core.failure("run", message), 0)
      end
      return plan(spec)
    end
  end)
end

local FIELDS = ' techniques = { "partition", "dw_schedule", "zero", "recompute" }'

test("a search that is interrupted evaluates, prints and writes what it has seen", function()
  local all = #expect.runs(search_of(FIELDS)).plans
  for _, n in ipairs { 1, 2, 12, math.floor(all / 2), all - 1 } do
    local w = interrupted(FIELDS, n)
    expect.equal(w.error.kind, "run")
    expect.equal(w.message, "interrupted")
    local s = w.results.searches[1]
    expect.equal(s.interrupted, true)
    expect.equal(s.patience, nil)
    expect.equal(#s.contributions + #s.order, 0)
    expect.equal(s.plain.iteration_ms, 100)
    assert(#s.top >= 1 and #s.front >= 1 and s.best.iteration_ms <= 100)
    assert(w.output:find("The search was interrupted: ", 1, true), w.output)
    assert(w.output:find("iteration ms", 1, true), w.output)
    assert(w.files["out/runs.jsonl"]:find('"search":{"best"', 1, true))
    assert(w.files["out/search_best.lua"])
    expect.equal(#s.named > 0, n > 1)
    for i = 2, #s.named do assert(s.named[i - 1].iteration_ms <= s.named[i].iteration_ms) end
  end
end)

test("a search that is interrupted before anything is simulated writes nothing", function()
  local w = interrupted(FIELDS, 0)
  expect.equal(w.message, "interrupted")
  expect.equal(w.output, "")
  expect.equal(w.results, nil)
end)

test("an interruption in a policy is no refusal of the mix", function()
  local w = interrupted(FIELDS, 1, "recipe.lua:2: interrupted (in schedule 'mine')")
  expect.equal(w.message, "recipe.lua:2: interrupted (in schedule 'mine')")
  expect.equal(#w.results.searches[1].refused, 0)
  w = interrupted(FIELDS, 60, "recipe.lua:2: interrupted (in schedule 'mine')")
  expect.equal(#w.results.searches[1].refused, 0)
end)

-- Runs the recipe of the best mix that a search of the fields writes; `better` is the technique or
-- field of a system that takes less time. Returns the names of its systems.
local function systems_of_recipe(fields, better)
  local w = expect.runs(search_of(fields), {}, "run", function(w)
    function w.step_ms(spec, ms)
      for _, stage in ipairs(spec.system.stages) do
        if stage.name == better then return ms / 2 end
      end
      return ms
    end
  end)
  local names = {}
  for _, run in ipairs(expect.runs(w.files["out/search_best.lua"]).results.runs) do
    names[#names + 1] = run.system
  end
  return names
end

test("a search's recipe names the best mix and the plain one differently, and lists the plain one "
  .. "once where it is the best", function()
  expect.equal(systems_of_recipe(' techniques = { "zero", "recompute" }', "zero"),
    { "plain", "best" })
  expect.equal(systems_of_recipe(' techniques = { "zero", "recompute" }', "recompute"),
    { "plain", "best" })
  expect.equal(systems_of_recipe(' techniques = { "dw_schedule" }'), { "plain", "best" })
  expect.equal(systems_of_recipe(' techniques = { "zero" }'), { "plain" })
end)

-- Runs a search of these fields whose budget ends before a mix is tried, in a world in which a step
-- takes half as long with all passes of Lancet, and the least with Lina's.
local function without_time(fields)
  local w = expect.runs(search_of(" budget_s = 0.1," .. fields), {}, "run", function(w, core)
    local now = 0
    function core.clock()
      now = now + 1
      return now
    end
    function w.step_ms(spec)
      local has = {}
      for _, stage in ipairs(spec.system.stages) do has[stage.name] = true end
      if has.used_rows and has.partition and has.dw_schedule then return 50 end
      return has.priority and has.micro_ops and 40 or 100
    end
    function w.peak_bytes(spec) return (#spec.system.stages + 1) * 2 ^ 30 end
  end)
  return w.results.searches[1], w
end

test("known systems are mixes where they can be, and a reason why not is a true one", function()
  local has = ' techniques = { "used_rows", "partition", "dw_schedule" %s }, contributions = false'
  local s, w = without_time(has:format "")
  expect.equal({ s.best.iteration_ms, s.named[1].system }, { 50, "lina_pipelining" })
  expect.equal(s.best.choice, "irregular_a2a + used_rows + partition max_parts=8 + dw_schedule")
  local says = "The known system lina_pipelining is faster than the best mix. No mix here has "
  assert(w.output:find(says, 1, true) and s.beyond:find "priority" and s.beyond:find "micro_ops",
    w.output)
  for _, run in ipairs(expect.runs(w.files["out/search_best.lua"]).results.runs) do
    assert(run.system == "plain" or #run.stages == 4)
  end
  -- All passes, but not with these options; so not the ones that Lina has.
  s = without_time(has:format ', "priority", "chunked", "micro_ops", "all_reduce"'
    .. ", options = { micro_ops = { bytes = { 8e6 } } }")
  assert(s.beyond:find('micro_ops { bytes = 30000000', 1, true), s.beyond)
  -- A known system is no mix that the recipe forbids, and may be faster than the smallest mix.
  s = without_time(has:format "" .. ", allowed = function(h) return not h.partition end")
  expect.equal(s.best.iteration_ms, 100)
  s = without_time(has:format "" .. ', objective = "peak_bytes"')
  expect.equal({ s.best.iteration_ms, s.best.choice }, { 100, "plain" })
end)

test("the recipe of the best mix is written for built-in models, with the same parameters",
  function()
    for _, model in ipairs { "qwen3_30b_a3b { seq = 128, batch_per_device = 1 }",
      "olmoe_1b_7b { seq = 64, batch_per_device = 2, layers = 2, name = 'small' }",
      "mixtral_8x7b { seq = 64, batch_per_device = 1, capacity_factor = 1.5, ep = 8 }",
      "lina { size = 'gpt2' }" } do
      local w = expect.runs('local moe = require "moe"\nmoe.search { model = moe.model.' .. model
        .. ", cluster = moe.cluster.p4de { nodes = 4 }, techniques = { 'dw_schedule' } }\n")
      local best = w.results.searches[1].best
      local again = expect.runs(w.files["out/search_best.lua"]).results.runs
      expect.equal(again[#again].parameters, best.parameters, model)
      expect.equal(again[#again].model, best.model)
    end
  end)

test("two searches of one name are refused, since the second would overwrite the first's recipe",
  function()
    local search = "moe.search { model = m, cluster = moe.cluster.p4de { nodes = 2 },\n"
      .. ' techniques = { "zero" } '
    expect.fails(expect.HEAD .. search .. "}\n" .. search .. "}\n", 4,
      "moe.search.name: 'search' is the name of another search that this recipe runs (line 2)",
      "give each a name of its own")
    local w = expect.runs(expect.HEAD .. search .. "}\n" .. search .. ', name = "other" }\n')
    assert(w.files["out/search_best.lua"] and w.files["out/other_best.lua"])
    expect.equal(#w.results.searches, 2)
  end)

test("options of a technique that is not searched are refused", function()
  expect.fails(search_of(' techniques = { "partition", "zero" },\n'
    .. ' options = { capacity_pipeline = { degree = { 2 } } }'), 3,
    "moe.search.options.capacity_pipeline: 'capacity_pipeline' is not searched",
    "searched are: partition, zero")
  expect.fails(search_of(' with = { moe.pass.partition {} }, techniques = { "zero" },\n'
    .. ' options = { partition = { max_parts = { 2 } } }'), 3,
    "moe.search.options.partition: 'partition' is not searched", "searched are: zero")
  expect.fails(search_of " options = { placed = { every = { 2 } } }", 2,
    "moe.search.options.placed: 'placed' is not searched")
  expect.runs(search_of ' techniques = { "prophet_split" }, options = { prophet = { n = { 1 } } }')
  expect.runs(search_of(' techniques = { "partition" },'
    .. ' options = { partition = { max_parts = { 2 } } }'))
end)

test("a pass in `with` that is also among the techniques is refused, unless it places experts",
  function()
    expect.fails(search_of(' techniques = { "zero", "dw_schedule" },\n'
      .. " with = { moe.pass.serial {}, moe.pass.dw_schedule {} }"), 3,
      "moe.search.with[2]: 'dw_schedule' is also among the passes of `techniques`")
    expect.fails(search_of ' techniques = { "used_rows" }, with = { moe.pass.irregular_a2a {} }', 2,
      "moe.search.with[1]: 'irregular_a2a' is also among the passes of `techniques` (used_rows)")
    expect.runs(search_of ' techniques = { "zero" }, with = { moe.pass.dw_schedule {} }')
    local w = expect.runs(search_of(' techniques = { "top_k" },'
      .. ' with = { moe.pass.top_k { k = 1 } }'))
    expect.equal(w.results.searches[1].space, 3)
  end)

test("what the error of simulated steps does not tell apart is a tie, with the run that decides",
  function()
    local function output(factor)
      return expect.runs(search_of ' techniques = { "dw_schedule" }', {}, "run", function(w)
        function w.step_ms(spec, ms)
          for _, stage in ipairs(spec.system.stages) do
            if stage.name == "dw_schedule" then return ms * factor end
          end
          return ms
        end
      end).output
    end
    local line = output(1.1):match "Tie: [^\n]*"
    assert(line and line:find("plain", 1, true) and line:find("execute = 2", 1, true), line)
    assert(line:find("search_best.lua", 1, true), line)
    assert(not output(0.5):find("plain tie", 1, true) and not output(0.5):find "Tie: [^\n]*plain")
  end)

test("each policy of `with` is tried in the best mix, however short the search", function()
  local w = expect.runs(search_of(' techniques = { "partition", "dw_schedule", "zero" },\n'
    .. " budget_s = 14, with = { moe.pass.serial {} }"), nil, nil, function(_, core)
      local now = 0
      core.clock = function()
        now = now + 1
        return now
      end
    end)
  local s, found = w.results.searches[1], false
  for _, one in ipairs(s.seen) do
    found = found or one.label:find "serial" and one.label:find "dw_schedule"
      and one.iteration_ms == s.best.iteration_ms
  end
  assert(not s.exhaustive and s.best.iteration_ms < 100 and found, s.best.iteration_ms)
end)
