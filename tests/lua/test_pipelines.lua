-- moe.pipeline_times, moe.pipeline_layout and the schedules in Lua, on the engine.
local expect = require "expect"
local test = require "test"

local HEAD = 'local moe = require "moe"\n'

-- Returns the value of an expression of a recipe.
local function value(text) return expect.runs(HEAD .. "T = " .. text).globals.T end

-- Returns moe.pipeline_times of a schedule with F, I, W of all stages in `times`.
local function times(name, ranks, chunks, micro_batches, F, I, W, more)
  return value(([[moe.pipeline_times { schedule = "%s", ranks = %d, chunks = %d,
    micro_batches = %d, times = { F = %g, I = %g, W = %g }, entries = false, %s }]]):format(name,
    ranks, chunks, micro_batches, F, I, W, more or ""))
end

local function most(list) return math.max(unpack(list)) end

local function fails(fields, line, ...)
  expect.fails(HEAD .. "moe.pipeline_times {\n " .. fields .. " }", line, ...)
end

local function each_equal(list, expected, what)
  for rank, got in ipairs(list) do
    expect.equal(got, expected, ("%s of rank %d"):format(what, rank))
  end
end

test("the schedules in Lua have the orders of their sources", function()
  local function rows(name, ranks, chunks, micro_batches)
    return value(([[moe.pipeline_times { schedule = "%s", ranks = %d, chunks = %d,
      micro_batches = %d }]]):format(name, ranks, chunks, micro_batches)).rows
  end
  expect.equal(rows("gpipe", 2, 1, 2), { "0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1" })
  expect.equal(rows("looped_bfs", 2, 2, 2), { "0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0",
    "1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0" })
  expect.equal(rows("combined_1f1b", 1, 1, 3),
    { "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2" })
  expect.equal(rows("combined_1f1b", 2, 2, 2)[2], "1F0,1F1,3F0,(3F1;3B0)OVERLAP_F_B,3B1,1B0,1B1")
  expect.equal(rows("paired_1f1b", 2, 1, 4), {
    "0F0,0F1,0F2,(0F3;0B0)OVERLAP_F_B,0B1,0B2,0B3",
    "1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,(1F3;1B2)OVERLAP_F_B,1B3" })
  expect.equal(rows("zb_h2", 2, 1, 4), { "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3",
    "1F0,1I0,1F1,1I1,1F2,1I2,1W0,1F3,1I3,1W1,1W2,1W3" })
  expect.equal(rows("zb_v", 2, 2, 3), {
    "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2",
    "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2" })
  expect.equal(rows("dualpipe", 2, 2, 4), {
    "0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1",
    "0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3" })
end)

test("wherever a schedule exists it is without faults, also of fewer micro-batches", function()
  local legal = value [[{} for name, chunks in pairs { gpipe = 1, looped_bfs = 3,
    combined_1f1b = 2, paired_1f1b = 1, zb_h2 = 1, zb_v = 2, v_half = 2, v_min = 2,
    dualpipe = 2 } do
    T[name] = 0
    for ranks = 1, 7 do for micro_batches = 1, 16 do
      local ok, t = pcall(moe.pipeline_times, { schedule = name, ranks = ranks, chunks = chunks,
        micro_batches = micro_batches })
      if ok then
        assert(t.rows, name)
        T[name] = T[name] + 1
      end
    end end
  end]]
  expect.equal(legal, { gpipe = 112, looped_bfs = 112, paired_1f1b = 112, zb_h2 = 112, zb_v = 112,
    v_half = 112, v_min = 112, combined_1f1b = 8 + 5 + 4 + 3 + 2 + 2, dualpipe = 7 + 5 + 3 })
end)

test("bubbles and activations have their closed forms", function()
  for _, t in ipairs { { 1, 1, 1 }, { 3, 4, 2 }, { 2, 5, 3 }, { 4, 4, 1 } } do
    local F, I, W = unpack(t)
    local B = I + W
    local r = times("gpipe", 4, 1, 6, F, I, W)
    each_equal(r.bubble, 3 * (F + B), "gpipe's bubble")
    each_equal(r.peak, 6, "gpipe's peak")
    local pair = math.max(F, B)
    r = times("combined_1f1b", 4, 2, 12, F, I, W, 'pair = { rule = "max" }')
    for rank, bubble in ipairs(r.bubble) do
      expect.equal(bubble, 3 * (F + B) - 2 * (4 - rank) * (F + B - pair), "combined's bubble")
      expect.equal(r.peak[rank], 4 + 2 * (4 - rank) + 2, "combined's peak")
    end
    each_equal(times("zb_h2", 4, 1, 8, F, I, W).peak, 7, "zb_h2's peak")
    if I <= F or W <= F then
      expect.equal(most(times("zb_h2", 4, 1, 8, F, I, W).inner), 3 * math.max(0, F + I - 2 * W),
        "zb_h2's inner")
    end
    r = times("dualpipe", 8, 2, 20, I + 1, I, W, ('pair = { rule = "fixed", value = %g }'):format(
      2 * I + W))
    for rank, bubble in ipairs(r.bubble) do
      local h = math.min(rank - 1, 8 - rank)
      expect.equal(bubble, 3 * (2 * I + W + I + 1 - W - math.min(I, W)) - math.max(0, 2 - h),
        "dualpipe's bubble")
    end
    each_equal(r.peak, 9, "dualpipe's peak")
  end
  for ranks = 3, 9 do
    local M, even = 2 * ranks + 1, ranks % 2 == 0
    local zb_v = times("zb_v", ranks, 2, M, 1, 1, 1)
    each_equal(zb_v.inner, 0, "zb_v's inner")
    each_equal(zb_v.bubble, ranks - 1, "zb_v's bubble")
    each_equal(zb_v.peak, 2 * ranks, "zb_v's peak")
    local half, min = times("v_half", ranks, 2, M, 1, 1, 1), times("v_min", ranks, 2, M, 1, 1, 1)
    expect.equal(most(half.bubble), 3 * ranks - (even and 7 or 4), "v_half's bubble")
    expect.equal(most(half.peak), ranks + (even and 2 or 1), "v_half's peak")
    expect.equal(most(min.bubble), 4 * ranks - (ranks % 3 == 0 and 7 or 5), "v_min's bubble")
    expect.equal(most(min.peak), 2 * math.ceil((ranks + 2) / 3), "v_min's peak")
  end
end)

test("a schedule that does not exist is refused at the recipe's line, with a code", function()
  local function refused(name, ranks, chunks, micro_batches, code, more)
    fails(('ranks = %g, chunks = %g, micro_batches = %g, %s\n schedule = "%s"'):format(ranks,
      chunks, micro_batches, more or "", name), nil, code)
  end
  refused("gpipe", 4, 2, 8, "one_stage_a_rank")
  refused("paired_1f1b", 4, 2, 8, "one_stage_a_rank")
  refused("zb_h2", 4, 2, 8, "one_stage_a_rank")
  refused("combined_1f1b", 4, 1, 8, "needs_virtual_stages")
  refused("combined_1f1b", 1, 2, 8, "one_rank_one_stage")
  refused("combined_1f1b", 4, 2, 8, "group_below_ranks", "group = 2,")
  refused("combined_1f1b", 4, 2, 8, "group_above_micro_batches", "group = 9,")
  refused("combined_1f1b", 4, 2, 9, "short_last_group")
  for _, name in ipairs { "zb_v", "v_half", "v_min", "dualpipe" } do
    refused(name, 3, 3, 5, "two_stages_a_rank")
  end
  refused("dualpipe", 3, 2, 5, "odd_ranks")
  refused("dualpipe", 4, 2, 5, "odd_micro_batches")
  refused("dualpipe", 4, 2, 6, "too_few_micro_batches")
  refused("interleaved", 4, 2, 6, "short_last_group")
  refused("1f1b", 0, 1, 8, "bad_number")
  refused("nonesuch", 4, 1.5, 8, "bad_number")
  refused("interleaved", 4, 2, 8, "bad_number", "group = 0,")
  fails('schedule = "zb_b",\n ranks = 2, micro_batches = 2', 3,
    "moe.pipeline_times.schedule: unknown schedule 'zb_b'", "unknown_schedule")
  fails('ranks = 4, micro_batches = 6,\n schedule = "interleaved"', 4,
    "moe.pipeline_times.schedule: interleaved: short_last_group: 6 micro-batches")
end)

test("fields that are wrong, or have no effect, are errors at their line", function()
  fails('schedule = "1f1b", ranks = 2,\n micro_batch = 2', 4, "unknown key 'micro_batch'")
  fails('schedule = "1f1b", micro_batches = 2', nil, "moe.pipeline_times.ranks: is missing")
  fails('schedule = "1f1b", table = "0F0", ranks = 2, micro_batches = 2', nil, "not both")
  local head = 'schedule = "1f1b", ranks = 2, micro_batches = 2,\n '
  fails(head .. "group = 2", 4, "has no groups")
  fails(head .. "stages = 2", 4, "has no effect beside schedule")
  fails(head .. "times = { F = { 1 }, I = 1, W = 1 }", 4, "has 1 numbers; give 2, one per stage")
  fails(head .. "times = { F = 1, I = 1 }", 4, "give F, and I and W")
  fails(head .. "times = { F = -1, I = 1, W = 1 }", 4, "times.F: -1 is not allowed")
  fails(head .. 'pair = { rule = "fixed" }', 4, "pair.value: is missing")
  fails(head .. "send = { links = { { 0, 2, 1 } } }", 4, "links[1][2]: 2 is not allowed")
  fails(head .. "keep_w = 2", 4, "keep_w: 2 is not allowed")
  fails('schedule = "zb_v", ranks = 2, micro_batches = 4,\n times = { F = 1, B = 1 }', 4,
    "give the times I and W")
  fails('ranks = 2, micro_batches = 4, chunks = 3,\n schedule = moe.pipeline.zb_h1 { chunks = 2 }',
    3, "is not the schedule's own chunks = 2")
  expect.fails(HEAD .. "moe.pipeline.zbv {}", 2, "Did you mean 'zb_v'?")
  expect.fails(HEAD .. 'moe.system "x" { moe.pipeline.zb_v {} }', 2,
    "pipelines are not executed in systems yet")
end)

local MINE = [[
local mine = moe.policy.pipeline { name = "mine", params = { odd = 0 }, chunks = 1,
  turns = function(p, rank, o)
    if p.micro_batches < 2 then p:refuse("too_few", "give 2") end
    for m = 1, p.micro_batches do p:forward(m) end
    %s
    for m = 1, p.micro_batches do p:dx(m) end
    for m = 1, p.micro_batches - o.odd do p:dw(m) end
  end }
]]

test("a schedule of the recipe is timed, checked and refused as built-in ones are", function()
  local function mine(body, fields)
    return HEAD .. MINE:format(body) .. "T = moe.pipeline_times { schedule = " .. fields .. ",\n"
      .. "ranks = 2, times = { F = 1, I = 1, W = 1 } }"
  end
  local t = expect.runs(mine("", "mine {}, micro_batches = 2")).globals.T
  expect.equal(t.rows, { "0F0,0F1,0I0,0I1,0W0,0W1", "1F0,1F1,1I0,1I1,1W0,1W1" })
  expect.equal(t.entries[1][3], { text = "0I0", begin = 4, ["end"] = 5 })
  expect.equal({ t.step, t.busy, t.bubble, t.inner, t.sending, t.peak },
    { 8, { 6, 6 }, { 2, 2 }, { 2, 0 }, { 0, 0 }, { 2, 2 } })
  t = expect.runs(mine("", "mine { odd = 1 }, micro_batches = 2")).globals.T
  expect.equal(t.errors, { { code = "missing", action = "0W1" },
    { code = "missing", action = "1W1" } })
  expect.equal({ t.rows, t.step }, {})
  expect.fails(mine("", "mine {}, micro_batches = 1"), 10, "mine: too_few: give 2")
  expect.fails(mine("p:forward(3)", "mine {}, micro_batches = 2"), 6, "micro-batch 3 is not")
  expect.fails(mine("p:dw(1, { chunk = 2 })", "mine {}, micro_batches = 2"), 6, "chunk 2")
  expect.fails(mine("p:dw(1, { beside = true })", "mine {}, micro_batches = 2"), 6, "p:forward")
  expect.fails(mine("p:forward(1, { besides = true })", "mine {}, micro_batches = 2"), 6, "beside")
  expect.fails(mine("p:forward(1, { beside = true })", "mine {}, micro_batches = 2"), 7,
    "give p:backward as the next turn")
  expect.fails(HEAD .. 'moe.policy.pipeline { name = "zb_v", turns = print }', 2, "another name")
end)

test("a table is checked, or timed as its schedule is", function()
  local text = "0F0,0F1,,0B0,0B1\\n,1F0,1B0,1F1,1B1"
  local t = value(([[moe.pipeline_times { table = "%s", micro_batches = 2,
    stages = 2, times = { F = { 2, 2 }, I = 2, W = 1 },
    send = { f = 0.5, b = 0.5 } }]]):format(text))
  expect.equal({ t.step, t.rows[2], t.entries[2][4].begin }, { 16, "1F0,1B0,1F1,1B1", 9.5 })
  local v = value(([[moe.pipeline_times { ranks = 2, schedule = moe.pipeline.table
    { csv = "%s", chunks = 1, micro_batches = 2 } }]]):format(text))
  expect.equal(v.rows, t.rows)
  t = value [[moe.pipeline_times { table = "0F0,0B0,0B0", ranks = 1, micro_batches = 1 }]]
  expect.equal(t, { errors = { { code = "twice", rank = 1, action = "0B0" } } })
  t = value [[moe.pipeline_times { table = "0F0,0SEND_F0,0B0\n1F0,1B0,1SEND_B0", ranks = 2,
    micro_batches = 1, stages = 2, transfers = true }]]
  expect.equal(t.errors, { { code = "receive_missing", rank = 2, action = "1RECV_F0" },
    { code = "receive_missing", rank = 1, action = "0RECV_B0" } })
  fails('table = "0F0",\n placement = "two_way", stages = 3, ranks = 1, micro_batches = 1', 4,
    "as many as ranks")
end)

test("a layout has the layers of all stages, and of each rank's", function()
  local l = value [[moe.pipeline_layout { layout = "E||t|mL", ranks = 2 }]]
  expect.equal(l, { stages = { "E", "", "t", "mL" }, of_rank = { { "E", "t" }, { "", "mL" } } })
  expect.fails(HEAD .. 'moe.pipeline_layout { ranks = 2,\n layout = "Et|t|L" }', 3,
    "moe.pipeline_layout.layout: stages_not_multiple")
  expect.fails(HEAD .. 'moe.pipeline_layout { layout = "EL",\n ranks = 0 }', 3, "bad_number")
end)
