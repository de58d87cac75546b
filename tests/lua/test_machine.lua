-- Machine files: written by calibrate, read by moe.machine; tables of collectives.
local expect = require "expect"
local test = require "test"
local world = require "world"

local function line(names, factor)
  local rows = {}
  for i, name in ipairs(names) do
    rows[i] = { what = name, x = 1000 * 2 ^ i, us = factor * i + 0.125, spread = 0.01 * i,
      n = 10 + i }
  end
  return { rows = rows, alpha_us = 0.5, per_s = 3e9, median_error = 0.1, worst_error = 0.25,
    worst_row = 2, r2 = 0.875, interpolation = { median_error = 0.02, worst_error = 0.04,
    worst_row = 2, r2 = 0.5 } }
end

local function measured(ranks)
  local c = { machine = 'a "machine"', ranks = ranks, dtype = "f32", spread = 0.02,
    device = { name = "it", gemm_flops_per_s = 1e11 / 3, vector_flops_per_s = 2e10,
      memory_bytes_per_s = 3e10, launch_us = 0.25 },
    gemm = line({ "linear hidden=8", "linear hidden=16" }, 7),
    memory = line({ "gelu hidden=8", "gelu hidden=16" }, 3),
    roofline = { median_error = 0.2, worst_error = 0.5, worst_row = 1, r2 = 0.75 } }
  if ranks > 1 then
    c.intra = { bytes_per_s = 4e9, latency_us = 1.5 }
    c.all_to_all = line({ "all_to_all", "all_to_all", "all_to_all" }, 2)
    c.all_reduce = line({ "all_reduce", "all_reduce", "all_reduce" }, 4)
  end
  return c
end

-- The output of calibrate on so many ranks, and the file that it wrote.
local function calibrated(ranks)
  local w = world.run("")
  local core = package.loaded["moe.core"]
  w.said, core.recipe, core.args.ranks = {}, nil, ranks
  core.calibrate = measured
  w.moe._main("calibrate", "machine.lua")
  return table.concat(w.said, "\n"), w.files["out/machine.lua"]
end

local MODEL = 'local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, '
  .. 'seq = 16, batch_per_device = 2, experts_per_device = 2, dtype = "f32" }\n'
local HEAD = 'local moe = require "moe" ' .. MODEL

local function with_files(files)
  return function(w) for name, text in pairs(files) do w.files[name] = text end end
end

local function reads(text, files)
  return expect.runs(HEAD .. text, nil, nil, with_files(files))
end

local function refused(text, files, ...)
  expect.failed(world.run(HEAD .. text, nil, nil, with_files(files)), 2, ...)
end

local PLAN = 'moe.plan { model = m, cluster = %s, system = moe.system "raf" {} }'

test("a machine file holds what was measured, for a cluster of as many devices as ranks", function()
  local _, file = calibrated(2)
  local w = reads(PLAN:format 'moe.cluster.custom(moe.machine "box.lua")', { ["box.lua"] = file })
  local spec, c = w.plans[1], measured(2)
  expect.equal(spec.ranks, 2)
  for key, value in pairs(c.device) do
    local got = spec.cluster.device[key]
    assert(got == value or math.abs(got / value - 1) < 1e-8, key)
  end
  expect.equal(spec.cluster.intra.bytes_per_s, 4e9)
  expect.equal(spec.cluster.collectives.all_to_all.rows,
    { { 2000, 2.125 }, { 4000, 4.125 }, { 8000, 6.125 } })
  expect.equal(spec.cluster.collectives.all_reduce.source, "box.lua")
end)

test("calibrate writes what it measured as CSV for moe.op_table", function()
  local w = world.run("")
  local core = package.loaded["moe.core"]
  w.said, core.recipe, core.args.ranks = {}, nil, 2
  core.calibrate = function(ranks)
    local c = measured(ranks)
    c.gemm.rows[1].gemm = { m = 8, n = 16, k = 32 }
    return c
  end
  w.moe._main("calibrate", "box.lua")
  expect.equal(w.files["out/box.csv"], "op,dtype,m,n,k,ranks,bytes,us\ngemm,f32,8,16,32,,,7.125\n"
    .. "all_to_all,,,,,2,2000,2.125\nall_to_all,,,,,2,4000,4.125\nall_to_all,,,,,2,8000,6.125\n"
    .. "all_reduce,,,,,2,2000,4.125\nall_reduce,,,,,2,4000,8.125\nall_reduce,,,,,2,8000,12.125\n")
end)

test("calibrate on a GPU says so in the file, and is refused where there is none", function()
  local w = world.run("")
  local core = package.loaded["moe.core"]
  w.said, core.recipe, core.args.ranks, core.args.device = {}, nil, 2, "cuda"
  core.calibrate = function(ranks)
    local c = measured(ranks)
    c.executor, c.dtype = "cuda", core.args.precision
    c.overlap = { source = "measured with x and y",
      rows = core.array { { blocks = 4, gemm = 1.125, memory = 1.25 },
        { blocks = 8, gemm = 1.5, memory = 1.75 } } }
    return c
  end
  core.args.precision = "bf16"
  w.moe._main("calibrate", "machine.lua")
  local file = w.files["out/machine.lua"]
  assert(file:find("bf16, all ranks on one GPU, with copies between their buffers.", 1, true), file)
  assert(file:find('provenance = "measured"', 1, true), file)
  assert(file:find("blocks = 8, ", 1, true) and file:find("gemm = 1.5", 1, true), file)
  local said = table.concat(w.said, "\n")
  assert(said:find "4 +x1.125 +x1.250\n", said)
  assert(said:find("measured with x and y", 1, true), said)
  core.args.device = "cpu"
  local refused_, why = pcall(w.moe._main, "calibrate", "machine.lua")
  assert(not refused_ and tostring(why):find("--precision bf16: is only possible", 1, true))
  core.args.device = "cuda"
  core.processes = 4
  local ok, err = pcall(w.moe._main, "calibrate", "machine.lua")
  assert(not ok and tostring(err):find("--ranks 2: differs from the number of started", 1, true))
  core.args.ranks = nil
  w.moe._main("calibrate", "machine.lua")
  file = w.files["out/machine.lua"]
  assert(file:find("one GPU per rank, collectives by NCCL", 1, true), file)
  assert(file:find("ranks = 4", 1, true), file)
  core.executor_missing = function() return "the CUDA plugin sees no GPU" end
  ok, err = pcall(w.moe._main, "calibrate", "machine.lua")
  assert(not ok and tostring(err):find("--device cuda: the CUDA plugin sees no GPU", 1, true))
end)

test("a cluster of a file has compute slow beside transfers of so many blocks", function()
  local _, file = calibrated(2)
  file = file:gsub("ranks = 2,", [[ranks = 2, overlap = { source = "s", rows = {
    { blocks = 4, gemm = 1.125, memory = 1.25 }, { blocks = 8, gemm = 1.5 } } },]], 1)
  local files = { ["box.lua"] = file }
  local function of(options)
    return reads(PLAN:format(("moe.cluster.custom(moe.machine('box.lua', %s))"):format(options)),
      files).plans[1].cluster.overlap_slowdown
  end
  expect.equal(of "nil", { gemm = 1, memory = 1, transfer = 1 })
  expect.equal(of "{ blocks = 4 }", { gemm = 1.125, memory = 1.25, transfer = 1 })
  expect.equal(of "{ blocks = 8 }", { gemm = 1.5, memory = 1, transfer = 1 })
  refused('moe.machine("box.lua", { blocks = 6 })', files,
    "moe.machine.blocks: 6 was not measured; box.lua has times for blocks = 4, 8")
  refused('moe.machine("box.lua", { block = 4 })', files, "moe.machine: unknown key 'block'")
  refused('moe.machine("cpu.lua", { blocks = 4 })', { ["cpu.lua"] = select(2, calibrated(2)) },
    "moe.machine.blocks: 4 was not measured; cpu.lua has no times of compute during")
end)

test("a model on a measured machine is of the type that was measured", function()
  local _, file = calibrated(2)
  local files = { ["box.lua"] = (file:gsub('dtype = "f32"', 'dtype = "bf16"', 1)) }
  local plan = [[local b = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4,
    seq = 16, batch_per_device = 2, experts_per_device = 2 }
    moe.plan { model = b, cluster = moe.cluster.custom(moe.machine "box.lua"),
      system = moe.system "raf" {} }]]
  expect.equal(reads(plan, files).plans[1].model.dtype, "bf16")
  expect.failed(world.run(HEAD .. PLAN:format 'moe.cluster.custom(moe.machine "box.lua")', nil, nil,
    with_files(files)), 1,
    "dtype: 'f32' is not allowed on box.lua, whose rates were found with bf16")
end)

test("a machine file holds its residuals, and calibrate prints them", function()
  local said, file = calibrated(2)
  local t = assert(load(file, "file", "t", {}))()
  expect.equal(t.machine, 'a "machine"')
  expect.equal(t.residuals.gemm.rows[2], { 4000, 14.13, 0.02, 12, "linear hidden=16" })
  expect.equal(t.residuals.all_to_all.rows[3], { 8000, 6.13, 0.03, 13 })
  expect.equal(t.residuals.all_to_all.interpolation.worst_error, 0.04)
  expect.equal(t.residuals.roofline.median_error, 0.2)
  for _, part in ipairs { "GEMMs +2 +1.5%% +0.50 +3.00 GFLOP/s +10.0%% +25.0%% +linear hidden=16 "
    .. "+0.8750", "all_to_all +3 +2.0%% .* 4000 bytes", "roofline of these +4",
    "all_reduce, interpolated +1", "8000 +6.1[23] +3.0%% +13 +12.1[23]" } do
    assert(said:find(part), part .. "\n" .. said)
  end
end)

test("one rank has no collectives", function()
  local said, file = calibrated(1)
  assert(not said:find "all_to_all")
  local w = reads(PLAN:format 'moe.cluster.custom(moe.machine "box.lua")', { ["box.lua"] = file })
  expect.equal(w.plans[1].ranks, 1)
  expect.equal(next(w.plans[1].cluster.collectives), nil)
end)

test("tables of a machine hold for its number of ranks", function()
  local _, file = calibrated(2)
  refused([[local f = moe.machine "box.lua" f.devices_per_node = 4 moe.cluster.custom(f)]],
    { ["box.lua"] = file },
    "cluster.collectives.all_", "box.lua was measured with 2 ranks, but the cluster has 4 devices")
end)

test("what is no machine file is refused with the file and the field", function()
  local function bad(file, ...) refused('moe.machine "box.lua"', { ["box.lua"] = file }, ...) end
  refused('moe.machine "none.lua"', {}, "cannot read none.lua")
  refused("moe.machine { }", {}, "moe.machine: a table is not allowed; give a string")
  bad("return 5", "box.lua: 5 is not allowed; give a table")
  bad("return {", "box.lua:1: ")
  bad("return os.time()", "box.lua:1: attempt to index global 'os'")
  bad("\27LJ", "box.lua")
  bad("return { machine = 'x', ranks = 2 }", "box.lua.device: is missing")
  bad("return { machine = 'x', ranks = 2, device = {}, speed = 3 }", "box.lua: unknown key 'speed'")
  bad("return { machine = 'x', ranks = 2, device = {}, collectives = { all_to_all = { { 2, 1 }, "
    .. "{ 1, 1 } } } }", "box.lua.all_to_all[2]: 1 bytes come after 2")
end)

local function collectives(text)
  return PLAN:format("moe.cluster.p4de { nodes = 2, collectives = { " .. text .. " } }")
end

test("a table of collectives is a list of { bytes, us }", function()
  local w = reads(collectives "all_reduce = { { 1024, 3 }, { 2048, 4.5 } }", {})
  expect.equal(w.plans[1].cluster.collectives,
    { all_reduce = { rows = { { 1024, 3 }, { 2048, 4.5 } }, source = "the recipe" } })
  local function bad(rows, ...) refused(collectives("all_to_all = " .. rows), {}, ...) end
  bad("5", "collectives.all_to_all: 5 is not allowed; give a list of { bytes, us }")
  bad("{}", "all_to_all: has 0 rows; give at least 2")
  bad("{ { 1, 2 }, { 3 } }", "all_to_all[2]: has 1 numbers; give two: { bytes, us }")
  bad("{ { 1, 2 }, { 3, 4, 5 } }", "all_to_all[2]: has 3 numbers")
  bad("{ { 1, 2 }, { 3, -4 } }", "all_to_all[2][2]: -4 is not allowed")
  bad("{ { 1, 2 }, { 3, 0/0 } }", "all_to_all[2][2]: nan is not allowed")
  bad("{ { 1, 2 }, { 3, '4' } }", "all_to_all[2][2]: '4' is not allowed")
  bad("{ { 4, 2 }, { 4, 2 } }", "all_to_all[2]: 4 bytes come after 4")
  refused(collectives "all_to_many = {}", {}, "unknown key 'all_to_many'", "'all_to_all'")
end)

test("a cluster without tables has none", function()
  local w = reads(PLAN:format "moe.cluster.p4de { nodes = 2 }", {})
  expect.equal(next(w.plans[1].cluster.collectives), nil)
end)
