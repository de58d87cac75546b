-- moe.gap: a step that was made slower by one change is explained by that change.
local moe = require "moe"
local test = require "test"

local function model(t)
  t.layers, t.hidden, t.heads, t.seq, t.batch_per_device = 4, 256, 4, 128, 4
  t.experts, t.capacity, t.gate = 16, "none", "top_k"
  return moe.model.gpt2_moe(t)
end

local cluster = moe.cluster.h100 { nodes = 2 }
local megatron = moe.system "megatron" {}

-- The step's time with one change, as a recipe would make it.
local CHANGED = {
  host = { system = moe.system "megatron" { stack = "eager_2021" } },
  recompute = { system = moe.system "megatron" { recompute = "blocks" } },
  imbalance = { model = model { routing = moe.workload "zipf" { max_over_mean = 1.5 } } },
  ["exposed gradients"] = { system = moe.system "megatron" { all_reduce = {
    lane = "comm", place = "after", bucket_bytes = 160e6 } } },
}

test("what was changed about a step comes first, with the time that it has", function()
  for what, fields in pairs(CHANGED) do
    local made = moe.plan { model = fields.model or model {}, cluster = cluster,
      system = fields.system or megatron }
    local g = moe.gap { model = model {}, cluster = cluster, system = megatron,
      measured_ms = made:simulate().iteration_ms }
    local first
    for _, one in ipairs(g) do
      if one.what == what and math.abs(one.apart_ms) < 1e-9 then first = one end
    end
    assert(first, what .. ": no candidate has the time of this change")
    assert(math.abs(g[1].apart_ms) < 1e-9, what .. ": the first is " .. g[1].change)
    for i = 2, #g do
      assert(math.abs(g[i - 1].apart_ms) <= math.abs(g[i].apart_ms), "they are not in order")
    end
  end
end)

test("slower clocks make a step longer, and what cannot be planned says why", function()
  local g = moe.gap { model = model {}, cluster = cluster, system = megatron, measured_ms = 1,
    clocks = { 0.5, 0.25 } }
  local half, quarter
  for _, one in ipairs(g) do
    half = one.change:find "50%%" and one.ms or half
    quarter = one.change:find "25%%" and one.ms or quarter
  end
  assert(g.predicted_ms < half and half < quarter, "clocks")
  assert(g.refused[1] and g.refused[1].why:find "no times")
end)
