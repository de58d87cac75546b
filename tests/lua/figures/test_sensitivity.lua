-- The sensitivity of an experiment's results to the assumed constants.
local expect = require "expect"
local pages = require "figures/pages"
local test = require "test"
local world = require "world"

-- A model whose plans take 10 ms for each microsecond of an all-to-all's start.
local function recipe(more)
  return expect.HEAD .. ([[
local c = moe.cluster.custom { nodes = 2, devices_per_node = 8,
  device = { gemm_flops_per_s = 1, memory_bytes_per_s = 1 },
  intra = { bytes_per_s = 1 }, nic = { bytes_per_s = 1 },
  a2a_base_us = moe.assumed { value = 2, lo = 1, hi = 4, why = "made up" } }
local E = moe.experiment { name = "x", model = m, cluster = c,
  systems = { moe.system "raf" {}, moe.system "lancet_dw" {} }, MORE }
moe.run(E)
]]):gsub("MORE", more)
end

local function launch(w)
  w.step_ms = function(spec, ms) return ms + 10 * spec.cluster.a2a_base_us end
end

local function run(more, args)
  return world.run(recipe(more), args, "run", launch)
end

test("a field's sensitivity is that of each system, and of the speed-ups", function()
  for _, w in ipairs { run 'sensitivity = { "iteration_ms" }',
    run("", { sensitivity = "iteration_ms" }) } do
    assert(not w.error, w.message)
    local list = w.results.sensitivities
    local names = {}
    for i, record in ipairs(list) do names[i] = record.name end
    expect.equal(names, { "iteration_ms of raf", "iteration_ms of lancet_dw",
      "speed-up of lancet_dw over raf" })
    expect.equal({ list[1].ours, list[1].lo, list[1].hi }, { 120, 110, 140 })
    local s = list[1].sensitivity[1]
    expect.equal({ s.lo, s.hi, s.at_lo, s.at_hi }, { 1, 4, 110, 140 })
    expect.equal(list[3].ours, 120 / 100)
    pages.has(w.output, "Sensitivity to the assumed constants", "110..140")
  end
end)

test("a number of one's own is in a table of the page with what moves it", function()
  local w = run [[sensitivity = { { name = "gain <x>", unit = "ms", value = function(R)
    return R:where { system = "raf" }:get("iteration_ms"):mean() end } }]]
  assert(not w.error, w.message)
  local files = {}
  for name, text in pairs(w.files) do
    files[name:gsub("^out/", "old/")] = name:find "trace%-" and pages.TRACE or text
  end
  pages.has(assert(pages.page_of(files)), "Sensitivity to the assumed constants",
    "gain &lt;x&gt;", "a2a_base_us (110..140)")
  assert(pages.export_of(files)["x-sensitivity.csv"])
  files["old/results.json"] = nil  -- the program was killed: the lines have it too
  pages.has(assert(pages.page_of(files)), "gain &lt;x&gt;")
end)

test("what cannot be varied is refused where it stands", function()
  local function refused(more, args, ...)
    local w = run(more, args)
    assert(w.error and w.error.kind == "user", w.message or "no error was raised")
    pages.has(w.message, ...)
  end
  refused('sensitivity = { "iteration" }', nil, "experiment.sensitivity[1]", "iteration_ms")
  refused("", { sensitivity = "peak" }, "--sensitivity", "unknown field")
  refused('sensitivity = { "iteration_ms" }, band = "none"', nil, "experiment.band: 'none'")
  refused("sensitivity = { { name = 'n' } }", nil, "experiment.sensitivity[1].value")
  refused("sensitivity = { { name = 'n', value = function() return 'x' end } }", nil,
    "the value of 'n' is 'x'")
end)

test("a number that no run gives is named, and leaves no line that cannot be read", function()
  local w = run("sensitivity = { { name = 'n', value = function() end } }")
  assert(not w.error, w.message)
  pages.has(w.output, "Sensitivity of 'n': there is no run that gives the number")
  assert(not w.files["out/runs.jsonl"]:find("\n{}", 1, true))
end)

test("a misspelt --sensitivity is refused before earlier results are moved", function()
  local w = world.run(expect.HEAD .. 'return moe.experiment { name = "x", model = m, '
    .. 'cluster = moe.cluster.p4de { nodes = 1 }, systems = { moe.system "raf" {} } }',
    { sensitivity = "iteration" })
  expect.failed(w, 2, "--sensitivity: unknown field of a simulated run 'iteration'")
  expect.equal(w.kept, nil)
end)
