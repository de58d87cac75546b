-- MTP layers (decoder.lua). That pipeline ranks and meshes compute what one rank does is also
-- tests/mesh_matrix.lua's.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require 'moe'
local function model(fields)
  local t = { vocab = 64, layers = 2, hidden = 16, heads = 2, seq = 8, batch = 4, experts = 8,
    dense_layers = 1, q_rank = 8, kv_rank = 8, nope = 8, rotary = 4, value_dim = 8, k = 2, ep = 1,
    expert_ffn = 8, shared_ffn = 8, ffn = 24, rope_scaling = 'none', attention_scale = 0,
    router = { scores = 'sigmoid', weight = 'renorm', scale = 2.5, groups = 2, top_groups = 1,
      group_score = 'top2' },
    mtp_layers = 2, mtp_factor = 0.3 }
  for key, value in pairs(fields or {}) do t[key] = value or nil end
  return moe.model.deepseek_v3(t)
end
local function train(fields, more)
  local t = { model = model(fields), ranks = 1, steps = 3, precision = 'f64', poison = true,
    init = 'reference', tokens = 'reference', optimizer = { name = 'sgd', lr = 0.5, momentum = 0 } }
  for key, value in pairs(more or {}) do t[key] = value end
  return moe.train(t)
end
]]

-- Of the modules of transformers 5.24 in float64, joined as the paper says; three steps.
test("losses of MTP layers are those of PyTorch", function()
  expect.plans(HEAD .. [[
local r = train()
local theirs = { { 4.15442166027745, 0.622766618835729, 0.622095828172331 },
  { 4.19657635040668, 0.628829534560105, 0.6248506287379 },
  { 4.14168392349741, 0.62131667834495, 0.627739647412491 } }
for step, row in ipairs(theirs) do
  local ours = { r.losses[step], unpack(r.mtp_losses[step]) }
  for i, loss in ipairs(row) do
    assert(math.abs(loss - ours[i]) < 1e-11, ('%d %d %.15g'):format(step, i, ours[i]))
  end
end
local single = train({}, { precision = 'f32' })
assert(math.abs(single.mtp_losses[3][2] - r.mtp_losses[3][2]) < 1e-6)
]])
end)

test("gradients of MTP layers are those of the loss", function()
  expect.plans(HEAD .. [[
local list = moe.check_gradients { model = model(), ranks = 1, tokens = 'reference' }
local seen = {}
for _, g in ipairs(list) do  -- the loss, about 5, has no digits for changes below 1e-6 of it
  assert(g.error < 1e-6 or g.norm < 1e-5, g.parameter)
  seen[g.parameter] = g.norm > 1e-5
end
assert(seen['b2.mtp.proj.w'] and seen['b3.mtp.enorm.w'] and seen['b3.ex.fc1.w'] and seen.wte)
]])
end)

test("MTP layers are equal on several ranks, in a stage of their own or in the last", function()
  expect.plans(HEAD .. [[
local grids = { { 2, { pp = 2, micro_batches = 2 } }, { 4, { pp = 4, micro_batches = 2,
    layout = 'Et|t|mm|L' } }, { 4, { pp = 2, tp = 2, micro_batches = 2, layout = 'Ett|mmL' } },
  { 2, { cp = 2, micro_batches = 2 } } }
for _, tied in ipairs { false, true } do
  local one = train({ tied = tied or nil }, { grid = moe.grid { micro_batches = 2 } })
  for i, case in ipairs(grids) do
    local many = not (tied and i == 2) and train({ tied = tied or nil }, { ranks = case[1],
      grid = moe.grid(case[2]) }) or one
    for name, x in pairs(one.param_l2) do
      assert(math.abs(x - many.param_l2[name]) <= 1e-9 * x, name)
    end
    for k = 1, 2 do assert(math.abs(one.mtp_losses[3][k] - many.mtp_losses[3][k]) < 1e-9) end
  end
end
]])
end)

test("MTP layers are counted as blocks, and without them all is as before", function()
  expect.plans(HEAD .. [[
local with, without = model(), model { mtp_layers = false, mtp_factor = false }
-- A block with experts, the projection and three norms beside the block's two.
local all, active = with:parameters()
local before, used = without:parameters()
local latent = 8 * 16 + 8 + 2 * 12 * 8 + 12 * 16 + 8 + 2 * 16 * 8 + 16 * 16
local rest = latent + 2 * 16 * 16 + 5 * 16 + 3 * 16 * 8 + 8 * 16
assert(all - before == 2 * (rest + 8 * 3 * 16 * 8), all - before)
assert(active - used == 2 * (rest + 2 * 3 * 16 * 8), active - used)
assert(with:flops() - without:flops() > 2 * 2 * (64 * 16 + 2 * 16 * 16))
assert(#train({ mtp_layers = false, mtp_factor = false }).mtp_losses[1] == 0)
]])
end)

test("what MTP layers cannot be is named", function()
  local function fails(text, ...) expect.plans(HEAD .. text, ...) end
  fails("model { mtp_layers = 0 }", "mtp_factor: has no effect without MTP layers")
  fails("train { seq = 2 }", "model.seq = 2: MTP layer 2 predicts no token of it")
  fails("moe.infer { model = model(), ranks = 1 }", "moe.infer.model: has mtp_layers = 2")
  fails("train({}, { ranks = 2, grid = moe.grid { pp = 2, layout = 'Et|tmL' } })",
    "grid.layout: it has 1 MTP layers (m), but the model has mtp_layers = 2")
  fails("train({}, { ranks = 2, grid = moe.grid { pp = 2, layout = 'Et|mmL' } })",
    "grid.layout: it has 1 decoder blocks, but the model has 2")
  fails("train({ tied = true }, { ranks = 4, grid = moe.grid { pp = 4, layout = 'Et|t|mm|L' } })",
    "grid.layout: 3 pipeline ranks would hold the parameter 'wte'")
end)
