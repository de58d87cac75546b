-- Turns beside each other: moe.lane_times, hide_a2a, schedules of a whole step, and the search over
-- grids and pipeline schedules.
local expect = require "expect"
local test = require "test"

local HEAD = 'local moe = require "moe"\n'
local TASKS = HEAD .. [[
local function tasks(needs)
  return { { name = "a", lane = "compute", time = 3 },
    { name = "send", lane = "comm", time = 4, needs = { "a" } },
    { name = "b", lane = "compute", time = 2, needs = needs or { "send" } },
    { name = "other", lane = "compute", time = 4 } }
end
]]

test("tasks on lanes begin when their lane is free and what they need has ended", function()
  expect.runs(TASKS .. [[
local t = moe.lane_times { tasks = tasks(), order = { compute = { "other", "a", "b" },
  comm = { "send" } } }
assert(t.length == 13 and t.begins.send == 7 and t.begins.b == 11 and t.ends.b == 13)
assert(t.hidden == 0 and t.exposed == 4 and t.busy.compute == 9)
t = moe.lane_times { tasks = tasks() }
assert(t.length == 9 and t.hidden == 4 and t.exposed == 0)
assert(table.concat(t.order.compute, " ") == "a other b")
]])
  expect.fails(TASKS .. "moe.lane_times { tasks = tasks { 'c' } }", 8, "tasks[3].needs[1]",
    "there is no task 'c'")
  expect.fails(TASKS .. "moe.lane_times { tasks = tasks { 'b' } }", 8, "in a circle")
  expect.fails(TASKS .. "moe.lane_times { tasks = tasks(), order = { compute = { 'a', 'a' } } }", 8,
    "order.compute[2]", "twice")
  expect.fails(TASKS .. "moe.lane_times { tasks = tasks(), order = { compute = { 'send' } } }", 8,
    "is on lane 'comm'")
  expect.fails(TASKS .. "moe.lane_times { tasks = tasks(), order = { comm = { 'send' } } }", 8,
    "has 1 of the 4 tasks")
end)

local PLAN = HEAD .. [[
local function plan(passes, micro)
  return moe.plan { model = moe.model.gpt2_moe { vocab = 512, layers = 4, hidden = 256, heads = 4,
      seq = 256, batch_per_device = 4, experts_per_device = 2, gate = "switch", ep = 2 },
    cluster = moe.cluster.custom { nodes = 2, devices_per_node = 1, nics_per_node = 1,
      nic = { bytes_per_s = 1e9, latency_us = 3 }, intra = { bytes_per_s = 1e11, latency_us = 1 },
      device = { gemm_flops_per_s = 1e13, vector_flops_per_s = 1e12, memory_bytes_per_s = 1e12 } },
    grid = moe.grid { micro_batches = micro or 4 }, system = moe.system "mix" (passes) }
end
local pairs_of = moe.pipeline.paired_1f1b {}
]]

-- The ops of a micro-batch that are no weight gradients.
local CHAIN = [[
local function chain(p, micro)
  local names = {}
  for _, name in ipairs(p:order "compute") do
    local m = tonumber(name:match "@(%d+)$") or 0
    if m == micro and not name:find "%.d[wb]" then names[#names + 1] = name end
  end
  return table.concat(names, " ")
end
]]

test("a forward and a backward beside each other hide each other's all-to-alls", function()
  expect.plans(PLAN .. CHAIN .. [[
local base = plan { pairs_of, moe.pass.irregular_a2a {} }
local turns = plan { pairs_of, moe.pass.irregular_a2a {}, moe.pass.hide_a2a { search = false } }
local best = plan { pairs_of, moe.pass.irregular_a2a {}, moe.pass.hide_a2a {} }
assert(turns.sim.iteration_ms < 0.95 * base.sim.iteration_ms)
assert(best.sim.iteration_ms <= turns.sim.iteration_ms * 1.02)
for m = 0, 3 do assert(chain(base, m) == chain(turns, m) and chain(base, m) == chain(best, m)) end
local alone = plan({ moe.pass.hide_a2a {}, moe.pass.irregular_a2a {} })
assert(alone:info().without_effect[1].reason:find "no forward runs beside a backward")
local ok, err = pcall(plan, { pairs_of, moe.pass.hide_a2a {}, moe.pass.serial {} })
assert(not ok and tostring(err):find "'serial' forbids the overlap", tostring(err))
]])
end)

test("a schedule of the whole step sees the ops of all micro-batches", function()
  expect.plans(PLAN .. [[
local seen = {}
local last_first = moe.policy.schedule { name = "last_first", at = "step",
  apply = function(s, g)
    for _, op in ipairs(g:ops { kind = "all_to_all", phase = "forward" }) do
      seen[op.micro] = (seen[op.micro] or 0) + 1
    end
    s:before(g:ops { kind = "all_to_all", phase = "forward" }[1],
      g:ops { kind = "all_to_all", phase = "forward", where = function(op)
        return op.micro == 3
      end }[1])
  end }
local p = plan({ pairs_of, last_first {} }, 3)
assert(#seen == 3 and seen[1] == seen[3])
]])
end)

test("a search over grids and pipeline schedules finds what plans say", function()
  expect.plans(PLAN .. [[
local one = { model = moe.model.gpt2_moe { vocab = 512, layers = 8, hidden = 64, heads = 4,
    seq = 64, batch_per_device = 2, experts_per_device = 2, gate = "switch" },
  cluster = moe.cluster.p3dn { nodes = 2 } }
local found = moe.search { model = one.model, cluster = one.cluster, techniques = { "zero" },
  grid = moe.grid { global_batch = 256 }, grids = { pp = { 2, 4 } }, contributions = false,
  pipelines = { moe.pipeline.interleaved {}, moe.pipeline.zb_h1 {} } }
assert(found.exhaustive and found.space == 18, found.space)
local best = math.huge
for _, pp in ipairs { 1, 2, 4 } do
  for _, schedule in ipairs { "1f1b", "interleaved", "zb_h1" } do
    for _, zero in ipairs { 0, 1 } do
      local p = moe.plan { model = one.model, cluster = one.cluster,
        grid = moe.grid { global_batch = 256, pp = pp },
        system = moe.system "mix" { moe.pipeline[schedule] {}, moe.pass.zero { stage = zero },
          all_reduce = { lane = "comm", place = "after" } } }
      if not p.sim.oom then best = math.min(best, p.sim.iteration_ms) end
    end
  end
end
assert(math.abs(found.best.iteration_ms / best - 1) < 1e-9, found.best.iteration_ms)
]])
end)
