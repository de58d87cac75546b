-- Routing weights that the experts' activation multiplies by (the pass weights_at_experts): a step
-- is that of weights at combine, and the rows that come back are not kept.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local P = moe.pass
local function deepseek(fields)
  local all = { vocab = 96, layers = 3, dense_layers = 1, hidden = 16, heads = 2, q_rank = 8,
    kv_rank = 8, nope = 8, rotary = 4, value_dim = 8, experts = 8, k = 2, expert_ffn = 8,
    shared_ffn = 8, ffn = 24, seq = 8, batch_per_device = 2,
    router = { groups = 2, top_groups = 1 } }
  for key, value in pairs(fields) do all[key] = value end
  return moe.model.deepseek_v3(all)
end
]]

test("a step with the weights at the experts is that with them at combine", function()
  expect.plans(HEAD .. [[
local function run(model, passes, ranks, micro)
  return moe.train { model = model, ranks = ranks, steps = 3, precision = 'f64',
    system = #passes > 0 and moe.system 's' (passes) or moe.system 'plain' {},
    init = 'reference', tokens = 'reference', optimizer = { name = 'adamw' },
    grid = moe.grid { micro_batches = micro } }
end
local function apart(a, b)
  local worst = 0
  for _, key in ipairs { 'grad_l2', 'param_l2' } do
    for name, x in pairs(a[key]) do
      worst = math.max(worst, math.abs(x - b[key][name]) / math.max(1e-9, math.abs(x)))
    end
  end
  for i, loss in ipairs(a.losses) do worst = math.max(worst, math.abs(loss - b.losses[i])) end
  return worst
end
local MODELS = {
  dropless = deepseek { capacity = 'none' }, of_two = deepseek { capacity = 'none', ep = 2 },
  capacity = deepseek { capacity_factor = 1, balance_loss = { coefficient = 0.01 } },
}
local MIXES = {
  padded = {}, rows = { P.irregular_a2a {}, P.used_rows {} }, computed = { P.used_rows {} },
  recompute = { P.irregular_a2a {}, P.used_rows {}, P.recompute {}, P.zero {} },
  placed = { P.prophet {} }, shadowed = { P.fastermoe_shadowing {}, P.dw_schedule {} },
  ultraep = { P.ultraep {} }, blocking = { P.irregular_a2a {}, P.blocking_a2a {} },
}
local PLACED = { prophet = true, fastermoe_shadowing = true, ultraep = true }
for of, model in pairs(MODELS) do
  for name, passes in pairs(MIXES) do
    local places = passes[1] and PLACED[passes[1].name]
    for _, ranks in ipairs { 1, 4 } do
      if not (of == 'of_two' and (ranks == 1 or places)) then
        local with = { P.weights_at_experts {} }
        for _, pass in ipairs(passes) do with[#with + 1] = pass end
        local d = apart(run(model, passes, ranks, 2), run(model, with, ranks, 2))
        assert(d < 1e-12, of .. ' ' .. name .. ' ' .. ranks .. ': ' .. d)
      end
    end
  end
end
]])
end)

test("rows that are cut are refused by name; a bias behind the activation keeps weights", function()
  local plan = HEAD .. [[
local function plan(model, ...) return moe.plan { model = model, system = moe.system 's' { ... },
  cluster = moe.cluster.p4de { nodes = 2 } } end
local function of_16(fields) fields.experts = 16 return deepseek(fields) end
]]
  for pass, op in pairs { ["capacity_pipeline { degree = 2 }"] = "b1.moe.a2a_2.concat0",
      ["fastermoe_pipeline {}"] = "b1.moe.a2a_2.join",
      ["hierarchical_a2a {}"] = "b1.moe.a2a_2.order",
      ["partition { parts = 2, before = 0, after = 0 }"] = "b1.moe.dispatch_weight" } do
    expect.plans(plan .. "plan(of_16 { capacity_factor = 4 }, P.weights_at_experts {}, P." .. pass
      .. ")", "stage '", op, pass:match "%S+")
  end
  expect.plans(plan .. [[
local p = plan(moe.model.gpt2_moe { vocab = 96, layers = 2, hidden = 16, heads = 2, seq = 8,
  batch_per_device = 2, experts_per_device = 1 }, P.weights_at_experts {})
local stage = p:info().stages[1]
assert(not stage.changed)
local function returned(...)
  local p = plan(of_16 { capacity = 'none', batch_per_device = 64 }, P.irregular_a2a {},
    P.used_rows {}, ...)
  for _, part in ipairs(p:memory().peak_parts) do
    if part.what == 'rows of exchanges' then return part.bytes end
  end
end
assert(returned(P.weights_at_experts {}) < 0.7 * returned())
]])
end)
