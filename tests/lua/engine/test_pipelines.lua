-- moe.pipeline_times, moe.pipeline_layout and all schedules, on the engine.
local expect = require "expect"
local test = require "test"

local HEAD = 'local moe = require "moe"\n'

-- Returns the value of an expression of a recipe.
local function value(text) return expect.runs(HEAD .. "T = " .. text).globals.T end

-- Runs a recipe that compares numbers; none may differ.
local function compares(text)
  expect.equal(expect.runs([[
local moe = require "moe"
T = {}
local function equal(got, expected, ...)
  for rank, one in ipairs(type(got) == "table" and got or { got }) do
    local number = type(expected) == "function" and expected(rank) or expected
    if one ~= number then T[#T + 1] = table.concat({ one, "not", number, ... }, " ") end
  end
end
-- Returns moe.pipeline_times of a schedule with times of all stages.
local function times(name, P, V, M, F, I, W, more)
  local fields = { schedule = name, ranks = P, chunks = V, micro_batches = M, entries = false,
    times = { F = F, I = I, W = W } }
  for key, field in pairs(more or {}) do fields[key] = field end
  return moe.pipeline_times(fields)
end
local function for_all_times(f)
  for F = 1, 5 do for I = 1, 5 do for W = 1, 5 do f(F, I, W) end end end
end
]] .. text).globals.T, {})
end

local function fails(fields, line, ...)
  expect.fails(HEAD .. "moe.pipeline_times {\n " .. fields .. " }", line, ...)
end

test("the schedules have the orders of their sources", function()
  local function rows(name, ranks, chunks, micro_batches)
    return value(([[moe.pipeline_times { schedule = "%s", ranks = %d, chunks = %d,
      micro_batches = %d }]]):format(name, ranks, chunks, micro_batches)).rows
  end
  expect.equal(rows("gpipe", 2, 1, 2), { "0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1" })
  expect.equal(rows("looped_bfs", 2, 2, 2)[1], "0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0")
  expect.equal(rows("interleaved", 2, 2, 2), { "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1",
    "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1" })
  expect.equal(rows("combined_1f1b", 1, 1, 3),
    { "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2" })
  expect.equal(rows("combined_1f1b", 2, 2, 2)[2], "1F0,1F1,3F0,(3F1;3B0)OVERLAP_F_B,3B1,1B0,1B1")
  expect.equal(rows("paired_1f1b", 2, 1, 4)[2],
    "1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,(1F3;1B2)OVERLAP_F_B,1B3")
  expect.equal(rows("zb_h2", 2, 1, 4), { "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3",
    "1F0,1I0,1F1,1I1,1F2,1I2,1W0,1F3,1I3,1W1,1W2,1W3" })
  expect.equal(rows("zb_v", 2, 2, 3)[2],
    "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2")
  expect.equal(rows("v_half", 2, 2, 4)[2],
    "1F0,2F0,1F1,2F1,2I0,2W0,1I0,1W0,1F2,2F2,2I1,1I1,2W1,1F3,1W1,2F3,2I2,1I2,2I3,1I3,2W2,2W3,1W2,"
      .. "1W3")
  expect.equal(rows("v_min", 3, 2, 3)[3],
    "2F0,3F0,2F1,3F1,3I0,2I0,3W0,2W0,3I1,2F2,3F2,2I1,3W1,2W1,3I2,2I2,3W2,2W2")
  expect.equal(rows("dualpipe", 2, 2, 4), {
    "0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1",
    "0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3" })
  expect.equal(rows("dualpipev", 1, 2, 3),
    { "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,(0F2;1B1)OVERLAP_F_B,(1F2;0B1)OVERLAP_F_B,1B2,0I2,"
      .. "0W2" })
end)

test("wherever a schedule exists it is without faults, and a table of its rows is the same",
  function()
    local legal = value [[{} for name, chunks in pairs { gpipe = 1, looped_bfs = 3,
      combined_1f1b = 2, paired_1f1b = 1, zb_h2 = 1, zb_v = 2, v_half = 2, v_min = 2, dualpipe = 2,
      ["1f1b"] = 1, interleaved = 2, interleaved_torch = 3, zb_h1 = 2, dualpipev = 2 } do
      T[name] = 0
      for ranks = 1, 7 do for micro_batches = 1, 16 do
        local ok, t = pcall(moe.pipeline_times, { schedule = name, ranks = ranks, chunks = chunks,
          micro_batches = micro_batches })
        if ok then
          local text = table.concat(assert(t.rows, name), "\n")
          local placement = (name:find "^v_" or name == "zb_v" or name == "dualpipev") and "v"
          local again = moe.pipeline_times { table = text, ranks = ranks, chunks = chunks,
            placement = placement or name == "dualpipe" and "two_way" or "loop",
            micro_batches = micro_batches }
          assert(again.rows and table.concat(again.rows, "\n") == text, name)
          T[name] = T[name] + 1
        end
      end end
    end]]
    expect.equal(legal, { gpipe = 112, looped_bfs = 112, paired_1f1b = 112, zb_h2 = 112,
      zb_v = 112, v_half = 112, v_min = 112, combined_1f1b = 24, dualpipe = 15, ["1f1b"] = 112,
      interleaved = 24, interleaved_torch = 74, zb_h1 = 90, dualpipev = 63 })
  end)

test("bubbles of 1f1b and its like have their closed forms", function()
  compares [[
for _, q in ipairs { { 1, 5 }, { 2, 1 }, { 5, 7 }, { 8, 4 } } do
  local P, M = unpack(q)
  for_all_times(function(F, I, W)
    local r = times("1f1b", P, 1, M, F, I, W)
    equal(r.bubble, (P - 1) * (F + I + W), "1f1b", P, M)
    equal(r.peak, function(rank) return math.min(P + 1 - rank, M) end, "1f1b's peak", P, M)
    r = times("gpipe", P, 1, M, F, I, W)
    equal(r.bubble, (P - 1) * (F + I + W), "gpipe", P, M)
    equal(r.peak, M, "gpipe's peak", P, M)
  end)
end
for _, q in ipairs { { 2, 2, 4 }, { 4, 3, 16, 6 }, { 3, 4, 9 }, { 4, 2, 7, 7 } } do
  local P, V, M, N = unpack(q)
  for_all_times(function(F, I, W)
    local r = times("interleaved", P, V, M, F, I, W, { group = N })
    equal(r.bubble, (P - 1) * (F + I + W), "interleaved", P, V, M)
    equal(r.peak, function(rank) return (V - 1) * (N or P) + 2 * (P - rank) + 1 end, "its peak")
    for _, FB in ipairs { math.max(F, I + W), F + I + W } do
      r = times("combined_1f1b", P, V, M, F, I, W,
        { group = N, pair = { rule = "fixed", value = FB } })
      equal(r.peak, function(rank)
        return math.min((V - 1) * (N or P) + 2 * (P - rank) + 2, M * V)
      end, "combined's peak")
      if (N or P) == P and M >= 2 * P then
        equal(r.bubble, function(rank)
          return (P - 1) * (F + I + W) - 2 * (P - rank) * (F + I + W - FB)
        end, "combined", P, V, M)
      end
    end
  end)
end
for _, q in ipairs { { 4, 2, 3 }, { 5, 3, 2 }, { 8, 2, 1 } } do
  local P, V, M = unpack(q)
  equal(times("interleaved_torch", P, V, M, 2, 3, 1).bubble, (P - 1 + (V - 1) * (P - M)) * 6)
end]]
end)

test("bubbles of schedules with W have their closed forms", function()
  compares [[
for _, P in ipairs { 2, 3, 5 } do
  for_all_times(function(F, I, W)
    local bubble, most = (P - 1) * (F + I - W), 0
    local r, exact = times("zb_h1", P, 1, 2 * P + 1, F, I, W, { keep_w = 0.25 }), true
    for _, one in ipairs(r.bubble) do exact = exact and one == bubble end
    equal(exact and 1 or 0, W <= math.min(F, I) and 1 or 0, "zb_h1", P, F, I, W)
    equal(r.peak, function(rank) return P - 0.75 * (rank - 1) end, "zb_h1's peak", P)
    r = times("zb_h2", P, 1, 2 * P, F, I, W)
    for _, one in ipairs(r.inner) do most = math.max(most, one) end
    if I <= F or W <= F then equal(most, (P - 1) * math.max(0, F + I - 2 * W), "zb_h2", P) end
    equal(r.peak, 2 * P - 1, "zb_h2's peak", P)
    for _, FB in ipairs(F >= I and { math.max(F, I + W), F + I + W } or {}) do
      local fixed = { pair = { rule = "fixed", value = FB } }
      for name, R in pairs { dualpipe = 2 * P, dualpipev = P } do
        r = times(name, R, 2, 2 * R + 2 * P, F, I, W, fixed)
        equal(r.bubble, function(rank)
          local h = name == "dualpipe" and math.min(rank - 1, R - rank) or rank - 1
          return (P - 1) * (FB + F - W - math.min(I, W)) - math.max(0, P - 2 - h) * (F + I + W - FB)
        end, name, P, F, I, W)
        equal(r.peak, 2 * P + 1, name .. "'s peak", P)
      end
    end
  end)
end
for P = 3, 9 do
  local function of(name) return times(name, P, 2, 2 * P + 1, 1, 1, 1) end
  local zb_v, half, min = of "zb_v", of "v_half", of "v_min"
  equal(zb_v.inner, 0, "zb_v's inner", P)
  equal(zb_v.bubble, P - 1, "zb_v", P)
  equal(zb_v.peak, 2 * P, "zb_v's peak", P)
  equal(math.max(unpack(half.bubble)), 3 * P - (P % 2 == 0 and 7 or 4), "v_half", P)
  equal(math.max(unpack(half.peak)), P + (P % 2 == 0 and 2 or 1), "v_half's peak", P)
  equal(math.max(unpack(min.bubble)), 4 * P - (P % 3 == 0 and 7 or 5), "v_min", P)
  equal(math.max(unpack(min.peak)), 2 * math.ceil((P + 2) / 3), "v_min's peak", P)
end
-- A long pipeline takes a time that is linear in its turns.
equal(times("1f1b", 64, 1, 1024, 1, 1, 1).bubble, 63 * 3)]]
end)

test("a schedule that does not exist is refused at the recipe's line, with a code", function()
  local function refused(code, name, ranks, chunks, micro_batches, more)
    fails(('ranks = %g, chunks = %g, micro_batches = %g, %s\n schedule = "%s"'):format(ranks,
      chunks, micro_batches, more or "", name), nil, code)
  end
  for _, name in ipairs { "1f1b", "gpipe", "paired_1f1b", "zb_h2" } do
    refused(name .. ": one_stage_a_rank", name, 4, 2, 8)
  end
  for _, name in ipairs { "zb_v", "v_half", "v_min", "dualpipe", "dualpipev" } do
    refused("two_stages_a_rank", name, 3, 3, 5)
  end
  for _, name in ipairs { "interleaved", "combined_1f1b" } do
    refused("needs_virtual_stages", name, 4, 1, 6)
    refused("group_below_ranks", name, 4, 2, 8, "group = 2,")
    refused("group_above_micro_batches", name, 4, 2, 8, "group = 9,")
    refused("short_last_group", name, 4, 2, 15, "group = 6,")
  end
  refused("needs_ranks", "interleaved", 1, 2, 8)
  refused("one_rank_one_stage", "combined_1f1b", 1, 2, 8)
  refused("uneven_rounds", "interleaved_torch", 4, 2, 9)
  refused("uneven_rounds", "zb_h1", 4, 2, 9)
  refused("odd_ranks", "dualpipe", 3, 2, 5)
  refused("odd_micro_batches", "dualpipe", 4, 2, 5)
  refused("too_few_micro_batches", "dualpipe", 4, 2, 6)
  refused("too_few_micro_batches", "dualpipev", 3, 2, 5)
  refused("bad_number", "1f1b", 0, 1, 8)
  refused("bad_number", "nonesuch", 4, 1.5, 8)
  refused("bad_number", "interleaved", 4, 2, 8, "group = 0,")
  fails('schedule = "zb_b",\n ranks = 2, micro_batches = 2', 3,
    "moe.pipeline_times.schedule: unknown schedule 'zb_b'", "unknown_schedule")
  fails('ranks = 4, micro_batches = 6,\n schedule = "interleaved"', 4,
    "moe.pipeline_times.schedule: interleaved: short_last_group")
end)

test("fields that are wrong, or have no effect, are errors at their line", function()
  fails('schedule = "1f1b", ranks = 2,\n micro_batch = 2', 4, "unknown key 'micro_batch'")
  fails('schedule = "1f1b", micro_batches = 2', nil, "moe.pipeline_times.ranks: is missing")
  fails('schedule = "1f1b", table = "0F0", ranks = 2, micro_batches = 2', nil, "not both")
  for field, parts in pairs {
    ["group = 2"] = { "has no groups" }, ["stages = 2"] = { "has no effect beside schedule" },
    ["times = { F = { 1 }, I = 1, W = 1 }"] = { "has 1 numbers; give 2, one per stage" },
    ["times = { F = 1, I = 1 }"] = { "give F, and I and W" },
    ["times = { F = -1, I = 1, W = 1 }"] = { "times.F", "-1 is not allowed" },
    ['pair = { rule = "fixed" }'] = { "pair.value: is missing" },
    ["send = { links = { { 0, 2, 1 } } }"] = { "links[1]: give { from, to, time }" },
    ["send = { links = { { 0, 1 } } }"] = { "links[1]: give { from, to, time }" },
    ["keep_w = 2"] = { "keep_w: 2 is not allowed" },
  } do
    fails('schedule = "1f1b", ranks = 2, micro_batches = 2,\n ' .. field, 4, unpack(parts))
  end
  fails('schedule = "zb_v", ranks = 2, micro_batches = 4,\n times = { F = 1, B = 1 }', 4,
    "give the times I and W")
  fails('ranks = 2, micro_batches = 4, chunks = 3,\n schedule = moe.pipeline.zb_h1 { chunks = 2 }',
    3, "is not the schedule's own chunks = 2")
  fails('schedule = "1f1b", ranks = 1e5,\n micro_batches = 1e5', 4, "give fewer")
  expect.fails(HEAD .. "moe.pipeline.zbv {}", 2, "Did you mean 'zb_v'?")
  expect.fails(HEAD .. 'moe.system "x" { moe.pipeline.zb_v {}, moe.pipeline.zb_h1 {} }', 2,
    "has two pipeline schedules; give one")
end)

test("a schedule of the recipe is timed, checked and refused as built-in ones are", function()
  local function mine(body, fields)
    return HEAD .. ([[
local mine = moe.policy.pipeline { name = "mine", params = { odd = 0 }, chunks = 1,
  turns = function(p, rank, o)
    if p.micro_batches < 2 then p:refuse("too_few", "give 2") end
    for m = 1, p.micro_batches do p:forward(m) end
    %s
    for m = 1, p.micro_batches do p:dx(m) end
    for m = 1, p.micro_batches - o.odd do p:dw(m) end
  end }
T = moe.pipeline_times { schedule = %s,
ranks = 2, times = { F = 1, I = 1, W = 1 } }]]):format(body, fields)
  end
  local t = expect.runs(mine("", "mine {}, micro_batches = 2")).globals.T
  expect.equal(t.rows, { "0F0,0F1,0I0,0I1,0W0,0W1", "1F0,1F1,1I0,1I1,1W0,1W1" })
  expect.equal(t.entries[1][3], { text = "0I0", begin = 4, ["end"] = 5 })
  expect.equal({ t.step, t.busy, t.bubble, t.inner, t.sending, t.peak },
    { 8, { 6, 6 }, { 2, 2 }, { 2, 0 }, { 0, 0 }, { 2, 2 } })
  t = expect.runs(mine("", "mine { odd = 1 }, micro_batches = 2")).globals.T
  expect.equal(t, { errors = { { code = "missing", action = "0W1" },
    { code = "missing", action = "1W1" } } })
  expect.fails(mine("", "mine {}, micro_batches = 1"), 10, "mine: too_few: give 2")
  for body, message in pairs { ["p:forward(3)"] = "micro-batch: 3 is not allowed",
    ["p:dw(1, { chunk = 2 })"] = "chunk: 2 is not allowed",
    ["p:dw(1, { beside = true })"] = "give it to p:forward",
    ["p:forward(1, { besides = true })"] = "Did you mean 'beside'?" } do
    expect.fails(mine(body, "mine {}, micro_batches = 2"), 6, message)
  end
  expect.fails(mine("p:forward(1, { beside = true })", "mine {}, micro_batches = 2"), 7,
    "give p:backward as the next turn")
  expect.fails(mine("if true then p:forward(1, { beside = true }) return end",
    "mine {}, micro_batches = 2"), 10, "the last turn has beside = true, but no backward follows")
  expect.fails(HEAD .. 'moe.policy.pipeline { name = "zb_v", turns = print }', 2, "another name")
end)

-- Returns what is wrong with a table, each as "code rank action", sorted; by default it has two
-- ranks, stages and micro-batches.
local function faults(text, more)
  local all = {}
  local t = value(("moe.pipeline_times { table = %q, ranks = 2, %s }"):format(text,
    more or "micro_batches = 2"))
  for i, e in ipairs(t.errors or {}) do
    all[i] = ("%s %s %s"):format(e.code, e.rank or "-", e.action)
  end
  table.sort(all)
  return all
end

local GOOD = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1"

test("each fault of a table is found, and what has no meaning is none", function()
  expect.equal(faults(GOOD), {})
  expect.equal(faults "# rows\n\n 0F0 ,,0F1,0B0, 0B1, # first\r\n,1F0,1F1,\t1B0,1B1\n\n", {})
  local function found(text, ...) expect.equal(faults(text), { ... }) end
  for _, cell in ipairs { "F0", "0F", "0X0", "-1F0", "0F0B", "(0F0;0B1)", "0F0;0B1", "0SEND_F0",
    "(0B0;0F1)OVERLAP_F_B", "(0F0;0I1)OVERLAP_F_B", "0SEND_W0" } do
    found(cell .. "," .. GOOD, "bad_action 1 " .. cell)
  end
  found("0F0,0F1,0B0,0B1,2F0,0F2,0F99999999999\n1F0,1F1,1B0,1B1", "out_of_range 1 0F2",
    "out_of_range 1 0F2147483647", "out_of_range 1 2F0")
  found("0F0," .. GOOD, "twice 1 0F0")
  found("0F0,0F1,0B0\n1F0,1I0,1F1,1W1", "missing - 0B1", "missing - 1I1", "missing - 1W0")
  found("0F0,0F1,0B0,0I0,0W0,0B1\n1F0,1F1,1B0,1B1", "whole_and_split 1 0B0")
  found("0F0,0F1,0B0,0B1,1F0\n1F1,1B0,1B1", "wrong_rank 1 1F0")
  found("0B0,0F0,0I1,0F1,0W1\n1F0,(1F1;1B1)OVERLAP_F_B,1B0", "backward_before_forward 1 0B0",
    "backward_before_forward 1 0I1", "backward_before_forward 2 1B1")
  found("0F0,0F1,0W0,0I0,0B1\n1F0,1F1,1B0,1B1", "weight_before_input 1 0W0")
  found("0F0,0B0,0F1,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1", "deadlock 1 0B0",
    "deadlock 2 (1F1;1B0)OVERLAP_F_B")
  local v = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0"
  expect.equal(faults(v, 'stages = 4, micro_batches = 1, placement = "v"'), {})
  expect.equal(#faults(v, "stages = 4, micro_batches = 1"), 4)
  local two_way = 'micro_batches = 2, placement = "two_way"'
  expect.equal(faults("0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1", two_way), {})
  expect.equal(#faults(GOOD, two_way), 4)
  fails('table = "0F0\\n1F0\\n2F0",\n ranks = 2, micro_batches = 1', 3, "3 rows for 2 ranks")
  fails('table = "# nothing",\n micro_batches = 1', 3, "no rows")
end)

test("transfers that are spelled out are complete, in order, and each at its rank", function()
  local function found(receives, ...)
    expect.equal(faults("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n" .. receives,
      "micro_batches = 2, transfers = true"), { ... })
  end
  local good = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"
  found(good)
  found("1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1", "send_receive_order 2 1RECV_F1")
  found("1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1", "receive_missing 2 1RECV_F1",
    "send_missing 2 1SEND_B1")
  found(good .. ",1SEND_F0,0SEND_F0", "out_of_range 2 1SEND_F0", "twice 2 0SEND_F0",
    "wrong_rank 2 0SEND_F0")
  expect.equal(faults("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
    "micro_batches = 1, transfers = true"), { "deadlock 1 0RECV_B0", "deadlock 2 1RECV_F0" })
end)

-- Returns the times of a table with F, I and W of 1, begin and end of the turns of each rank first.
local function timed(text, ranks, micro_batches, more)
  local t = value(("moe.pipeline_times { table = %q, ranks = %d, micro_batches = %d,\n"
    .. "times = { F = 1, I = 1, W = 1 }, %s }"):format(text, ranks, micro_batches, more or ""))
  local spans = {}
  for rank, entries in ipairs(t.entries) do
    spans[rank] = {}
    for _, entry in ipairs(entries) do
      table.insert(spans[rank], entry.begin)
      table.insert(spans[rank], entry["end"])
    end
  end
  return spans, t
end

test("transfers are at once, on a link, or occupy their sender", function()
  local function sent(mode)
    return timed(GOOD, 2, 2, ('send = { f = 3, b = 1, mode = "%s" }'):format(mode))
  end
  expect.equal(sent "async", { { 0, 1, 1, 2, 9, 11, 11, 13 }, { 4, 5, 5, 6, 6, 8, 8, 10 } })
  expect.equal(sent "link"[2], { 4, 5, 7, 8, 8, 10, 10, 12 })
  local spans, t = sent "blocking"
  expect.equal(spans, { { 0, 1, 4, 5, 12, 14, 15, 17 }, { 4, 5, 8, 9, 9, 11, 12, 14 } })
  expect.equal({ t.step, t.busy, t.bubble, t.inner, t.sending },
    { 17, { 6, 6 }, { 11, 11 }, { 11, 4 }, { 6, 2 } })
  spans = timed("0F0,0B0\n1F0,1B0\n2F0,2B0", 3, 1,
    "send = { f = 1, b = 1, links = { { 1, 2, 5 } } }")
  expect.equal({ spans[3], spans[1] }, { { 8, 9, 9, 11 }, { 0, 1, 15, 17 } })
  -- The pair runs from 12 (2B0 ends at 9 and is sent until 13) to 16; then 2 and 4 are sent.
  spans = timed("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n2F0,2B0,2F1,2B1", 3, 2,
    'send = { f = 2, b = 4, mode = "blocking" }')
  expect.equal({ spans[3], spans[1] },
    { { 6, 7, 7, 9, 18, 19, 19, 21 }, { 0, 1, 3, 4, 22, 24, 31, 33 } })
end)

test("a pair waits for both halves, and takes as long as its rule says", function()
  for rule, ends in pairs { ['"sum"'] = 12, ['"max"'] = 11, ['"fixed", value = 2.5'] = 11.5,
    ['"saving", value = 0.5'] = 11.5, ['"saving", value = 9'] = 11 } do
    local spans = timed("0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n"
      .. "1F0,2F0,(1F1;2B0)OVERLAP_F_B,2F1,1B0,2B1,1B1", 2, 2,
      'placement = "v", stages = 4, send = { f = 1, b = 1 }, pair = { rule = ' .. rule .. "}")
    expect.equal({ spans[2][5], spans[2][6] }, { 9, ends })
  end
end)

test("stages have times and weights of their own, and no rank waits for W", function()
  local function first(text, M, more)
    return value(("moe.pipeline_times { table = %q, micro_batches = %d, %s }"):format(text, M,
      more))
  end
  local text = "0F0,0B0\n1F0,1I0,1W0"
  local t = first(text, 1, "times = { F = { 1, 2 }, B = { 10, 20 }, I = { 3, 4 }, W = { 5, 6 } }")
  expect.equal({ t.entries[1][2].begin, t.step, t.entries[2][3] },
    { 7, 17, { text = "1W0", begin = 7, ["end"] = 13 } })
  expect.equal(first(text, 1, "times = { F = { 1, 2 }, I = { 3, 4 }, W = { 5, 6 } }").step, 15)
  t = first("0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1", 2, "ranks = 1, stages = 2, act = { 3, 1 }")
  expect.equal(t.peak, { 8 })
  local split = "0F0,0I0,0F1,0I1,0F2,0W0,0I2,0W1,0W2"
  expect.equal(first(split, 3, "ranks = 1, keep_w = 0.5").peak, { 2 })
  expect.equal(first(split, 3, "ranks = 1, keep_w = 0").peak, { 1 })
  t = value(("moe.pipeline_times { ranks = 2, schedule = moe.pipeline.table { csv = %q, "
    .. "chunks = 1, micro_batches = 1 } }"):format(text))
  expect.equal(t, { rows = { "0F0,0B0", "1F0,1I0,1W0" }, peak = { 1, 1 } })
end)

test("a layout has the layers of all stages, and of each rank's", function()
  local function layout(text, ranks)
    return value(("moe.pipeline_layout { layout = %q, ranks = %d }"):format(text, ranks))
  end
  expect.equal(layout("E||t|mL", 2), { stages = { "E", "", "t", "mL" },
    of_rank = { { "E", "t" }, { "", "mL" } } })
  expect.equal(layout("Et*3|(tt|)*2,m|L", 5).stages, { "Ettt", "tt", "tt", "m", "L" })
  expect.equal(layout(" E | | (t (t|) * 2)*2 ,L", 7).stages,
    { "E", "", "tt", "t", "tt", "t", "L" })
  expect.equal(layout("E|*3t*0L", 4).stages, { "E", "", "", "L" })
  for code, texts in pairs { stages_not_multiple = { "Et|t|L" }, mtp_before_decoder = { "Etm|tL" },
    unknown_symbol = { "Ex|L", "E(t|L", "Et)|L", "E*|L", "*2E|L", "Ett*q|L", "(Et)2|L", "E*2*2|L" },
    embedding = { "t|L", "tE|L", "|EtL", "Et|EL" }, loss = { "E|t", "EL|t", "E|LtL" },
    ["more than"] = { "E(t*99999)*99999L" } } do
    for _, text in ipairs(texts) do
      expect.fails(HEAD .. ("moe.pipeline_layout { ranks = 2,\n layout = %q }"):format(text), 3,
        "moe.pipeline_layout.layout: ", code)
    end
  end
  expect.fails(HEAD .. 'moe.pipeline_layout { layout = "EL",\n ranks = 0 }', 3, "bad_number")
end)
