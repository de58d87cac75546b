-- moe.bundle: what it packs comes out the same elsewhere, and a changed result is named.
local expect = require "expect"
local world = require "world"
local test = require "test"

local RECIPE = [[
local moe = require "moe"
local sizes = moe.read_json "sizes.json"
return moe.experiment { name = "x", over = { nodes = { 1, 2 } }, case = function(p) return {
  model = moe.model.gpt2_moe { vocab = 256, layers = sizes.layers, hidden = 32, heads = 4, seq = 16,
    batch_per_device = 2, experts_per_device = 2 },
  cluster = moe.cluster.p4de { nodes = p.nodes },
  systems = { moe.system "raf" {}, moe.system "lancet" {} } } end, run = { "simulate" } }
]]

-- A setup in which there are these files, and the hash of a text is its length.
local function with(files)
  return function(_, core)
    local read = core.read_file
    core.read_file = function(name) return files[name] or read(name) end
    core.text_hash = function(text) return text == RECIPE and "00" or "other" end
  end
end

local PACK = [[
local moe = require "moe"
moe.bundle.write { recipe = "mine.lua", results = "in", files = { "sizes.json" }, to = "b.lua" }
]]

local SIZES = { ["sizes.json"] = '{"layers":4}' }

-- The text of the bundle of a run with these further settings.
local function packed()
  local files = world.left(RECIPE, "in", with(SIZES))
  files["sizes.json"], files["mine.lua"] = SIZES["sizes.json"], RECIPE
  local w = expect.runs(PACK, {}, "run", with(files))
  return w.files["out/b.lua"], files
end

test("a bundle repeats a run without the recipe's files, and names what differs", function()
  local text, files = packed()
  local w = expect.runs(text, {}, "run", with {})
  assert(w.output:find("4 the same, 0 different, 0 missing", 1, true), w.output)
  w = world.run((text:gsub('"iteration_ms":', '"iteration_ms":1', 1)), {}, "run", with {})
  expect.failed(w, nil, "moe.bundle: 1 results differ")
  assert(w.output:find("differs: iteration_ms", 1, true), w.output)
  files["mine.lua"] = RECIPE .. "\n"
  expect.failed(world.run(PACK, {}, "run", with(files)), 2, "is not the recipe of the results")
  expect.fails('require("moe").bundle.open "[]"', 1, "it is not what moe.bundle.write wrote")
end)
