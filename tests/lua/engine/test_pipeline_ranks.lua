-- What a plan and its simulation say of pipeline ranks.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local function plan(pp, micro, schedule, more)
  local t = { model = moe.model.gpt2_moe { vocab = 512, layers = 8, hidden = 64, heads = 4,
      seq = 64, batch_per_device = 2, experts_per_device = 2 },
    cluster = moe.cluster.custom { nodes = pp, devices_per_node = 1, nics_per_node = 1,
      intra = { bytes_per_s = 1e11, latency_us = 1 }, nic = { bytes_per_s = 5e9, latency_us = 3 },
      device = { gemm_flops_per_s = 1e13, vector_flops_per_s = 1e12, memory_bytes_per_s = 1e12 } },
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

-- The time of each kind of turn of each stage, from a plan's spans of its second micro-batch.
local TIMES = [[
local function times_of(p, stages, layers)
  local ops, t, step = {}, { F = {}, I = {}, W = {} }, 0
  for s = 1, stages do t.F[s], t.I[s], t.W[s] = 0, 0, 0 end
  for line in p:text():gmatch '[^\n]+' do
    local name, phase, rest = line:match '(%S+) (forward) (.*)$'
    if not name then name, phase, rest = line:match '(%S+) (backward) (.*)$' end
    if name then
      ops[name] = { kind = phase == 'forward' and 'F' or (rest .. ' '):find ' dw ' and 'W' or 'I',
        micro = tonumber(rest:match 'micro=(%d+)' or 0),
        layer = tonumber(rest:match 'layer=(%d+)' or -1), segment = rest:match '^%S+' }
    end
  end
  for _, span in ipairs(p:spans { all_ranks = true }) do
    local op = ops[span.op]
    if op and span.lane:find '^compute' and op.segment ~= 'update' then
      step = math.max(step, span.end_ms)
      local s = op.layer >= 0 and math.floor(op.layer * stages / layers) + 1
        or op.segment == 'embed' and 1 or stages
      if op.micro == 1 then t[op.kind][s] = t[op.kind][s] + span.end_ms - span.begin_ms end
    end
  end
  return t, step
end
]]

test("a step of turns I and W takes the time that moe.pipeline_times says", function()
  expect.plans(HEAD .. TIMES .. [=[
for _, c in ipairs { { 'v_min', 4, 8, 8 }, { 'v_half', 4, 9, 8 }, { 'zb_h2', 4, 11, 4 } } do
  local p = plan(c[2], c[3], moe.pipeline[c[1]] {})
  local times, step = times_of(p, c[4], 8)
  local send = 0
  for _, span in ipairs(p:spans { all_ranks = true }) do
    if span.kind == 'receive' then send = math.max(send, span.end_ms - span.begin_ms) end
  end
  local t = moe.pipeline_times { schedule = c[1], ranks = c[2], micro_batches = c[3],
    times = times, send = { mode = 'link', f = send, b = send } }
  -- The first micro-batch's weight gradients add to nothing, so they are a little shorter.
  assert(step <= t.step * 1.000001 and step > t.step * 0.9985, ('%s: %g, %g'):format(c[1], step,
    t.step))
end
]=])
end)

test("wrong grids and schedules of a plan name the field and the remedy", function()
  expect.plans(HEAD .. "plan(3, 4, nil)", "8 blocks cannot be spread evenly over 3 stages")
  expect.plans(HEAD .. "plan(2, 4, moe.pipeline.dualpipe {}, { optimizer = { clip_norm = 1 } })",
    "grid.pp: optimizer.clip_norm")
  expect.plans(HEAD .. [[plan(2, 4, nil, { grid = moe.grid { pp = 2, micro_batches = 4,
    layout = 'Ettt|ttttL' } }) ]], "grid.layout: it has 7 decoder blocks, but the model has 8")
  expect.plans(HEAD .. [[plan(2, 4, nil, { grid = moe.grid { pp = 2, micro_batches = 4,
    layout = 'Ett|tt|tt|ttL' } }) ]], "it has 4 stages, but the schedule has 2")
  expect.plans(HEAD .. [[plan(2, 2, moe.pipeline.table { csv = '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B0',
    chunks = 1, micro_batches = 2 })]], "twice on rank 2: 1B0", "missing: 1B1")
  expect.plans(HEAD .. [[plan(2, 2, moe.pipeline.table { csv = '0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0',
    chunks = 1, micro_batches = 2 })]], "deadlock on rank 1: 0B0")
end)
