-- moe.dispatch and all dispatchers, on the engine.
local expect = require "expect"
local test = require "test"

-- Two nodes of two ranks with two experts each, one token per rank: both choices on the own rank;
-- both on one remote rank; one node, two ranks; two nodes.
local HEAD = [[
local moe = require "moe"
local function call(more)
  local t = { ranks = 4, ranks_per_node = 2, experts = 8, topk = 2, hidden = 128,
    choices = { { { 1, 2 } }, { { 7, 8 } }, { { 5, 7 } }, { { 2, 6 } } }, dispatch = "bf16" }
  for key, value in pairs(more) do t[key] = value end
  return moe.dispatch(t)
end
]]

local function value(text) return expect.runs(HEAD .. text).globals.T end

test("each dispatcher sends the rows of its kind", function()
  local got = value [[
T = {}
for name in ("alltoallv two_level rank_dedup deepep_v1 deepep_v2 deepep_v2_direct deepep_ll "
    .. "hybridep allgather"):gmatch "%S+" do
  local there, back = call({ dispatcher = name }).dispatch, call({ dispatcher = name }).combine
  T[name] = ("%d %d %d x %d, %d"):format(there.rows.nvlink, there.rows.nic, there.rows["local"],
    there.row_bytes.nic, back.row_bytes.nic)
end]]
  expect.equal(got, { alltoallv = "2 3 3 x 260, 256", two_level = "3 3 5 x 260, 256",
    rank_dedup = "2 2 2 x 272, 256", deepep_v1 = "3 2 3 x 288, 272", deepep_v2 = "3 2 3 x 288, 288",
    deepep_v2_direct = "2 2 2 x 288, 288", deepep_ll = "2 3 3 x 272, 256",
    hybridep = "3 2 3 x 272, 256", allgather = "4 8 4 x 296, 256" })
end)

test("bytes are by pair of ranks, and buffers and computed rows beside them", function()
  local got = value [[T = call { dispatcher = "deepep_v1" }]]
  expect.equal(got.dispatch.nvlink_bytes, { { 0, 0, 0, 0 }, { 288, 0, 0, 0 }, { 0, 0, 0, 288 },
    { 0, 0, 288, 0 } })
  expect.equal(got.combine.nic_bytes, { { 0, 0, 0, 0 }, { 0, 0, 0, 272 }, { 0, 0, 0, 0 },
    { 0, 272, 0, 0 } })
  expect.equal(got.buffers, { received = { 512, 0, 512, 512 },
    by_expert = { 65536, 0, 65536, 65536 }, library = 25238144 })
  expect.equal(got.experts_computed.choices_per_rank, { 3, 0, 2, 3 })
  expect.equal(got.experts_computed.remote_node_rows, 2)
end)

test("moved between ranks, all dispatchers send what they count and give equal bits", function()
  value [[
for _, name in ipairs { "alltoallv", "two_level", "rank_dedup", "deepep_v1", "deepep_v2",
    "deepep_ll", "hybridep", "allgather" } do
  for _, dtype in ipairs { "bf16", "fp8" } do
    local got = call { dispatcher = name, dispatch = dtype, execute = true }
    assert(got.fnv1a == "e0561c6b3aaa4fe6", name)
    for from = 1, 4 do
      for to = 1, 4 do
        local sum = 0
        for _, way in ipairs { got.dispatch, got.combine } do
          local bytes = way.nvlink_bytes[from][to] + way.nic_bytes[from][to]
          assert(way.sent[from][to] == bytes, name)
          sum = sum + bytes
        end
        assert(got.sent[from][to] == sum)
      end
    end
  end
end]]
  expect.fails(HEAD .. [[local C = {}
for rank = 1, 32 do C[rank] = {} end
call { dispatcher = "alltoallv", ranks = 32, experts = 32, choices = C, execute = true }]], nil,
    "execute: 32 ranks are more than 16")
end)

test("a dispatcher of a recipe is as one of the library", function()
  local got = value [[
local pairs_of_nodes = moe.policy.dispatcher { name = "wide", sms = 8, params = { group = 4 },
  route = function(grid, cluster, o)
    assert(cluster.nodes == 2 and cluster.devices_per_node == 2 and o.sms == 6)
    return { there = { { forward = "rail", dedup = "node", group = o.group }, { dedup = "rank" } },
      reduce = "rank_node", dispatch_bytes = grid:payload(o.wire) + grid:align(9, 16),
      combine_bytes = grid:payload(o.combine) }
  end }
T = call { dispatcher = pairs_of_nodes { sms = 6 } }.dispatch]]
  -- All ranks are one domain of four, so that a token never leaves it by the first hop.
  expect.equal({ got.row_bytes.nic, got.rows.nvlink, got.rows.nic }, { 272, 2, 2 })
end)

test("what no dispatcher can serve is refused with the field", function()
  local own = "dispatcher = moe.policy.dispatcher { name = 'mine', route = function() return { "
    .. "there = %s, dispatch_bytes = %d, combine_bytes = 256 } end } {}"
  local one, two = "choices = { {}, {}, {}, { { 3, %d } } }", "{ { 3, 0 }, { 1, 0 } }"
  for fields, part in pairs {
    ["'deepep_v3'"] = "moe.dispatch.dispatcher: unknown dispatcher 'deepep_v3'",
    ["'deepep_v1', ranks_per_node = 3"] = "ranks: 4 is not a multiple of ranks_per_node",
    ["'deepep_v1', experts = 6"] = "experts: 6 is not a multiple of ranks = 4",
    ["'deepep_v1', sms = 21"] = "sms: 21 is not allowed; give an even number from 2 to 160",
    ["'deepep_v1', order = 'inter_first'"] = "order: is no option of the dispatcher",
    ["'two_level', order = 'last'"] = "order: 'last' is not allowed; give one of",
    ["'alltoallv', combine = 'fp8'"] = "combine: fp8 is not allowed",
    ["'alltoallv', hidden = 100"] = "hidden: 100 numbers in bf16 are no multiple of 16",
    ["'alltoallv', hidden = 192, dispatch = 'fp8'"] = "hidden: 192 is not a multiple of",
    ["'alltoallv', topk = 3"] = "choices[1][1]: has 2 entries; give topk = 3",
    ["'alltoallv', max_nodes = 1"] = "choices[4][1]: reaches more than max_nodes = 1",
    ["'alltoallv', expert_rank = { 1, 1, 1, 2, 2, 3, 4, 4 }"] = "expert_rank: has 8",
    ["'alltoallv', " .. one:format(3)] = "names expert 3 twice",
    ["'alltoallv', " .. one:format(9)] = "9 is not an expert",
    ["'allgather', " .. one:format(0)] = "an all-gather needs",
    ["'deepep_ll', max_tokens = 1, choices = { {}, {}, {}, " .. two .. " }"] =
      "max_tokens: rank 4 has 2 tokens",
    [own:format("{}", 256)] = "there: the list is empty",
    [own:format("{ {} }", 8)] = "dispatch_bytes: 8 is less than",
  } do
    expect.fails(HEAD .. ("call { %s%s }"):format(fields:find "^disp" and "" or "dispatcher = ",
      fields), nil, part)
  end
end)

local TIME = [[
local moe = require "moe"
local function time(more)
  local t = { dispatcher = "deepep_v1", gpu = "h100", ranks = 16, ranks_per_node = 8, experts = 256,
    topk = 8, hidden = 7168, tokens = 4096, dtype = "fp8", way = "dispatch", sms = 20 }
  for key, value in pairs(more or {}) do t[key] = value end
  return moe.dispatch_time(t)
end
]]

test("measured calls take the table's time, others that of the law, with a band", function()
  local got = expect.runs(TIME .. [[
T = { both = time { notify = true }, kernel = time(), bf16 = time { dtype = "bf16" },
  far = time { ranks = 128, max_nodes = 4 }, h800 = time { gpu = "h800" },
  op = 1e3 * moe.op_time { cluster = moe.cluster.h100 { nodes = 2 }, op = "dispatch", nodes = 2,
    sms = 20, tokens = 4096, hidden = 7168, topk = 8 }.ms }]]).globals.T
  expect.equal({ got.both.source, got.kernel.source, got.bf16.source, got.h800.source },
    { "table", "table", "fitted", "fitted" })
  expect.equal(got.both.us, got.op)
  -- Measured alone: 843.5 us, and 49.7 us for the counts.
  assert(math.abs(got.kernel.us / 843.5 - 1) < 0.03, got.kernel.us)
  assert(got.bf16.us > 1.6 * got.kernel.us and got.far.us > got.kernel.us)
  for _, one in pairs { got.both, got.kernel, got.bf16, got.far, got.h800 } do
    assert(one.lo < one.us and one.us < one.hi)
  end
  -- What was fitted on no row of 16 nodes has a band twice as wide.
  assert(got.far.hi / got.far.us - 1 > 1.9 * (got.bf16.hi / got.bf16.us - 1))
end)

test("times grow with tokens and fall with SMs", function()
  expect.runs(TIME .. [[
for _, name in ipairs { "deepep_v1", "deepep_v2", "deepep_v2_direct", "deepep_ll", "hybridep" } do
  for _, way in ipairs { "dispatch", "combine" } do
    local last = 0
    for tokens = 512, 8192, 512 do
      local t = { dispatcher = name, way = way, dtype = "bf16", tokens = tokens }
      local us = time(t).us
      t.sms = name ~= "deepep_ll" and 8 or nil
      assert(us > last and time(t).us >= us)
      last = us
    end
  end
end]])
end)

test("a time that nothing was measured for is refused", function()
  expect.fails(TIME .. "time { dispatcher = 'alltoallv' }", nil,
    "moe.dispatch_time.dispatcher: no times of 'alltoallv' were measured")
  expect.fails(TIME .. "time { dispatcher = 'deepep_v2', notify = true }", nil,
    "moe.dispatch_time.notify: no times of 'deepep_v2' with counts apart were measured")
  expect.fails(TIME .. "time { sms = 140 }", nil, "sms: 140 is not allowed; give an even number")
  expect.fails(TIME .. "time { hidden = 192 }", nil, "hidden: 192 is not a multiple of 128")
end)

local PLAN = [[
local moe = require "moe"
local function plan(more, model)
  local passes = { moe.pass.irregular_a2a {}, moe.pass.used_rows {}, moe.pass.serial {} }
  for _, one in ipairs(more) do passes[#passes + 1] = one end
  local t = { layers = 4, seq = 1024, batch_per_device = 1 }
  for key, value in pairs(model or {}) do t[key] = value end
  return moe.plan { model = moe.model.deepseek_v3(t), cluster = moe.cluster.h100 { nodes = 2 },
    system = moe.system "s" (passes) }
end
local function spans_of(p, text)
  local found = {}
  for _, span in ipairs(p:spans()) do
    if span.op:find(text) then found[#found + 1] = span end
  end
  return found
end
]]

test("a plan's exchanges take the law's time and the dispatcher's bytes", function()
  expect.plans(PLAN .. [[
local free = plan({ moe.dispatcher.deepep_v1 { wire = "bf16" } },
  { router = { groups = 1, top_groups = 1 } })
local limited = plan { moe.dispatcher.deepep_v1 { wire = "bf16" } }  -- to 4 of 8 groups of experts
for way, ops in pairs { dispatch = "^b3.moe.a2a_1$", combine = "^b3.moe.a2a_2$" } do
  local us = moe.dispatch_time { dispatcher = "deepep_v1", gpu = "h100", ranks = 16,
    ranks_per_node = 8, experts = 256, topk = 8, hidden = 7168, tokens = 1024, dtype = "bf16",
    way = way }.us
  local function ms(p)
    local span = spans_of(p, ops)[1]
    return span.end_ms - span.begin_ms, span.bytes
  end
  local all, bytes = ms(free)
  local part, fewer = ms(limited)
  -- Combines in bf16 are in the tables, from which the law is a few percent off.
  local off = math.abs(1e3 * all / us - 1)
  assert(off < (way == "dispatch" and 1e-3 or 0.15), ("%s: %g us, %g"):format(way, 1e3 * all, us))
  assert(part < all and fewer < bytes)
end]])
end)

test("with a workload the rows of its choices count: skew fills one rank's links", function()
  expect.plans(PLAN .. [[
local routed = {}
for _, skew in ipairs { 0, 1.5 } do
  local p = plan({ moe.dispatcher.deepep_v1 {} }, { routing = moe.workload "zipf" { s = skew } })
  local spans = spans_of(p, "^b3.moe.a2a_1$")
  routed[#routed + 1] = spans[1].end_ms - spans[1].begin_ms
end
assert(routed[2] > 1.3 * routed[1], routed[2] / routed[1])]])
end)

test("a dispatcher implies that rows in use are sent and computed, with a capacity too", function()
  expect.plans [[
local moe = require "moe"
local pass, v1 = moe.pass, moe.dispatcher.deepep_v1 {}
for _, capacity in ipairs { { capacity = "none" }, { capacity_factor = 1.5 } } do
  local function plan(passes)
    return moe.plan { model = moe.model.gpt2_moe(moe.merged({ layers = 2, hidden = 128, heads = 4,
      seq = 64, batch_per_device = 1, experts_per_device = 1 }, capacity)),
      cluster = moe.cluster.h100 { nodes = 2 }, system = moe.system "s" (passes) }:info()
  end
  local alone = plan { v1 }
  assert(alone.padded_rows == "")
  assert(alone.hash == plan { pass.irregular_a2a {}, pass.used_rows {}, v1 }.hash)
  assert(alone.hash ~= plan { pass.irregular_a2a {}, v1 }.hash)  -- a system may say so itself
  local copied = { pass.top_k { k = 2, shadows = 2 }, v1 }
  assert(plan(copied).padded_rows == "")
end]]
end)

test("what a dispatcher of a plan cannot do is refused", function()
  local function refused(passes, ...)
    expect.plans(([[local moe = require "moe"
moe.plan { model = moe.model.gpt2_moe { layers = 2, hidden = 128, heads = 4, seq = 64,
  batch_per_device = 1, experts_per_device = 1 }, cluster = moe.cluster.h100 { nodes = 2 },
  system = moe.system "s" { moe.pass.serial {}, %s } }]]):format(passes), ...)
  end
  refused("moe.dispatcher.deepep_v1 {}")  -- rows in use are counted, whatever the system lists
  refused("moe.pass.fastermoe_pipeline {}, moe.dispatcher.deepep_v1 {}", "goes in rounds",
    "leave out fastermoe_pipeline")
  refused("moe.pass.hierarchical_a2a {}, moe.dispatcher.deepep_v1 {}", "is one of two steps")
  refused("moe.dispatcher.deepep_ll { max_tokens = 63 }", "max_tokens: 63 is less than the 64")
  local part = "moe.pass.pipemoe { degrees = '2' }, moe.policy.dispatcher { name = 'all', "
    .. "route = function(g) return { there = { { dedup = 'rank' } }, to_all = true, "
    .. "times_of = 'deepep_v1', dispatch_bytes = g:payload 'bf16', "
    .. "combine_bytes = g:payload 'bf16' } end } {}"
  refused(part, "is a part along the rows in use, while an all-gather")
  expect.plans(PLAN .. "plan { moe.dispatcher.alltoallv {} }", "no times of 'alltoallv' were")
  expect.plans(PLAN .. "plan { moe.dispatcher.deepep_v1 { sms = 134 } }", "sms: 134 is not allowed")
  expect.plans(PLAN .. "plan { moe.dispatcher.deepep_v1 {}, moe.dispatcher.deepep_ll {} }",
    "has two dispatchers; give one")
end)

test("rows go to the copies of experts, and what a plan's dispatcher takes is told", function()
  expect.plans(PLAN .. [[
local function bytes(passes)
  local sum = 0
  for _, span in ipairs(spans_of(plan(passes, { routing = moe.workload "zipf" { s = 1.5 } }),
      "moe.a2a_1$")) do sum = sum + span.bytes end
  return sum
end
local v1 = moe.dispatcher.deepep_v1 {}
assert(bytes { v1, moe.pass.top_k { k = 8, shadows = 8 } } < 0.95 * bytes { v1 })
local p = plan { v1 }
local d = p:info().dispatcher
assert(d.name == "deepep_v1" and d.sms == 20 and d.host_sync)
assert(math.abs(d.slower - 132 / 112) < 1e-9)
-- Of two nodes half of the rows leave, where choices are even.
assert(math.abs(d.dispatch.nic_bytes / d.dispatch.logical_bytes - 0.5) < 0.02)
assert(d.dispatch.us >= d.dispatch.start_us + math.max(d.dispatch.nic_us, d.dispatch.nvlink_us))
local text = p:explain().text
for _, part in ipairs { "dispatcher deepep_v1: takes 20 SMs", "1.18 times as long",
    "the CPU waits for counts", "is bound by", "cross NICs" } do
  assert(text:find(part, 1, true), part)
end]])
end)

-- Trainings of four ranks on two emulated nodes; more: a shorter list of more dispatchers is in
-- recipes/every_mix.lua (dispatched = 40).
local TRAIN = [[
local moe = require "moe"
local D = moe.dispatcher
local WHOLE = { wire = "fp32", combine = "fp32" }
local function train(d, model, passes)
  local system = { moe.pass.irregular_a2a {}, moe.pass.serial {} }
  for _, one in ipairs(passes or {}) do system[#system + 1] = one end
  system[#system + 1] = d
  return moe.train { ranks = 4, steps = 2, precision = "f64", init = "reference", poison = true,
    tokens = "reference", system = moe.system "s" (system), model = model,
    link = { bytes_per_s = 1e12, devices_per_node = 2 } }
end
local function gpt2(more)
  local t = { vocab = 64, layers = 2, hidden = 128, heads = 2, seq = 8, batch_per_device = 1,
    experts = 8, ep = 4, gate = "top2", capacity = "none" }
  for key, value in pairs(more or {}) do t[key] = value end
  return moe.model.gpt2_moe(t)
end
local function apart(a, b)
  local worst = 0
  for _, key in ipairs { "losses", "grad_l2", "param_l2" } do
    for name, x in pairs(a[key]) do
      worst = math.max(worst, math.abs(x - b[key][name]) / math.max(1e-9, math.abs(x)))
    end
  end
  return worst
end
]]

test("a training under a dispatcher is that without one", function()
  expect.plans(TRAIN .. [[
for _, model in ipairs { gpt2(), gpt2 { gate = "expert_choice", capacity = nil } } do
  local none = train(nil, model)
  assert(#none.moe[1] == 1)
  assert(train(D.alltoallv(WHOLE), model).digest == none.digest)
  for _, d in ipairs { D.two_level, D.deepep_ll, D.rank_dedup, D.deepep_v1, D.allgather } do
    assert(apart(none, train(d(WHOLE), model)) < 1e-12, d {}.name)
  end
end]])
end)

test("rows on the wire are rounded as the dispatcher says", function()
  expect.plans(TRAIN .. [[
local model = gpt2 { routing = moe.workload "zipf" { s = 0.5 } }
local whole = train(D.alltoallv(WHOLE), model)
local bf16 = train(D.alltoallv { wire = "bf16", combine = "bf16" }, model)
local fp8 = train(D.alltoallv { wire = "fp8", combine = "bf16" }, model)
local narrow, narrower = apart(whole, bf16), apart(whole, fp8)
assert(narrow > 1e-6 and narrow < 2 / 256 and narrower > narrow and narrower < 8 / 256)
assert(apart(fp8, train(D.deepep_v1 { wire = "fp8" }, model)) < 3 / 256)]])
end)

-- Logs in the three forms of DeepEP's tests, with times that are `factor` times the library's; the
-- machine file is then at hand as mine.lua. `log(lines)` gives the file; `us(way, more)` a time.
local LOG = [[
local moe = require "moe"
local core = require "moe.core"
local SIZES = { gpu = "h100", ranks = 16, ranks_per_node = 8, experts = 256, topk = 8,
  hidden = 7168 }
local function sized(more)
  for key, value in pairs(SIZES) do more[key] = more[key] or value end
  return more
end
local function us(way, dispatcher, tokens, dtype, sms)
  return moe.dispatch_time(sized { way = way, dispatcher = dispatcher, tokens = tokens,
    dtype = dtype, sms = sms }).us
end
local function laws_of(lines, more)
  local read, write = core.read_file, core.write_output
  core.read_file = function(name) return name == "a.log" and lines or read(name) end
  core.write_output = function(_, text) made = text end
  more = sized(more or {})
  more.log = "a.log"
  local ok, laws = pcall(moe.dispatch_log, more)
  core.write_output = write
  core.read_file = function(name) return name == "mine.lua" and made or read(name) end
  if not ok then error(laws, 0) end
  return laws
end
]]

test("logs of DeepEP's tests become laws that give their times", function()
  expect.plans("local made\n" .. LOG .. [[
local V1 = "[tuning] Best %s: SMs 22, NVL chunk 4, RDMA chunk 8, transmit: %.2f us, notify: 9.00 "
  .. "us, BW: 3.00 GB/s (RDMA), 6.00 GB/s (NVL)\n"
local LL = "[rank 1] Dispatch + combine bandwidth: 4.2 GB/s, avg_t=%.2f us, min_t=1 us\n"
  .. "[rank 1] Dispatch bandwidth: 9.9 GB/s, avg_t=%.2f us | Combine bandwidth: 1 GB/s, avg_t=%.2f "
  .. "us\n"
local V2 = " > Testing with use_fp8_dispatch=1\n   * EP:   2/16 | dispatch: 0 GB/s (SO), 8 GB/s "
  .. "(SU), %.3f us, 252328160 bytes | copy: 5 GB/s, 9.491 us\n"
local there = us("dispatch", "deepep_ll", 128, "fp8")
local back = us("combine", "deepep_ll", 128, "bf16")
for _, case in ipairs {
  { V1:format("dispatch (BF16)", 2 * us("dispatch", "deepep_v1", 4096, "bf16", 22))
    .. V1:format("combine", 2 * us("combine", "deepep_v1", 4096, "bf16", 22)), 2 },
  { LL:format(2 * (there + back), 2 * there, 2 * back), 2 },
  { V2:format(2 * us("dispatch", "deepep_v2", 8192, "fp8")), 1 },
} do
  local laws = laws_of(case[1])
  assert(#laws == case[2])
  for _, law in ipairs(laws) do
    -- About the half: the start-up is not scaled, and tables are a few percent off the law.
    assert(law.factor > 0.35 and law.factor < 0.6 and law.residual < 0.05, law.factor)
  end
end
-- By bandwidth alone, of all rows of nodes.
local function step(file)
  return moe.plan { model = moe.model.deepseek_v3 { layers = 4, seq = 1024, batch_per_device = 1,
      router = { groups = 1, top_groups = 1 } },
    cluster = moe.cluster.h100 { nodes = 2, dispatch_times = file },
    system = moe.system "s" { moe.pass.used_rows {}, moe.dispatcher.deepep_v1 { sms = 24 } } }
end
local usual = step():info().dispatcher.dispatch
local rate = usual.logical_bytes / 8 / (2 * usual.us) / 1e3
laws_of(("[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20, RDMA chunk 32: %.3f GB/s (RDMA)")
  :format(rate), { tokens = 1024 })
local d = step "mine.lua":info().dispatcher.dispatch
assert(math.abs(d.us / usual.us / 2 - 1) < 0.02, d.us / usual.us)]])
end)

test("a log that is damaged, of several runs or of other sizes is refused", function()
  local best = "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20, RDMA chunk 32"
  for text, part in pairs {
    nothing = "has no line of DeepEP's tests",
    [best:sub(1, 60)] = "line 1 has no time of its call; is it whole?",
    ["\n" .. best .. ": 0.00 GB/s (RDMA)"] = "line 2 has no time of its call",
    [best .. ": 4.47 GB/s (RDMA)\n" .. best .. ": 38.19 GB/s (RDMA)"] =
      "line 2 has 38.19 and line 1 4.47 of the same call, so they are of several runs",
    ["[rank 6] Dispatch bandwidth: 9.9 GB/s, avg_t=7.06 us | Combine bandwidth: 1"] =
      "line 1 has no time of its call",
    ["* EP:   2/4 | dispatch: 0 GB/s (SO), 860 GB/s (SU), 93.515 us, 252328160 bytes"] =
      "no rates of links and SMs give 93.5 us",
  } do
    expect.plans("local made\n" .. LOG .. ("laws_of(%q)"):format(text), "moe.dispatch_log.log: ",
      part)
  end
end)

test("runs of an experiment have what their dispatcher takes and moves", function()
  local w = expect.plans([[
local moe = require "moe"
return moe.experiment { name = "e", model = moe.model.deepseek_v3 { layers = 4, seq = 1024,
    batch_per_device = 1 }, cluster = moe.cluster.h100 { nodes = 2 },
  systems = { moe.system "a" { moe.pass.irregular_a2a {} },
    moe.system "b" { moe.dispatcher.deepep_v1 {} } } }]])
  local plain, with = w.results.runs[1].dispatcher, w.results.runs[2].dispatcher
  assert(not plain and with.name == "deepep_v1")
  assert(with.combine.nic_bytes < with.combine.logical_bytes)
end)

test("a search has a dimension for dispatchers", function()
  expect.plans([[
local moe = require "moe"
local m = moe.model.gpt2_moe { layers = 2, hidden = 1024, heads = 8, seq = 256,
  batch_per_device = 1, experts_per_device = 1, gate = "top2", capacity = "none" }
local on, ll = moe.cluster.h100 { nodes = 2 }, moe.dispatcher.deepep_ll { max_tokens = 256 }
local s = moe.search { model = m, cluster = on, techniques = { "irregular_a2a" },
  dispatchers = { moe.dispatcher.deepep_v1 {}, ll }, contributions = false }
local seen = {}
for _, run in ipairs(s.top) do  -- the fastest of each, since all slots are computed in others
  local name = run.dispatcher and run.dispatcher.name or "none"
  seen[name] = seen[name] or run
end
assert(seen.none and seen.deepep_v1)
-- The notes name each listed system that rounds rows on the wire, with the types of its rows.
assert(seen.deepep_v1.dispatcher.dispatch.dtype == "fp8")
local told = table.concat(require "moe.search.tables".notes(s), "\n")
local fp8 = told:match "under deepep_v1: rows in fp8 to the experts and in bf16 back[^\n]*"
assert(fp8 and fp8:find(seen.deepep_v1.system, 1, true) and fp8:find "of the model in bf16", told)
-- A mix has the time of its system.
local alone = moe.plan { model = m, cluster = on, system = moe.system "s" { ll,
  all_reduce = { lane = "comm", place = "after" } } }
assert(math.abs(seen.deepep_ll.iteration_ms / alone.sim.iteration_ms - 1) < 1e-6,
  seen.deepep_ll.iteration_ms / alone.sim.iteration_ms)]])
end)
