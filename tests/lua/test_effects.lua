-- What stages were told and has no effect, in tables, results and pages; names that objects of the
-- library do not have; keys of other frameworks.
local expect = require "expect"
local test = require "test"
local world = require "world"

local RECIPE = expect.HEAD .. [[
return moe.experiment { name = "x", over = { nodes = { 2, 4 } },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "lancet_dw" {} } } end,
  run = { "simulate", { "cpu", ranks = 2, steps = 3 } } }
]]

-- raf as it is; lancet_dw with one stage without effect on few ranks, and two reasons of another.
local function without_effect(w)
  w.without_effect = function(spec)
    if spec.system.name == "raf" then return {} end
    local all = { { stage = "used_rows", reason = "a" }, { stage = "used_rows", reason = "b" } }
    local few = { [16] = "all dW are needed", [32] = "no dW is free" }
    if few[spec.ranks] then all[3] = { stage = "dw_schedule", reason = few[spec.ranks] } end
    return all
  end
end

test("a stage without effect is said under the table, once per system, with its reasons", function()
  local w = expect.runs(RECIPE, {}, "run", without_effect)
  local _, count = w.output:gsub("Without effect in", "")
  expect.equal(count, 4)
  for _, line in ipairs { "Without effect in lancet_dw: stage 'used_rows': a; b\n",
    "stage 'dw_schedule': all dW are needed (in 1 of 2 runs)\n",
    "stage 'dw_schedule': no dW is free (in 1 of 2 runs)" } do
    assert(w.output:find(line, 1, true), w.output)
  end
  expect.equal(w.results.runs[1].without_effect, nil)
  expect.equal(w.results.runs[2].without_effect, { { stage = "used_rows", reason = "a" },
    { stage = "used_rows", reason = "b" },
    { stage = "dw_schedule", reason = "all dW are needed" } })
end)

test("systems that send or compute padded rows of a model without capacity are said", function()
  local dropless = "gate = 'top_k', k = 2, capacity = 'none', seq = 16"
  local text = expect.HEAD:gsub("seq = 16", dropless) .. [[
return moe.experiment { name = "x", over = { nodes = { 2, 4 } },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "tutel" {}, moe.system "raf_irregular" {},
      moe.system "raf_rows" {} } } end }
]]
  local w = expect.runs(text, {}, "run", function(w)
    w.padded_rows = function(spec)
      return ({ raf_rows = "", raf_irregular = "compute" })[spec.system.name] or "send and compute"
    end
  end)
  local line = "Padded rows: %s a slot for every token at every expert, as the model has no "
    .. "capacity: 16 to 32 times the rows in use; irregular_a2a and used_rows avoid it\n"
  for _, who in ipairs { "raf, tutel: send and compute", "raf_irregular: compute" } do
    assert(w.output:find(line:format(who), 1, true), w.output)
  end
  expect.equal(select(2, w.output:gsub("Padded rows:", "")), 2)
  assert(not expect.runs(text).output:find "Padded rows")
end)

test("simulated placements without a routing say that no policy is called", function()
  local recipe = expect.HEAD .. [[
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {}, moe.system "prophet" {}, moe.system "eplb" {} } }
]]
  local said = "Placements: none made without a routing (eplb, prophet); each device is assumed to "
    .. "receive expected_copies = 1 per layer\n"
  local w = expect.runs(recipe)
  assert(w.output:find(said, 1, true), w.output)
  w = expect.runs((recipe:gsub("seq = 16", "seq = 16, routing = moe.workload 'zipf' {}")))
  assert(not w.output:find "Placements:", w.output)
end)

test("an option beside one that takes its place is refused", function()
  local function refused(options, name, by)
    expect.fails('local moe = require "moe"\nmoe.pass.partition ' .. options, 2,
      ("moe.pass.partition.%s: has no effect beside %s; give one of the two"):format(name, by))
  end
  refused("{ parts = 2, max_parts = 4 }", "max_parts", "parts")
  refused("{ max_parts = 8, parts = 1 }", "max_parts", "parts")
  refused("{ before = 0, after = 2, max_range = 2 }", "max_range", "before")
  expect.runs 'local moe = require "moe"\nmoe.pass.partition { parts = 0, max_parts = 4 }'
  -- A setting of the command line may take the place of what the recipe gives.
  local recipe = expect.HEAD .. [[
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "x" { moe.pass.partition { max_parts = 4 } } } }
]]
  expect.runs(recipe, { set = { ["system.x.partition.parts"] = "2" } })
end)

test("where all does as it was told nothing is said", function()
  local w = expect.runs(RECIPE)
  assert(not w.output:find "Without effect", w.output)
end)

test("a misspelt method is answered with the nearest or with all", function()
  local head = RECIPE:gsub("return moe", "E = moe") .. "R = moe.run(E)\n"
  expect.fails(head .. "R:row(1)", 7, "results: unknown method 'row', have: best, by, "
    .. "differences, each, get")
  expect.fails(head .. "R:wher {}", 7, "results: unknown method 'wher'. Did you mean 'where'?")
  expect.fails(head .. "R:get('iteration_ms'):meen()", 7, "values: unknown method 'meen'",
    "'mean'")
  expect.fails(expect.HEAD .. "local p = moe.plan { model = m, system = moe.system 'raf' {},\n"
    .. "  cluster = moe.cluster.p4de { nodes = 2 } }\np:ordr 'compute'", 4,
    "plan: unknown method 'ordr'. Did you mean 'order'?")
  expect.fails(head .. "R:get('iteration_ms').mean()", 7, "values: is a ':' missing? Write x:mean")
  local w = expect.runs(head .. "V = R:get 'iteration_ms'\n")
  local V = w.globals.V
  expect.equal(V[#V + 1], nil)
end)

test("keys for what is not built say so, and a short name is not guessed", function()
  local function model(key)
    return ('local moe = require "moe"\nmoe.model.gpt2_moe { vocab = 256, %s = 2 }'):format(key)
  end
  for key, says in pairs { tp = "products, and the rows between them, are split over ranks",
    pp = "blocks are spread over pipeline ranks by `grid = moe.grid { pp = N }`",
    cp = "sequences are split over ranks by", dp = "the batch is spread over all ranks",
    micro_batch = "gradients are added up over the micro-batches of `grid = moe.grid {",
    zero_stage = "optimizer states are sharded by `zero = 1` of moe.system" } do
    expect.fails(model(key), 2, ("model.gpt2_moe: unknown key '%s'; %s"):format(key, says))
  end
  local w = world.run(model "xp")
  assert(not w.message:find "Did you mean", w.message)
  w = world.run((model("gate"):gsub("gate = 2", "gate = 'top1'")))
  assert(not w.message:find "Did you mean", w.message)
end)

test("a system with the name of a known one and other passes is said to be so", function()
  local text = expect.HEAD .. [[return moe.experiment { name = "x", model = m,
    cluster = moe.cluster.p4de { nodes = 2 }, systems = { moe.system "raf" {},
      moe.system "tutel" {}, moe.system "lancet" { moe.pass.partition { max_parts = 4 } },
      moe.system "deepspeed" { moe.pass.blocking_a2a { experts = false } } } }]]
  local w = expect.runs(text)
  local _, count = w.output:gsub("\nSystem ", "")
  expect.equal(count, 1)
  assert(w.output:find("System lancet has passes of the recipe: partition; the known system of "
    .. "this name has: irregular_a2a, used_rows, partition, dw_schedule\n", 1, true), w.output)
end)

test("software that is simulated without its stack is said to be so", function()
  local text = expect.HEAD .. [[return moe.experiment { name = "x", model = m,
    cluster = moe.cluster.a100 { nodes = 2 %s }, systems = { moe.system "megatron" {} } }]]
  local line = "System megatron has no stack: one kernel per op and no host time are counted"
  assert(expect.runs(text:format "").output:find(line, 1, true))
  assert(not expect.runs(text:format ", stack = 'megatron'").output:find(line, 1, true))
end)

test("links have no effect beside measured times of collectives in a node, and say so", function()
  local text = [[local moe = require "moe"
C = moe.cluster.h100 { nodes = %s }]]
  for _, field in ipairs { "intra = { bytes_per_s = 1e9 }", "a2a_base_us = 3",
      "all_reduce = 'ring'" } do
    expect.fails(text:format("1, " .. field), 2, "cluster.h100." .. field:match "^[%w_]+"
      .. ": has no effect where the times of collectives inside a node are measured "
      .. "(collective_times); give collective_times = false, too")
    expect.equal(world.run(text:format("1, collective_times = false, " .. field)).globals.C
      .collective_times, nil)
    expect.equal(world.run(text:format("2, " .. field)).globals.C.collective_times, nil)
  end
  expect.equal(world.run(text:format "1").globals.C.collective_times, "h100")
  local run = expect.HEAD .. [[return moe.experiment { name = "x", model = m,
    cluster = moe.cluster.h100 { nodes = 1%s }, systems = { moe.system "raf" {} } }]]
  local set = { set = { ["cluster.intra.latency_us"] = "9" } }
  expect.failed(world.run(run:format "", set), nil, "cluster.h100.intra: has no effect where")
  expect.runs(run:format ", collective_times = false", set)
end)
