-- moe.collectives: what is checked, and what the core gets. Its times are the engine's.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require "moe"
local c = moe.cluster.custom { nodes = 2, devices_per_node = 1,
  nics_per_node = 1, nic = { bytes_per_s = 50e9, latency_us = 2.5 } }
]]

-- The core answers with as many times as there are ops, and keeps what it was asked.
local function setup(world, core)
  core.collectives = function(spec, matrices)
    world.asked = { spec = spec, matrices = matrices }
    local ops = {}
    for i = 1, #spec.ops do ops[i] = { begin_ms = 0, end_ms = i, rank_end_ms = { i, i } } end
    return { ops = ops, nodes_alike = true, link_use = spec.link_use and {} or nil }
  end
end

local function runs(fields)
  return expect.runs(HEAD .. "T = moe.collectives { cluster = c, " .. fields .. " }", nil, nil,
    setup)
end

local function fails(fields, line, ...)
  return expect.fails(HEAD .. "moe.collectives {\n cluster = c,\n " .. fields .. " }", line, ...)
end

test("collectives go to the core with defaults, and come back one per op", function()
  local w = runs [[ops = { { kind = "all_to_all", bytes_per_pair = 5, start_ms = 2 },
    { kind = "all_reduce", bytes = 7, rings = 2, after = { 1 } } }]]
  local spec = w.asked.spec
  expect.equal({ spec.share, spec.efficiency, spec.link_use }, { "per_flow", 1, false })
  expect.equal(spec.ops[1], { kind = "all_to_all", bytes_per_pair = 5, start_ms = 2,
    algorithm = "direct" })
  expect.equal(spec.ops[2], { kind = "all_reduce", bytes = 7, rings = 2, start_ms = 0,
    algorithm = "ring", after = { 1 } })
  expect.equal(spec.cluster.nic.bytes_per_s, 50e9)
  expect.equal(#w.globals.T, 2)
  expect.equal(w.globals.T[2].end_ms, 2)
  expect.equal(w.globals.T.nodes_alike, true)
  expect.equal(w.globals.T.link_use, nil)
end)

test("a matrix goes beside the op that it belongs to", function()
  local w = runs [[ops = { { kind = "all_reduce", bytes = 7 },
    { kind = "all_to_all", bytes = { { 0, 1 }, { 2, 0 } } } }]]
  expect.equal(w.asked.spec.ops[2].bytes, nil)
  expect.equal(w.asked.matrices[1], nil)
  expect.equal(w.asked.matrices[2], { { 0, 1 }, { 2, 0 } })
end)

test("a matrix that is not N x N, negative or no number is refused with its entry", function()
  local function matrix(rows)
    return "ops = { { kind = 'all_to_all',\n  bytes = {\n" .. rows .. " } } }"
  end
  local path = "moe.collectives.ops[1].bytes"
  fails(matrix "{ 0, 1 }", 7, path .. ": has 1 rows; give 2")
  fails(matrix "{ 0, 1 },\n{ 1 }", 9, path .. "[2]: has 1 numbers; give 2")
  fails(matrix "{ 0, 1 },\n7", 9, path .. "[2]: 7 is not allowed; give a row of numbers")
  fails(matrix "{ 0, -1 },\n{ 1, 0 }", 8, path .. "[1][2]: -1 is not allowed; give a number from 0")
  fails(matrix "{ 0, 1 },\n{ 0/0, 0 }", 9, path .. "[2][1]: nan is not allowed")
  fails(matrix "{ 0, 1 },\n{ 'a', 0 }", 9, path .. "[2][1]: 'a' is not allowed; give a number")
end)

test("bytes_per_pair and bytes: one of the two", function()
  fails("ops = { { kind = 'all_to_all' } }", 6, "ops[1]: give either bytes_per_pair or bytes, ",
    "neither is given")
  fails("ops = { { kind = 'all_to_all', bytes_per_pair = 1,\n bytes = {} } }", 7, "not both")
end)

test("keys, kinds and names are those of the op", function()
  fails("ops = { { bytes = 1 } }", 6, "ops[1].kind: is missing")
  fails("ops = { { kind = 'all_to_al' } }", 6, "Did you mean 'all_to_all'?")
  fails("ops = { { kind = 'all_to_all', bytes_per_pair = 1, rings = 1 } }", 6,
    "ops[1]: unknown key 'rings'")
  fails("ops = { { kind = 'all_reduce' } }", 6, "ops[1].bytes: is missing")
  fails("ops = { { kind = 'all_reduce', bytes = 1, algorithm = 'treee' } }", 6,
    "Did you mean 'tree'?")
  fails("ops = { { kind = 'all_reduce', bytes = 1, algorithm = 'in_switch' } }", 6,
    "ops[1].algorithm: in_switch needs a cluster with in_switch = true")
  fails("ops = { { kind = 'all_reduce', bytes = 1, algorithm = 'tree', rings = 2 } }", 6,
    "ops[1].rings: is only used with algorithm = 'ring'; here it is 'tree'")
  fails("ops = {}, share = 'per_flows'", 6, "Did you mean 'per_flow'?")
  fails("ops = {},\n efficiency = 0", 7, "moe.collectives.efficiency: 0 is not allowed")
  fails("ops = { { kind = 'all_reduce', bytes = 1, after = { 1 } } }", 6,
    "ops[1].after: 1 is not allowed; give the number of an earlier op")
  fails("ops = { { kind = 'all_reduce', bytes = 1, rank_start_ms = { 1 } } }", 6,
    "rank_start_ms: has 1 numbers; give 2")
end)

test("what only another sharing rule reads is refused", function()
  fails("ops = { { kind = 'all_reduce', bytes = 1, priority = 1 } }", 6,
    "ops[1].priority: is only used with share = 'strict_priority'; here share is 'per_flow'")
  fails("share = 'strict_priority', ops = { { kind = 'all_to_all', bytes_per_pair = 1, "
    .. "channels = 2 } }", 6, "ops[1].channels: is only used with share = 'per_channel'")
  runs "share = 'strict_priority', ops = { { kind = 'all_reduce', bytes = 1, priority = 1 } }"
end)

test("a plan needs a device, collectives do not", function()
  expect.fails(expect.HEAD .. [[
local c = moe.cluster.custom { nodes = 2, devices_per_node = 1, nic = { bytes_per_s = 1 } }
moe.plan { model = m, cluster = c, system = moe.system "raf" {} }]], 2,
    "cluster.device: is missing; a plan needs the rates of a device")
end)
