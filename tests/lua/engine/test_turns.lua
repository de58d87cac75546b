-- Steps of many micro-batches that are composed of turns (moe.plan with detail = "turns").
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local function fields(o, detail)
  local model = { layers = 8, hidden = 64, heads = 4, seq = 64, vocab = 512,
    batch_per_device = 1, ep = 2 }
  for key, value in pairs(o.model or {}) do model[key] = value end
  if o.decoder then
    model.kv_heads, model.head_dim, model.expert_ffn = 2, 16, 64
  else
    model.experts = 4
  end
  return { model = moe.model[o.decoder and 'mixtral_8x7b' or 'gpt2_moe'](model), detail = detail,
    cluster = moe.cluster.a100 { nodes = o.nodes or 1, stack = o.stack },
    system = moe.system(o.system or 'raf') { moe.pipeline[o.pipeline or '1f1b'] {} },
    grid = moe.grid { pp = o.pp or 2, tp = o.tp, micro_batches = o.micro or 8 } }
end
]]

local DETAIL = select(2, HEAD:match("^(.-)detail = detail"):gsub("\n", "")) + 1

test("a composed step is the simulated one to the nanosecond, and so is its idle time", function()
  expect.plans(HEAD .. [=[
local state = 7
local function pick(list)
  state = (state * 1103515245 + 12345) % 2 ^ 31
  return list[math.floor(state / 2 ^ 31 * #list) + 1]
end
for n = 1, 24 do
  local o = { pp = pick { 2, 4 }, micro = pick { 8, 12, 16, 24 }, decoder = n % 2 == 0,
    system = pick { 'raf', 'lancet_dw', 'megatron', 'deepspeed' },
    pipeline = pick { '1f1b', 'interleaved', 'zb_h1', 'dualpipev', 'zb_v', 'gpipe' } }
  o.tp = o.decoder and o.pp == 2 and 2 or nil
  local whole = moe.plan(fields(o))
  local step = moe.plan(fields(o, 'turns')):simulate()
  local what = table.concat({ o.system, o.pipeline, o.pp, o.micro, tostring(o.decoder) }, ' ')
  assert(math.abs(step.iteration_ms - whole.sim.iteration_ms) < 5e-7, what)
  assert(step.composed_of <= o.micro, what)
  for rank, r in ipairs(whole.sim.pipeline) do
    assert(math.abs(step.idle_ms[rank] - whole.sim.iteration_ms + r.busy_ms) < 5e-7, what)
  end
  local peak = whole:memory().peak_bytes
  assert(not step.peak_bytes or math.abs(step.peak_bytes / peak - 1) < 0.05, what)
end
local gpipe = moe.plan(fields({ pipeline = 'gpipe', micro = 24 }, 'turns')):simulate()
assert(gpipe.composed_of < 24 and not gpipe.peak_bytes)  -- each micro-batch is held
local few = moe.plan(fields({ micro = 24 }, 'turns'))
assert(few:simulate().composed_of < 24 and few:simulate().peak_bytes)
assert(few:turns(2) == moe.plan(fields { micro = 24 }):turns(2))
assert(few:simulate().tokens_per_s > 0)
]=])
end)

test("a composed step waits for the host as the simulated one does", function()
  expect.plans(HEAD .. [=[
for _, stack in ipairs { 'megatron', { host_launch_us = 10, host_op_us = 300, ops = {} } } do
  for _, system in ipairs { 'raf', 'megatron' } do
    for _, pipeline in ipairs { '1f1b', 'interleaved', 'zb_h1' } do
      local o = { decoder = true, system = system, pipeline = pipeline, micro = 12, stack = stack }
      local whole, step = moe.plan(fields(o)), moe.plan(fields(o, 'turns'))
      assert(whole.sim.host_bound_ms > 0.2 * whole.sim.iteration_ms)
      local apart = step:simulate().iteration_ms / whole.sim.iteration_ms - 1
      assert(math.abs(apart) < 1e-9, system .. pipeline .. apart)
    end
  end
end
]=])
end)

test("what cannot be composed is refused by name, at the line that asks for it", function()
  local function refused(o, text)
    expect.fails(HEAD .. "moe.plan(fields(" .. o .. ", 'turns'))\n", DETAIL, text)
  end
  refused("{ pp = 1 }", "moe.plan.detail: 'turns' composes the turns of pipeline ranks, but the "
    .. "grid has one; give grid.pp, or omit detail")
  refused("{ model = { routing = moe.workload 'zipf' {} } }", "moe.plan.detail: 'turns' is not "
    .. "allowed with model.routing, since micro-batches differ; omit it")
  refused("{ system = 'prophet' }", "moe.plan.detail: 'turns' is not allowed with a placement of "
    .. "experts, since micro-batches differ; omit it")
  expect.plans(HEAD .. "moe.plan(fields({}, 'turns')):explain()\n", "recipe.lua:16: ",
    "unknown method 'explain'")
end)

test("ops of a pipeline rank's stages have names with the number of the chunk", function()
  expect.plans(HEAD .. [[
local text = moe.plan(fields { decoder = true, pp = 2, tp = 2, pipeline = 'interleaved' }):text()
assert(text:find 'own_ids%.c1' and not text:find '%.c%d%d')
]])
end)
