-- What a plan and its simulation say of pipeline ranks.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local function cluster(nodes, nic)
  return moe.cluster.custom { nodes = nodes, devices_per_node = 1, nics_per_node = 1, nic = nic,
    intra = { bytes_per_s = 1e11, latency_us = 1 },
    device = { gemm_flops_per_s = 1e13, vector_flops_per_s = 1e12, memory_bytes_per_s = 1e12 } }
end
local function plan(pp, micro, schedule, more)
  local t = { model = moe.model.gpt2_moe { vocab = 512, layers = 8, hidden = 64, heads = 4,
      seq = 64, batch_per_device = 2, experts_per_device = 2 },
    cluster = cluster(pp, { bytes_per_s = 5e9, latency_us = 3 }),
    grid = moe.grid { pp = pp, micro_batches = micro },
    system = moe.system 'mix' { moe.pass.serial {}, schedule } }
  for key, value in pairs(more or {}) do t[key] = value end
  return moe.plan(t)
end
]]

test("the idle time of pipeline ranks has causes without a rest", function()
  expect.plans(HEAD .. [[
for _, schedule in ipairs { moe.pipeline['1f1b'] {}, moe.pipeline.zb_v {} } do
  local p = plan(4, 8, schedule)
  assert(#p.sim.pipeline == 4)
  for rank, r in ipairs(p.sim.pipeline) do
    local sum = 0
    for _, ms in pairs(r) do sum = sum + (type(ms) == 'number' and ms or 0) end
    assert(math.abs(sum - p.sim.iteration_ms) < 1e-5, rank)
    assert(p:memory { rank = rank }.peak_bytes == p:info().peak_bytes_by_rank[rank])
  end
  assert(p:memory().peak_bytes == math.max(unpack(p:info().peak_bytes_by_rank)))
end
local p = plan(2, 3, moe.pipeline['1f1b'] {})
assert(p:turns(1) == '0F0,0F1,0B0,0F2,0B1,0B2', p:turns(1))
assert(p:turns(2) == '1F0,1B0,1F1,1B1,1F2,1B2', p:turns(2))
assert(p:order('compute', { rank = 2 })[1] == 'b4.ln1')
assert(p:text { rank = 2 }:find 'b4.ln1' and not p:text { rank = 2 }:find 'b3.ln1')
]])
end)

-- Sgd, since adamw scales gradients by themselves; the head is tied, or with dualpipe every stage
-- held twice.
test("gradients are clipped by the norm over all pipeline ranks", function()
  expect.plans([[
local moe = require 'moe'
local function train(clip, ranks, grid, ...)
  return moe.train { model = moe.model.gpt2_moe { vocab = 64, layers = 8, hidden = 16, heads = 2,
      seq = 8, batch = 16, experts = 4, ep = grid.ep or 1, gate = 'top_k', k = 2,
      capacity = 'none' },
    ranks = ranks, steps = 2, precision = 'f64', init = 'reference', tokens = 'reference',
    poison = true, grid = moe.grid(grid), system = moe.system 'plain' { ... },
    optimizer = { name = 'sgd', lr = 1, momentum = 0, clip_norm = clip } }
end
local pipe, zero, free = moe.pipeline, moe.pass.zero {}, train(0, 1, { micro_batches = 4 })
local one = train(0.01, 1, { micro_batches = 4 })
for _, many in ipairs { train(0.01, 2, { pp = 2, micro_batches = 4 }),
    train(0.01, 4, { pp = 4, micro_batches = 4 }, pipe.zb_v {}),
    train(0.01, 4, { pp = 2, ep = 2, micro_batches = 4 }, zero, pipe.interleaved {}),
    train(0.01, 4, { pp = 2, tp = 2, micro_batches = 4 }, zero),
    train(0.01, 2, { pp = 2, micro_batches = 4 }, pipe.dualpipe {}),
    train(0.01, 8, { pp = 2, tp = 2, micro_batches = 2 }) } do
  for name, x in pairs(one.param_l2) do
    assert(math.abs(x - many.param_l2[name]) <= 1e-9 * x, name)
  end
  assert(math.abs(one.losses[2] - many.losses[2]) < 1e-9)
end
assert(math.abs(one.losses[2] - free.losses[2]) > 1e-6)
]])
end)

-- The time of each kind of turn of each stage, from a plan's spans of its second micro-batch.
test("turns of a simulation begin and end when moe.pipeline_times says", function()
  expect.plans(HEAD .. [=[
local NAMES = { '1f1b', 'gpipe', 'interleaved', 'interleaved_torch', 'looped_bfs', 'v_half',
  'v_min', 'zb_h1', 'zb_h2', 'zb_v' }  -- those without pairs
local state = 5
local function draw(from)
  state = (state * 1103515245 + 12345) % 2 ^ 31
  return from[math.floor(state / 2 ^ 16) % #from + 1]
end
local compared = 0
for _ = 1, 40 do
  local name, pp, micro = draw(NAMES), draw { 2, 4 }, draw { 4, 5, 8, 9, 12 }
  local nic = { bytes_per_s = draw { 1e9, 5e9, 1e10 }, latency_us = 3 }
  local ok, p = pcall(plan, pp, micro, moe.pipeline[name] {}, { cluster = cluster(pp, nic) })
  assert(ok or tostring(p.message):find 'interleaved', p)  -- not for all micro-batches
  local times, send = {}, 0
  for _, rank in ipairs(ok and p.sim.pipeline or {}) do
    for _, turn in ipairs(rank.turns) do
      local s, work, m = turn.text:match '^(%d+)(%u)(%d+)$'
      times[work] = times[work] or {}
      times[work][s + 1] = times[work][s + 1] or {}
      times[work][s + 1][m + 1] = turn.end_ms - turn.begin_ms
    end
  end
  for _, span in ipairs(ok and p:spans { all_ranks = true } or {}) do
    if span.kind == 'receive' then send = math.max(send, span.end_ms - span.begin_ms) end
  end
  local t = ok and moe.pipeline_times { schedule = name, ranks = pp, micro_batches = micro,
    times = times, send = { mode = 'link', f = send, b = send } }
  for r, rank in ipairs(ok and p.sim.pipeline or {}) do
    for i, turn in ipairs(rank.turns) do
      local e = t.entries[r][i]
      assert(e.text == turn.text and math.abs(e.begin - turn.begin_ms) < 1e-12 * t.step
        and math.abs(e['end'] - turn.end_ms) < 1e-12 * t.step, name .. ' ' .. turn.text)
      compared = compared + 1
    end
  end
end
assert(compared > 1000, compared)
]=])
end)

test("no pass is said to be without effect because its order is that of the programs", function()
  expect.plans(HEAD .. [[
local function of(pass)
  return plan(2, 2, nil, { cluster = cluster(4, { bytes_per_s = 1e9, latency_us = 3 }),
    system = moe.system 'mix' { pass, moe.pipeline['1f1b'] {} } })
end
local serial, dw = of(moe.pass.serial {}), of(moe.pass.dw_schedule {})
assert(dw.sim.iteration_ms < serial.sim.iteration_ms)
for _, idle in ipairs(dw:explain().idle) do assert(not idle.why:find 'the same', idle.why) end
]])
end)

test("any takes the shortest of the schedules that exist and fit", function()
  expect.plans(HEAD .. [[
local shortest, best = math.huge, nil
local list = { moe.pipeline['1f1b'] {}, moe.pipeline.zb_v {},
  moe.pipeline.interleaved { group = 4 }, moe.pipeline.dualpipe {} }
for i, label in ipairs { '1f1b', 'zb_v', 'interleaved group=4' } do
  local ms = plan(4, 4, list[i]).sim.iteration_ms
  if ms < shortest then shortest, best = ms, label end
end
local p = plan(4, 4, moe.pipeline.any { of = list })  -- dualpipe needs 8
assert(p.sim.iteration_ms == shortest and p.choice == best, p.choice)
assert(plan(4, 8, moe.pipeline.any {}).choice)
assert(not plan(1, 2, moe.pipeline.any {}).choice)
]])
end)

test("wrong grids and schedules of a plan name the field and the remedy", function()
  expect.plans(HEAD .. "plan(3, 4, nil)", "8 blocks cannot be spread evenly over 3 stages")
  expect.plans(HEAD .. [[plan(2, 4, nil, { grid = moe.grid { pp = 2, micro_batches = 4,
    layout = 'Ettt|ttttL' } }) ]], "grid.layout: it has 7 decoder blocks, but the model has 8")
  expect.plans(HEAD .. [[plan(2, 4, nil, { grid = moe.grid { pp = 2, micro_batches = 4,
    layout = 'Ett|tt|tt|ttL' } }) ]], "it has 4 stages, but the schedule has 2")
  expect.plans(HEAD .. [[plan(2, 2, moe.pipeline.table { csv = '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B0',
    chunks = 1, micro_batches = 2 })]], "twice on rank 2: 1B0", "missing: 1B1")
  expect.plans(HEAD .. [[plan(2, 2, moe.pipeline.table { csv = '0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0',
    chunks = 1, micro_batches = 2 })]], "deadlock on rank 1: 0B0")
end)
