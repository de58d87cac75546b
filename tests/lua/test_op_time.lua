-- moe.op_time: what is checked, and what the core gets. Its times are the engine's.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require "moe"
local c = moe.cluster.custom { nodes = 1, devices_per_node = 8, intra = { bytes_per_s = 1e11,
  latency_us = 1 }, collective_times = "h100", device = { op_times = "h100",
  peak_gemm_flops_per_s = 1e15, memory_bytes_per_s = 1e12,
  gemm_efficiency = moe.assumed { value = 0.5, lo = 0.25, hi = 1, why = "a guess" } } }
]]

-- A core that answers by the rate, or as if it had measured where `measured` is given.
local function runs(fields, measured)
  return expect.runs(HEAD .. "T = moe.op_time { cluster = c, " .. fields .. " }", nil, nil,
    function(world, core)
      core.op_time = function(query)
        world.asked = world.asked or query
        local ms = 1e15 / query.cluster.device.gemm_flops_per_s
        return { ms = ms, lo = ms, hi = ms, measured = measured or false, extrapolated = false,
          source = "" }
      end
    end)
end

local function fails(fields, line, ...)
  return expect.fails(HEAD .. "moe.op_time {\n cluster = c,\n " .. fields .. " }", line, ...)
end

test("sizes go to the core in the op's order, with the files of the GPU's times", function()
  local asked = runs([[op = "gemm", k = 3, m = 1, n = 2, dtype = "fp8"]], true).asked
  expect.equal({ asked.op, asked.dtype, asked.sizes }, { "gemm", "fp8", { 1, 2, 3 } })
  expect.equal(asked.cluster.device.op_times:match "moe/gpus/.*", "moe/gpus/h100.times")
  expect.equal(asked.cluster.collective_times:match "moe/gpus/.*", "moe/gpus/h100.times")
  asked = runs([[op = "attention", batch = 1, seq = 2, heads = 8, head_dim = 64]], true).asked
  expect.equal(asked.sizes, { 1, 2, 8, 8, 64 })
  asked = runs([[op = "experts", tokens = 1, hidden = 2, inner = 3, experts = 6, k = 5]],
    true).asked
  expect.equal({ asked.sizes, asked.load }, { { 1, 2, 3, 6, 5, 1 }, "balanced" })
  local rows = "sms = 20, tokens = 4, hidden = 8, topk = 2"
  asked = runs("op = 'dispatch', " .. rows, true).asked
  expect.equal({ asked.dtype, asked.sizes }, { "fp8", { 1, 20, 4, 8, 2 } })
  asked = runs("op = 'combine', nodes = 2, " .. rows, true).asked
  expect.equal({ asked.dtype, asked.sizes }, { "bf16", { 2, 20, 4, 8, 2 } })
end)

test("a time by rates has the band of the cluster's assumed constants", function()
  local t = runs([[op = "gemm", m = 1, n = 1, k = 1]]).globals.T
  expect.equal({ t.ms, t.lo, t.hi }, { 2, 1, 4 })
  t = runs([[op = "gemm", m = 1, n = 1, k = 1]], true).globals.T
  expect.equal({ t.ms, t.lo, t.hi }, { 2, 2, 2 })
end)

test("each assumed constant is at the end that makes the time longer or shorter", function()
  local w = expect.runs(HEAD:gsub("latency_us = 1", "latency_us = moe.assumed { value = 2, lo = 1, "
    .. "hi = 3, why = 'a guess' }") .. "T = moe.op_time { cluster = c, op = 'gemm', m = 1, n = 1, "
    .. "k = 1 }", nil, nil, function(_, core)
      core.op_time = function(query)
        local cluster = query.cluster
        local ms = 1e15 / cluster.device.gemm_flops_per_s + cluster.intra.latency_us
        return { ms = ms, lo = ms, hi = ms, measured = false }
      end
    end)
  expect.equal({ w.globals.T.ms, w.globals.T.lo, w.globals.T.hi }, { 4, 2, 7 })
end)

test("experts that no rank could hold or choose are refused", function()
  local layer = "op = 'experts', tokens = 9, hidden = 8, inner = 8,\n experts = 6, "
  fails(layer .. "k = 7", 9, "moe.op_time.k: 7 is not allowed; give at most experts = 6")
  fails(layer .. "k = 2, ep = 4", 9, "moe.op_time.ep: 4 is not allowed", "a divisor of experts = 6")
end)

test("a table of the user needs times that are used where it is given", function()
  local function with(ops)
    return function(_, core) core.op_table = function() return "/x/mine.csv", ops end end
  end
  local text = HEAD:gsub('collective_times = "h100"', 'collective_times = moe.op_table "mine.csv"')
  expect.runs(text, nil, nil, with { "all_reduce", "gemm" })
  local ok, why = pcall(expect.runs, text, nil, nil, with { "gemm" })
  assert(not ok and tostring(why):find("mine.csv has times of gemm, none of which is used here", 1,
    true), why)
  expect.fails(HEAD:gsub('op_times = "h100",', 'op_times = "mine.csv",'), 3,
    'moe.op_table "mine.csv"')
end)

test("a dispatch that nobody measured is refused at its line", function()
  local text = HEAD .. "moe.op_time { cluster = c, op = 'dispatch', sms = 20, tokens = 4,\n"
    .. "hidden = 8, topk = 2 }"
  expect.failed(require "world".run(text, nil, nil, function(_, core)
    core.op_time = function() error("c has no 'dispatch' of fp8", 0) end
  end), 6, "c has no 'dispatch' of fp8")
  fails("op = 'combine', sms = 20, tokens = 4,\n hidden = 8", 6, "moe.op_time.topk: is missing")
end)

test("an unknown op or GPU, a missing size and a size of another op are refused", function()
  fails("op = 'gemv', m = 1", 8, "moe.op_time.op: 'gemv' is not allowed", "gemm")
  fails("op = 'gemm', m = 1, n = 2", 6, "moe.op_time.k: is missing")
  fails("op = 'gemm', m = 1, n = 2,\n k = 1, heads = 3", 9, "unknown key 'heads'")
  fails("op = 'gemm', m = 0, n = 2,\n k = 1", 8, "moe.op_time.m: 0 is not allowed")
  expect.fails(HEAD:gsub('op_times = "h100",', 'op_times = "h101",'), 3,
    "cluster.device.op_times: 'h101' is not allowed", "h100")
  expect.fails(HEAD:gsub('op_times = "h100",', 'op_times = 7,'), 3,
    "cluster.device.op_times: 7 is not allowed")
end)

test("numbers of ranks, rows and heads are whole", function()
  fails('op = "all_to_all", ranks = 2.5, bytes = 1048576', 8,
    "moe.op_time.ranks: 2.5 is not allowed; give an integer")
  fails('op = "gemm", m = 64.5, n = 8, k = 8', 8, "moe.op_time.m: 64.5 is not allowed")
end)

test("a table of op times is only what moe.op_table made, and as it made it", function()
  local function cluster(table)
    local recipe = [[
local moe = require "moe"
local real = moe.op_table "own.csv"
local given = ]] .. table .. "\n" .. [[
return moe.cluster.custom { nodes = 1, devices_per_node = 2, intra = { bytes_per_s = 1e11,
  latency_us = 1 }, device = { op_times = given, peak_gemm_flops_per_s = 1e15,
  memory_bytes_per_s = 1e12, gemm_efficiency = 1 } }]]
    return require("world").run(recipe, nil, nil, function(_, core)
      core.op_table = function(file) return "/full/" .. file, { "gemm" } end
    end)
  end
  expect.failed(cluster([[setmetatable({ path = "/etc/passwd", file = "f", ops = { "gemm" } },
  getmetatable(real))]]), 6, "op_times: a table is not allowed")
  expect.failed(cluster '(function() real.path = "/etc/passwd" return real end)()', 5,
    "op_times.path: was assigned after the op_table was made")
end)
