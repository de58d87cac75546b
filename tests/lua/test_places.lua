-- The line of an error is the line of the field at fault.
local expect = require "expect"
local locate = require "moe.base.locate"
local test = require "test"
local world = require "world"

test("an unknown key is named with the nearest one, at its own line", function()
  expect.fails([[
local moe = require "moe"
local m = moe.model.gpt2_moe {
  layers = 2, hidden = 32, heads = 4, seq = 16,
  batch = 2, experts = 4,
  capcity_factor = 1 }
]], 5, "model.gpt2_moe: unknown key 'capcity_factor'", "Did you mean 'capacity_factor'?")
end)

test("a key at depth is found in its own table, not in its neighbour's", function()
  expect.fails([[
local moe = require "moe"
local c = moe.cluster.custom {
  nodes = 2, devices_per_node = 2,
  device = { gemm_flops_per_s = 1, memory_bytes_per_s = 1 },
  intra = { bytes_per_s = 1e9, latency_us = 1 },
  nic = {
    latency_us = 1,
    bytes_per_s = -1,
  },
}
]], 8, "cluster.nic.bytes_per_s: -1 is not allowed")
end)

test("an entry of a list is found by its number", function()
  expect.fails(expect.HEAD .. [[
return moe.experiment {
  name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {} },
  run = {
    "simulate",
    { "cpu", ranks = 2 },
    { "cpu", link = {
        bytes_per_s = 1e8,
        latencyus = 1 } },
  },
}
]], 10, "experiment.run[3].link: unknown key 'latencyus'", "Did you mean 'latency_us'?")
end)

test("a call that is returned, which leaves no frame, still has its line", function()
  expect.fails(expect.HEAD .. [[
local function helper()
  return 1
end
return moe.experiment {
  model = m,
  nme = "x" }
]], 7, "experiment: unknown key 'nme'")
end)

test("a call that a helper returns is found where its key stands", function()
  expect.fails([[
local moe = require "moe"
local function model(gate)
  return moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16,
    batch = 2, experts = 4,
    gaet = gate }
end
local m = model "switch"
]], 5, "unknown key 'gaet'")
end)

test("a table made elsewhere is found where its key stands", function()
  expect.fails(expect.HEAD .. [[
local options = {
  model = m,
  stepz = 3,
}
moe.train(options)
]], 4, "moe.train: unknown key 'stepz'")
end)

test("a field that is missing is an error at its call", function()
  expect.fails([[
local moe = require "moe"
local a = { layers = 2 }
local m = moe.model.gpt2_moe {
  hidden = 32, heads = 4, seq = 16, batch = 2, experts = 4 }
]], 3, "model.gpt2_moe.layers: is missing")
end)

test("errors of the core get the recipe's line, with the field's own where it is there", function()
  expect.failed(world.run([[
local moe = require "moe"
local m = moe.model.gpt2_moe { layers = 2, hidden = 28,
  heads = 7, seq = 16, batch = 2, experts = 4, vocab = 256 }
moe.train { model = m }
]], {}, "run", function(_, core)
    core.check_model = function() error("model.heads: 7 is not liked", 0) end
  end), 3, "model.heads: 7 is not liked")
  expect.fails(expect.HEAD .. [[
local p = moe.plan { model = m, cluster = moe.cluster.p4de { nodes = 2 },
  system = moe.system "raf" {} }
p:order "compute"
p:order "nonsense"
]], 5, "unknown lane 'nonsense'")
end)

test("an error while the case function runs stands inside the function", function()
  expect.fails([[
local moe = require "moe"
return moe.experiment { name = "x", over = { nodes = { 2 } },
  case = function(p)
    local c = moe.cluster.p4de { nodes = p.nodes,
      naem = 1 }
    return { cluster = c }
  end }
]], 5, "cluster.p4de: unknown key 'naem'")
end)

test("a name that the library does not have is an error with the nearest one", function()
  expect.fails('local moe = require "moe"\nmoe.experimnt {}', 2, "unknown name 'experimnt'",
    "Did you mean 'experiment'?")
  expect.fails('local moe = require "moe"\n\nmoe.cluster.p4d {}', 3, "unknown cluster 'p4d'",
    "Did you mean 'p4de'?")
  expect.fails('local moe = require "moe"\nlocal s = moe.pass.dw_scheduel {}', 2,
    "unknown pass 'dw_scheduel'", "Did you mean 'dw_schedule'?")
end)

test("brackets and keys in texts and comments do not mislead", function()
  local text = [==[
f {
  a = "} b = 1", -- } b = 2
  --[[ b = 3
  } ]]
  c = [[ b = 4 } ]], d = 'it\'s } b = 5',
  case = function(p) if p then local q, r = 1, 2 end return { b2 = 6 } end,
  ["b"] = 7,
}
b = 8
]==]
  expect.equal(locate.line(text, 1, "f.b"), 7)
  expect.equal(locate.line(text, 1, "f.case.b2"), 6)
end)

test("the second call of a line is looked at as well", function()
  expect.equal(locate.line("local a = f(1) local b = g {\n x = 1,\n y = 2 }\n", 1, "g.y"), 3)
end)

test("what is nowhere in the text is at the call", function()
  expect.equal(locate.line("f {\n a = { 1, 2 } }", 1, "f.z"), 1)
  expect.equal(locate.line("f {\n a = { 1, 2 } }", 1, "f.a[7].z"), 2)
  expect.equal(locate.line("f {", 9, "f.a"), 9)
end)
