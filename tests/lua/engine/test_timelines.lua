-- What shows a step takes it from a result; nothing is simulated for it.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local routing = moe.workload 'zipf' { drift = 0.3, seed = 1 }
local function plan(system)
  return moe.plan { cluster = moe.cluster.p4de { nodes = 1 }, system = moe.system(system) {},
    model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 16, heads = 2, seq = 8,
      batch_per_device = 2, experts_per_device = 1, routing = routing } }
end
local p, q = plan 'raf', plan 'deepspeed'
local sim = p.core:simulate { steps = 3, keep = 'all' }
local last = p.core:simulate { steps = 3, keep = 'last', links = true }
]]

test("a simulation keeps the steps that it is asked to, each as long as its sample says", function()
  expect.plans(HEAD .. [[
local function long(timelines, step)
  local ms = 0
  for _, s in ipairs(p.core:spans { timelines = timelines, step = step, all_ranks = true }) do
    ms = math.max(ms, s.end_ms)
  end
  return ms
end
for step, ms in ipairs(sim.samples_ms) do
  assert(math.abs(long(sim.timelines, step) - ms) < 1e-9, step)
  local e = p.core:explain { timelines = sim.timelines, step = step }
  assert(math.abs(e.iteration_ms - ms) < 1e-9, step)
end
assert(long(sim.timelines) == long(p.held.timelines, 1))
assert(long(last.timelines) == long(sim.timelines, 3))
local with, without = p.core:trace { { timelines = last.timelines } },
  p.core:trace { { timelines = sim.timelines } }
assert(with:find '"percent":' and not without:find '"percent":')  -- of what a link carries
assert(with:find '"GiB":' and without:find '"GiB":' and with:find '"waits_for":"data of')
]])
end)

test("a step is shown of a result of its own plan that has it, or not at all", function()
  for _, call in ipairs { "trace", "spans", "explain" } do
    for given, message in pairs {
      [""] = "no result is given; give a result of plan:run",
      ["timelines = q.held.timelines"] = "the result is of another plan",
      ["timelines = sim.timelines, step = 4"] =
        "the result has no timeline of step 4; it has those of steps 1 to 3",
      ["timelines = last.timelines, step = 1"] =
        "the result has no timeline of step 1; it has those of steps 3 to 3",
    } do
      expect.plans(HEAD .. ("p.core:%s%s"):format(call, (call == "trace" and "{{ %s }}" or "{ %s }")
        :format(given)), call .. ": " .. message)
    end
  end
end)
