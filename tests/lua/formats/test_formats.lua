-- The readers and writers of other tools' files: what they make of a text, and what they refuse.
local expect = require "expect"
local test = require "test"
local world = require "world"

-- What core.trace_write would get of the texts (one, or a list of them), or the message.
-- fields: of moe.trace.import, beside its defaults.
local function imported(format, texts, fields)
  texts = type(texts) == "table" and texts or { texts }
  local core = package.loaded["moe.core"]
  local c = { files = {}, to = "t", experts = 0, k = 1 }
  for i in ipairs(texts) do c.files[i] = "in/" .. i end
  for name, value in pairs(fields or {}) do c[name] = value end
  core.read_file = function(name) return texts[tonumber(name:match "in/(%d)")] end
  core.trace_write = function(t, lists)
    local plain = {}
    for i, list in ipairs(lists) do plain[i] = { unpack(list) } end
    t.lists = plain
    return t
  end
  local ok, made = pcall(require("moe.formats." .. format).import, c)
  if ok then return made end
  assert(type(made) == "table", made)
  return made.message
end

-- rows: { texts, fields, what is expected of the trace, or a part of the message }
local function check(format, rows)
  world.run ""
  for i, row in ipairs(rows) do
    local got = imported(format, row[1], row[2])
    local where = ("%s, row %d"):format(format, i)
    if type(row[3]) == "string" then
      assert(type(got) == "string" and got:find(row[3], 1, true),
        ("%s: expected '%s': %s"):format(where, row[3], tostring(got)))
    else
      assert(type(got) == "table", ("%s: %s"):format(where, tostring(got)))
      for name, value in pairs(row[3]) do expect.equal(got[name], value, where .. ": " .. name) end
    end
  end
end

test("lines of layers and experts are read, and bad ones named", function()
  check("csv", {
    { "0,1\r\n0,2\r\n\n4,0\r\n4,1\r\n0,3\r\n4,3", {}, { steps = 2, ranks = 1, tokens = 2,
      experts = 4, blocks = { 0, 4 }, k = 1, source = "1", to = "t",
      lists = { { 1, 2 }, { 0, 1 }, { 3 }, { 3 } } } },
    { "layer,expert\n7,0\n7,1\n7,1\n7,0\n", { k = 2, experts = 9 }, { tokens = 2, experts = 9,
      lists = { { 0, 1, 1, 0 } } } },
    { "layer,expert\n0,1\n0;2\n", {}, "1:3: '0;2' is not allowed; give two whole numbers as" },
    { "0,1\nlayer,expert\n", {}, "1:2: 'layer,expert' is not allowed" },
    { "1000001,1\n", {}, "1:1: '1000001,1' is not allowed" },
    { "0,4\n", { experts = 4 }, "1:1: expert 4 is not allowed; give 0 to 3" },
    { "0,-1\n", {}, "1:1: expert -1 is not allowed; give 0 to 65534" },
    { "0,99999999999999999999\n", {}, "1:1: expert 100000000000000000000 is not allowed" },
    { "0,1\n0,2\n1,1\n", {}, "1:3: layer 1 has 1 tokens in step 0, rank 0, but layer 0 has 2" },
    { "0,1\n0,2\n0,3\n", { k = 2 }, "1:3: layer 0 has 3 choices in step 0, which k = 2 does not" },
    { "", {}, "1: the file contains no routing" },
  })
end)

local function record(step, layer, rank, rest)
  return ('{"step": %d, "stage": "pre_dispatch", "block": "decoder", "layer": %d, "rank": %d, '
    .. '%s}\n'):format(step, layer, rank, rest)
end
local TWO = '"num_tokens": 2, "topk": 1, "top_indices": [[3], [0]]'
local THREE = '"num_tokens": 3, "topk": 1, "top_indices": [[3], [0], [1]]'

test("a tracer's records are taken as they come: steps, layers by number, micro-batches", function()
  check("megatron", {
    { record(10, 3, 0, TWO) .. record(10, 5, 0, TWO) .. record(10, 3, 0, THREE)
      .. record(10, 5, 0, THREE) .. '{"step": 10, "block": "mtp", "mtp_idx": 0}\n\n'
      .. record(12, 3, 0, TWO) .. record(12, 5, 0, TWO), {}, { steps = 2, tokens = 5, experts = 4,
      blocks = { 3, 5 }, k = 1, lists = { { 3, 0, 3, 0, 1 }, { 3, 0, 3, 0, 1 }, { 3, 0 },
        { 3, 0 } } } },
    { { record(0, 1, 4, TWO), record(0, 1, 2, THREE) }, { experts = 9 }, { ranks = 2, experts = 9,
      tokens = 3, lists = { { 3, 0, 1 }, { 3, 0 } } } },
    { record(0, 1, 0, TWO) .. record(0, 3, 0, THREE), {}, "1:2: layer 3 has 3 tokens in step 0, "
      .. "rank 0, but layer 1 has 2; allowed: the same in all layers" },
    { record(0, 1, 0, TWO), { experts = 3 }, "1:1: expert 3 is not allowed; give 0 to 2" },
    { record(0, 1, 0, TWO) .. record(0, 3, 0, TWO) .. record(1, 3, 0, TWO), {},
      "1: layer 1 of step 1, rank 0 is missing" },
    { record(0, 1, 0, TWO) .. "[1]", {}, "1:2: the text is not a JSON object" },
    { '{"step": 0}', {}, "1:1: field 'topk' is missing" },
    { record(-1, 1, 0, TWO), {}, "1:1: field 'step' is -1; allowed: a whole number from 0" },
    { record(0, 1000001, 0, TWO), {}, "1:1: field 'layer' is 1000001; allowed: 0 to 1000000" },
    { record(0, 1, 0, '"num_tokens": 2, "topk": 1, "top_indices": [[1]]'), {},
      "1:1: field 'top_indices' is not a list of num_tokens = 2 tokens" },
    { record(0, 1, 0, '"num_tokens": 1, "topk": 2, "top_indices": [[1]]'), {},
      "has the row [1]; allowed: topk = 2 experts" },
    { record(0, 1, 0, '"num_tokens": 1, "topk": 1, "top_indices": [[1.5]]'), {},
      "has the entry 1.5; allowed: whole numbers" },
    { record(0, 1, 0, TWO)
      .. record(0, 3, 0, '"num_tokens": 1, "topk": 2, "top_indices": [[1, 2]]'), {},
      "1:2: field 'topk' is 2; allowed: 1" },
    { record(0, 1, 0, '"num_tokens": 0, "topk": 4611686018427387904, "top_indices": []'), {},
      "field 'topk' is 4.611686018427388e+18; allowed: a whole number from 0" },
    { "", {}, "1: the file contains no routing" },
  })
  -- A value of any length has a short place in a message.
  local long = imported("megatron", record(0, 1, 0, '"num_tokens": 1, "topk": 1, "top_indices": [["'
    .. ("x"):rep(1000) .. '"]]'))
  assert(#long < 200, long)
end)

local function pattern(rest) return '{"ep_size": 2, "experts_per_rank": 2, ' .. rest .. "}" end
local SLOTS = '"slot_dispatch_matrix": [[4, 2], [0, 5]]'

test("slots of a pattern are those of its histogram, or even over a rank's experts", function()
  check("tensorrt", {
    { pattern(SLOTS), {}, { counted = true, ranks = 2, experts = 4, tokens = 6, blocks = { 0 },
      lists = { { 2, 2, 1, 1 }, { 0, 0, 3, 2 } } } },
    { pattern(SLOTS .. ', "expert_histogram": [[1, 3], [6, 1]]'), {}, {
      lists = { { 1, 3, 2, 0 }, { 0, 0, 4, 1 } } } },
    { pattern '"slot_dispatch_matrix": [[4, 2], [2, 4]]', { k = 2 }, { k = 2, tokens = 3 } },
    { pattern(SLOTS .. ', "expert_histogram": [[1, 3], [1, 1]]'), {}, "1: field "
      .. "'expert_histogram', row 1: sums to 2, but column 1 of slot_dispatch_matrix to 7" },
    { pattern '"slot_dispatch_matrix": [[4, 2], [0]]', {}, "row 1: allowed: 2 whole numbers" },
    { pattern '"slot_dispatch_matrix": [[4, 2], [0, -1]]', {}, "row 1: allowed: 2 whole numbers" },
    { pattern '"slot_dispatch_matrix": [[4, 2]]', {}, "'slot_dispatch_matrix': allowed: 2 rows" },
    { pattern '"slot_dispatch_matrix": [[0, 0], [0, 0]]', {}, "1: the file contains no routing" },
    { pattern(SLOTS), { k = 2 }, "row 1: k = 2 choices per token must divide the sum of the row" },
    { pattern '"x": 1', {}, "1: field 'slot_dispatch_matrix' is missing" },
    { '{"ep_size": 0, "experts_per_rank": 2}', {}, "the product must be 1 to 65534" },
    { '{"ep_size": 65535, "experts_per_rank": 1}', {}, "the product must be 1 to 65534" },
    { "7", {}, "1: the text is not a JSON object" },
  })
end)

test("a pattern of as many slots as there may be is dealt out to the last one", function()
  world.run ""
  for _, experts in ipairs { 1, 3 } do
    local row = "[" .. ("1000000000,"):rep(9) .. "1000000000]"
    local t = imported("tensorrt", ('{"ep_size": 10, "experts_per_rank": %d, '
      .. '"slot_dispatch_matrix": [%s]}'):format(experts, (row .. ","):rep(9) .. row), { k = 10 })
    for _, counts in ipairs(t.lists) do
      expect.equal(#counts, 10 * experts)
      for target = 0, 9 do
        local sum = 0
        for e = 1, experts do
          local n = counts[target * experts + e]
          assert(math.abs(n - 1e9 / experts) <= 1, n)
          sum = sum + n
        end
        expect.equal(sum, 1e9)
      end
    end
  end
end)

test("a product over a number is exact, whatever its size", function()
  world.run ""
  local times_over = require("moe.formats.files").times_over
  for _, case in ipairs { { 0, 5, 3, 0, 0 }, { 7, 11, 4, 19, 1 }, { 2 ^ 46 - 1, 2 ^ 46 - 1,
    2 ^ 46 - 1, 2 ^ 46 - 1, 0 }, { 2 ^ 46 - 1, 2 ^ 46 - 2, 2 ^ 46 - 1, 2 ^ 46 - 2, 0 },
    { 123456789012, 987654321098, 1000000007000, 121932630283, 57474194176 } } do
    expect.equal({ times_over(case[1], case[2], case[3]) }, { case[4], case[5] })
  end
end)

local HEAD = "iter,layer,rank,token_num\n"
-- Rows of ranks 0 and 1 in iterations 3 and 4 of block 2; `a` and `b` are two methods.
local METHODS = "rank,method,layer,iter,token_num\n1,a,2,3,5\n0,a,2,3,1\r\n0,b,2,3,9\n\n"
  .. "0,a,2,4,6\n1,a,2,4,0\n"
local OWN = HEAD .. "0,0,0,6\n0,0,1,2\n0,0,2,4\n0,0,3,4\n"  -- nodes of two: both compute 8
local ACROSS = HEAD .. "0,0,0,9\n0,0,1,3\n0,0,2,4\n0,0,3,0\n"  -- 4 rows of the second node's

test("rows that ranks compute are dealt to the tokens of their nodes, then of others", function()
  check("rank_loads", {
    { METHODS, { where = { method = "a" } }, { counted = true, steps = 2, ranks = 2, experts = 2,
      tokens = 3, blocks = { 2 }, lists = { { 1, 2 }, { 0, 3 }, { 3, 0 }, { 3, 0 } } } },
    { OWN, { node = 2 }, { experts = 4, lists = { { 3, 1, 0, 0 }, { 3, 1, 0, 0 }, { 0, 0, 2, 2 },
      { 0, 0, 2, 2 } } } },
    { ACROSS, { node = 2 }, { lists = { { 3, 1, 0, 0 }, { 3, 1, 0, 0 }, { 2, 0, 2, 0 },
      { 1, 1, 2, 0 } } } },
    { ACROSS, { node = 2, even = true }, { lists = { { 2, 2, 0, 0 }, { 2, 2, 0, 0 },
      { 0, 0, 2, 2 }, { 0, 0, 2, 2 } } } },
    { HEAD .. "0,0,0,5\n0,0,1,3\n", { experts_per_rank = 2 }, { experts = 4,
      lists = { { 2, 1, 1, 0 }, { 1, 1, 1, 1 } } } },
    { OWN, { node = 2, experts = 2 }, { experts = 2, lists = { { 3, 1 }, { 3, 1 }, { 2, 2 },
      { 2, 2 } } } },
    { OWN, { node = 2, experts = 4 }, { experts = 4 } },
    { OWN, { node = 2, experts = 3 }, "1: experts = 3, allowed: 4, or 2, which each node of 2 "
      .. "ranks has once" },
    { ACROSS, { node = 2, experts = 2 }, "1: nodes of 2 ranks compute rows that are not their own, "
      .. "so that they cannot have 2 experts each; omit experts" },
    { OWN, { node = 3 }, "1: node = 3, allowed: a divisor of its 4 ranks" },
    { HEAD .. "0,0,0,4\n0,0,1,4\n", { k = 3 }, "1: 2 experts and k = 3; allowed: 1 to 65534, k" },
  })
  -- Of any sizes every rank keeps its rows, and sources differ by one.
  local rows, text, all = { 43, 51, 40, 54, 47, 44 }, HEAD, 0
  for _, n in ipairs(rows) do all = all + n end
  rows[7] = 6 * 7 * 8 - all
  for r, n in ipairs(rows) do text = text .. ("0,0,%d,%d\n"):format(r - 1, n) end
  local t = imported("rank_loads", text, { k = 3 })
  expect.equal(t.tokens, 16)
  for e, n in ipairs(rows) do
    local sum = 0
    for _, counts in ipairs(t.lists) do
      assert(math.abs(counts[e] - math.floor(n / 7)) <= 1, counts[e])
      sum = sum + counts[e]
    end
    expect.equal(sum, n)
  end
end)

test("rank loads that are incomplete, doubled or of two methods are refused by line", function()
  check("rank_loads", {
    { HEAD .. "0,1000001,0,4\n", {}, "1:2: layer = '1000001', allowed: whole numbers from 0 to "
      .. "1000000" },
    { METHODS, {}, "1:4: column 'method' has 'a' and 'b'; choose the rows by where" },
    { METHODS, { where = { method = "c" } }, "1: no row has what `where` states" },
    { METHODS, { where = { model = "c" } }, "1:1: there is no column 'model'; the first line names "
      .. "rank, method, layer, iter, token_num" },
    { "iter,layer,rank\n", {}, "1:1: there is no column 'token_num'" },
    { "", {}, "1: no row" },
    { HEAD .. "0,0,0,x\n", {}, "1:2: token_num = 'x'" },
    { HEAD .. "0,0,-1,4\n", {}, "1:2: rank = '-1'" },
    { HEAD .. "0,0,0\n", {}, "1:2: has 3 cells, but the first line names 4 columns" },
    { HEAD .. "0,0,0,4\n0,0,0,4\n", {}, "1:3: iter 0, layer 0, rank 0 is there twice" },
    { HEAD .. "0,0,0,4\n0,0,1,4\n1,0,1,8\n", {}, "1: iter 1, layer 0, rank 0 is missing" },
    { HEAD .. "0,0,0,4\n0,0,1,3\n", {}, "1: iter 0, layer 0: the ranks compute 7 rows, which is no "
      .. "multiple of 2 ranks times k = 1" },
  })
end)

-- What a format writes of a trace with these choices of each step, layer and rank in order; k = 2,
-- blocks 0 and 2, four experts.
local function exported(format, lists, ranks, fields)
  local w = world.run ""
  local core = package.loaded["moe.core"]
  core.trace_info = function()
    return { steps = math.max(1, #lists / 2 / ranks), layers = 2, ranks = ranks, experts = 4, k = 2,
      tokens = #(lists[1] or "12") / 2, blocks = { 1, 3 }, choices = lists[1] ~= nil }
  end
  core.choices = function(_, q) return lists[((q.step - 1) * 2 + q.layer - 1) * ranks + q.rank] end
  core.loads = function() return { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } } end
  local c = { to = "x", trace = "t", step = 1, layer = 1 }
  for name, value in pairs(fields or {}) do c[name] = value end
  local ok, made = pcall(require("moe.formats." .. format).export, c)
  if not ok then return made.message end
  for i, path in ipairs(made) do made[i] = w.files[path] end
  return made
end

test("a trace is written without the tokens that have no choices", function()
  local lists = { { 0, 1, -1, -1 }, { 2, 3, 3, 0 }, { 1, 2, -1, -1 }, { 0, 3, 1, 0 } }
  expect.equal(exported("csv", lists, 2), { "layer,expert\n0,0\n0,1\n0,2\n0,3\n0,3\n0,0\n2,1\n2,2\n"
    .. "2,0\n2,3\n2,1\n2,0\n" })
  local one, two = record(0, 0, 1, '"num_tokens": 2, "topk": 2, "top_indices": [[2, 3], [3, 0]]'),
    record(0, 2, 1, '"num_tokens": 2, "topk": 2, "top_indices": [[0, 3], [1, 0]]')
  expect.equal(exported("megatron", lists, 2), { record(0, 0, 0,
    '"num_tokens": 1, "topk": 2, "top_indices": [[0, 1]]') .. record(0, 2, 0,
    '"num_tokens": 1, "topk": 2, "top_indices": [[1, 2]]'), one .. two })
  expect.equal(world.decode(exported("tensorrt", lists, 2)[1]), { ep_size = 2, experts_per_rank = 2,
    slot_dispatch_matrix = { { 3, 7 }, { 11, 15 } }, expert_histogram = { { 6, 8 }, { 10, 12 } } })
  for _, case in ipairs {
    { "csv", { { 0, 1, 2, -1 }, { 0, 1, 2, 3 } }, 1, {}, "step 0, layer 0, rank 0, token 1: has 1 "
      .. "of 2 choices; the format of llama.cpp needs all choices of a token, or none" },
    { "megatron", {}, 1, {}, "the trace has only counts, but the format of Megatron-LM needs" },
    { "tensorrt", lists, 2, { step = 2 }, "there is no step 2, layer 1: the trace has 1 steps" },
    { "tensorrt", { { 0, 1 } }, 3, {}, "4 experts do not divide evenly over 3 ranks" } } do
    local message = exported(unpack(case, 1, 4))
    assert(tostring(message):find(case[5], 1, true), tostring(message))
  end
end)

local SHAPE = "# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor)\n"
local COLUMNS = "# size count type redop root time algbw busbw #wrong time ...\n"
local ROW_1 = " 1024 256 float sum -1 10.5 0.1 0.1 0 10.6 0.1 0.1 0\n"
local ROW_2 = " 2048 512 float sum -1 11.5 0.1 0.1 0 11.6 0.1 0.1 0\n"
local END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1\n"
local ROWS = SHAPE .. COLUMNS .. ROW_1 .. ROW_2 .. END

local function log_of(text)
  package.loaded["moe.core"].read_file = function() return text end
  local ok, log = pcall(require("moe.formats.nccl_tests").read, "some.log")
  return ok and log or log.message
end

test("logs of nccl-tests: ranks, whole send buffers in bytes, the first time of a row", function()
  world.run ""
  local function file(name)
    return assert(io.open(world.scripts_dir .. "/../tests/data/" .. name)):read "*a"
  end
  for _, case in ipairs { { "nccl_alltoall_16.log", "all_to_all", 16, 22, { 64, 45.23 },
      134217728 }, { "nccl_all_reduce_16.log", "all_reduce", 16, 17, nil, 67108864 },
    { "nccl_alltoall_4_old.log", "all_to_all", 4, 14, { 1024, 20.02 } } } do
    local log = log_of(file(case[1]))
    expect.equal({ log.kind, log.ranks, #log.rows }, { case[2], case[3], case[4] })
    expect.equal(log.rows[1], case[5] or log.rows[1])
    expect.equal(log.rows[#log.rows][1], case[6] or log.rows[#log.rows][1])
  end
  local tag, group = "[1,0]<stdout>:", "#  Rank  %d Group  %d Pid 1 on host device 0\n"
  for text, wanted in pairs {
    [ROWS] = { kind = "all_reduce", ranks = 2, rows = { { 1024, 10.5 }, { 2048, 11.5 } } },
    [SHAPE .. COLUMNS .. "node0:1:1 [0] NCCL INFO comm 0x1\n" .. tag .. ROW_1 .. tag .. ROW_2 .. tag
      .. END .. END] = { ranks = 2 },
    [group:format(0, 0) .. group:format(1, 1) .. group:format(2, 0) .. group:format(3, 0) .. ROWS]
      = { ranks = 3 },
    ["# Collective test starting: all_reduce_perf_mpi\n" .. ROWS] = { kind = "all_reduce" },
    ["# Collective test starting: alltoall_perf_mpi\n" .. ROWS] = { kind = "all_to_all" },
    ["# Collective test starting: alltoall_perf-cuda12\n" .. ROWS] = { kind = "all_to_all" },
    -- Small values of an error column are no faults.
    [ROWS:gsub("#wrong", " error"):gsub("0.1 0 10", "0.1 2e-07 10")] = { ranks = 2 } } do
    local log = log_of(text)
    assert(type(log) == "table", log)
    for name, value in pairs(wanted) do expect.equal(log[name], value, name) end
  end
  local real = file "nccl_alltoall_16.log"  -- cut anywhere, it is refused
  for length = 0, real:find("# Avg", 1, true) - 1, 97 do
    assert(type(log_of(real:sub(1, length))) == "string", length)
  end
end)

test("a log that is not one is refused with its file, and its line where there is one", function()
  world.run ""
  local function with(from, to)
    local at, last = ROWS:find(from, 1, true)
    return ROWS:sub(1, at - 1) .. to .. ROWS:sub(last + 1)
  end
  local head = SHAPE .. COLUMNS
  for text, why in pairs {
    [""] = ": it has 0 rows",
    ["\127\1garbage\n\n#\n"] = ": it has 0 rows",
    [head .. ROW_1 .. END] = ": it has 1 rows",
    [head .. ROW_1 .. ROW_2] = ": the line 'Avg bus bandwidth' at the end is missing",
    [head .. ROW_1 .. " 2048 512 float sum -1 11"] = ":4: the row ends after 6 of 13 columns",
    [head .. ROW_1 .. " 20\n" .. END] = ":4: the row ends after 1 of",
    [head .. ROW_2 .. ROW_1 .. END] = ":4: size 1024 is not above that of the row before, 2048",
    [head .. ROW_1 .. ROW_1 .. END] = ":4: size 1024 is not above that of the row before",
    [with("10.5", "1O.5")] = ":3: time is '1O.5'",
    [with("10.5", "nan")] = ":3: time is 'nan'",
    [with("10.5", "-1")] = ":3: time is '-1'",
    [with("10.5", "0.00")] = ":3: time is 0.00 at size 1024, must be above 0",
    [with("0.1 0 10", "0.1 3 10")] = ":3: #wrong is 3 at size 1024",
    [with("0 OK", "7 FAILED")] = ":5: nccl-tests reports out of bounds values: 7",
    [with("nThread", "threads")] = ": a line with the number of ranks is missing",
    [with("nGpus 2", "nGpus -9223372036854775808")]
      = ":1: nGpus is '-9223372036854775808', must be 1 to 1000000",
    [with("nThread 1", "nThread 1e3")] = ":1: nThread is '1e3'",
    ["# Collective test starting: all_gather_perf\n" .. ROWS] = ": it is a log of all_gather_perf",
    ["# Collective test starting: alltoall_perfect\n" .. ROWS]
      = ": it is a log of alltoall_perfect, allowed: all_reduce_perf, alltoall_perf" } do
    local message = log_of(text)
    assert(type(message) == "string" and message:find("some.log" .. why, 1, true),
      ("expected '%s': %s"):format(why, tostring(message)))
  end
end)
