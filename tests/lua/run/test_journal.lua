-- runs.jsonl: what is finished is on disk at once, and reads back where results.json does not.
local expect = require "expect"
local test = require "test"
local world = require "world"

local function recipe(more)
  return expect.HEAD .. [[
local E = moe.experiment { name = "x", over = { nodes = { 2, 4 } },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "deepspeed" {} } } end,
  run = { "simulate", { "cpu", ranks = 2, steps = 3 } } }
moe.run(E)
]] .. (more or "")
end

-- The files of a folder "old" as the recipe leaves them.
local function folder(setup) return world.left(recipe(), "old", setup) end

-- moe.results "old" with these files: its runs, and the world.
local function read(files)
  local w = expect.runs([[local moe = require "moe" R = moe.results "old"]], {}, "run",
    function(w) for name, text in pairs(files) do w.files[name] = text end end)
  return w.globals.R.runs, w
end

-- The executed runs of a case are planned together, since they run in turns.
test("each simulated run is on disk before the next one is planned", function()
  local counts = {}
  world.run(recipe(), {}, "run", function(w, core)
    local plan = core.plan
    core.plan = function(spec)
      local text, n = w.files["out/runs.jsonl"], 0
      for _, line in ipairs(world.lines(text)) do n = math.max(n, line.run or 0) end
      counts[#counts + 1] = n
      assert(not w.files["out/results.json"])
      return plan(spec)
    end
  end)
  expect.equal(counts, { 0, 1, 2, 3, 4, 4 })
end)

test("the lines alone read as the whole file does", function()
  local files = folder()
  local whole = read(files)
  expect.equal(#whole, 6)
  files["old/results.json"] = nil
  expect.equal(read(files), whole)
end)

test("a last line that was cut off is left out, with a message", function()
  local files = folder()
  local lines = "old/runs.jsonl"
  files["old/results.json"] = nil
  files[lines] = files[lines]:sub(1, -20)
  local runs, w = read(files)
  expect.equal(#runs, 6)  -- of the last one there was a line before, without its trace
  expect.equal(w.warned, { "old/runs.jsonl: the last line is cut off and is skipped" })
end)

test("a line in the middle that is none is named", function()
  for _, case in ipairs { { "{\n", "line 3: " }, { "[]\n", "line 3: the line was not written" },
      { '{"run":9,"record":{}}\n', "line 3: run: the number is 9; allowed: 1 to 1" },
      { '{"run":[],"record":{}}\n', "line 3: run: the number is a table; allowed: 1 to 1" } } do
    local files = folder()
    files["old/results.json"] = nil
    local first, rest = files["old/runs.jsonl"]:match "^([^\n]*\n[^\n]*\n)(.*)$"
    files["old/runs.jsonl"] = first .. case[1] .. rest
    local w = world.run('local moe = require "moe"\nmoe.results "old"', {}, "run", function(w)
      for name, text in pairs(files) do w.files[name] = text end
    end)
    expect.failed(w, 2, "old/runs.jsonl: " .. case[2])
  end
end)

test("of a results.json and lines that differ the one that knows more is read", function()
  local files = folder()
  local whole, w = read(files)
  expect.equal(w.warned, {})
  -- A later session was killed.
  local later = folder(function(_, core) core.session = "later" end)
  local both = { ["old/results.json"] = files["old/results.json"],
    ["old/runs.jsonl"] = later["old/runs.jsonl"]:match "^(.*\n)[^\n]*\n[^\n]*\n[^\n]*\n$" }
  local runs, late = read(both)
  assert(#runs < #whole and #runs > 0)
  expect.equal(late.warned,
    { "old/results.json is older than old/runs.jsonl, which is read instead" })
  -- It had finished nothing.
  both["old/runs.jsonl"] = later["old/runs.jsonl"]:match "^[^\n]*\n[^\n]*\n"
  expect.equal(read(both), whole)
  -- The lines are damaged.
  both["old/runs.jsonl"] = "[]\n" .. later["old/runs.jsonl"]
  runs, late = read(both)
  expect.equal(runs, whole)
  expect.equal(late.warned,
    { "recipe.lua:1: old/runs.jsonl: line 1: the line is not the first line of a file that "
      .. "moebench writes; the file is ignored" })
end)

test("values of another type in either file are refused or passed over by name", function()
  local files = folder()
  local function with(results, lines)
    return world.run('local moe = require "moe"\nR = moe.results "old"', {}, "run", function(w)
      w.files["old/results.json"], w.files["old/runs.jsonl"] = results, lines
    end)
  end
  local whole, lines = files["old/results.json"], files["old/runs.jsonl"]
  expect.failed(with(whole:gsub('"lines":%s*%d+', '"lines": "x"'), lines), 2,
    "old/results.json: lines")
  local w = with(whole, (lines:gsub('"machine":%s*{', '"machine": 7, "was": {', 1)))
  expect.equal(w.failure, nil)
  assert(w.warned[1]:find("runs.jsonl: machine", 1, true)
    and w.warned[1]:find("the file is ignored", 1, true), w.warned[1])
end)

test("a terminal is shown each finished run and what is expected of the rest", function()
  local now, seen = 0, {}
  local w = world.run(recipe(), {}, "run", function(w, core)
    core.clock = function() return now end
    local status = core.status
    core.status = function(...)
      status(...)
      local what, own, rest = ...
      seen[#seen + 1] = { what, own or "none", rest }
      now = now + 2
    end
  end)
  expect.equal(#w.rows, 6)
  assert(w.rows[1]:find("raf on p4de, 16 devices, nodes = 2: simulated", 1, true), w.rows[1])
  assert(w.rows[5]:find("raf on cpu, 2 ranks: measured", 1, true), w.rows[5])
  expect.equal(seen[1], { "[1/5] simulating raf on 16 p4de devices", "none" })
  expect.equal(seen[2][2], 2)    -- as the first one took
  expect.equal(seen[2][3], nil) -- nothing was executed so far
  expect.equal(seen[5], { "[5/5] raf, deepspeed on 2 ranks of cpu", "none", 0 })
end)
