-- moe.gap: a step that was made slower by one change is explained by that change.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require "moe"
local function model(t)
  t.layers, t.hidden, t.heads, t.seq, t.batch_per_device = 4, 256, 4, 128, 4
  t.experts, t.capacity, t.gate = 16, "none", "top_k"
  return moe.model.gpt2_moe(t)
end
local cluster, small = moe.cluster.h100 { nodes = 2 }, 1e6
local function megatron(t)
  t.all_reduce = t.all_reduce or { lane = "comm_reduce", place = "ready", bucket_bytes = small }
  return moe.system "megatron" (t)
end
local function gap(t)
  t.model, t.cluster, t.system = model {}, cluster, megatron {}
  return moe.gap(t)
end
]]

test("what was changed about a step comes first, with the time that it has", function()
  for what, fields in pairs {
    host = "system = megatron { stack = 'eager_2021' }",
    recompute = "system = megatron { recompute = 'blocks' }",
    imbalance = "model = model { routing = moe.workload 'zipf' { max_over_mean = 1.5 } }",
    ["exposed gradients"] = "system = megatron { all_reduce = { lane = 'comm', place = 'after', "
      .. "bucket_bytes = small } }",
  } do
    expect.plans(HEAD .. ([[
local fields = { %s }
local made = moe.plan { model = fields.model or model {}, cluster = cluster,
  system = fields.system or megatron {} }
local g = gap { measured_ms = made:simulate().iteration_ms }
assert(g.predicted_ms ~= g.measured_ms, "the change has no effect")
local first
for i, one in ipairs(g) do
  first = first or one.what == "%s" and math.abs(one.apart_ms) < 1e-9
  assert(i == 1 or math.abs(g[i - 1].apart_ms) <= math.abs(one.apart_ms), "not in order")
end
assert(first and math.abs(g[1].apart_ms) < 1e-9, g[1].change)
]]):format(fields, what))
  end
end)

test("slower clocks make a step longer, and what cannot be planned says why", function()
  expect.plans(HEAD .. [[
local g, at = gap { measured_ms = 1, clocks = { 0.5, 0.25 } }, {}
for _, one in ipairs(g) do at[one.change:match "(%d+)%%" or one.change] = one.ms end
assert(g.predicted_ms < at["50"] and at["50"] < at["25"])
assert(g.refused[1].why:find "no times")
]])
end)
