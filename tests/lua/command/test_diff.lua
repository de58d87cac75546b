-- What `moebench diff` prints of two folders.
local expect = require "expect"
local test = require "test"
local world = require "world"

local RECIPE = expect.HEAD .. [[
return moe.experiment { name = "x", over = { nodes = { 2, 4 } },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "lancet_dw" {} } } end,
  run = { "simulate", { "cpu", ranks = 2, steps = 12 } } }
]]

local function named(pid, tid, what, name)
  return { ph = "M", name = what .. "_name", pid = pid, tid = tid, args = { name = name } }
end

-- A trace whose lanes run these ops: { name, begin, duration } in us.
local function trace(compute, comm)
  local events = { named(1, 0, "process", "simulated rank 0"), named(1, 1, "thread", "compute"),
    named(1, 2, "thread", "comm") }
  for tid, list in ipairs { compute, comm or {} } do
    for i, op in ipairs(list) do
      if type(op) == "string" then op = { op, 10 * i, 10 } end
      events[#events + 1] = { ph = "X", name = op[1], ts = op[2], dur = op[3], pid = 1, tid = tid,
        args = { op = op[4] or "linear" } }
    end
  end
  return world.encode { traceEvents = events }
end

-- What is printed of two folders, each as the recipe leaves it (args: of the command line, by
-- folder). change(results, files, i) changes what folder i has.
local function diff(change, args)
  local files = {}
  for i, folder in ipairs { "a", "b" } do
    local own = args and expect.runs(RECIPE, args[i]).files or world.left(RECIPE, "out")
    if change then
      local results = world.decode(own["out/results.json"])
      change(results, own, i)
      own["out/results.json"], own["out/runs.jsonl"] = world.encode(results), nil
    end
    for name, text in pairs(own) do files[name:gsub("^out/", folder .. "/")] = text end
  end
  local w = world.run("", {}, "diff", function(w, core)
    for name, text in pairs(files) do w.files[name] = text end
    core.args.folders, core.recipe = { "a", "b" }, nil
  end)
  assert(not w.error, w.message)
  return w.output
end

local function has(text, ...)
  for _, part in ipairs { ... } do
    assert(text:find(part, 1, true), ("expected '%s':\n%s"):format(part, text))
  end
end

test("results of the same runs are equal", function()
  has(diff(), "The results are equal: times, memory and plans of 6 runs")
end)

test("points are matched by their coordinates, others are listed with their side", function()
  local text = diff(nil, { {}, { set = { nodes = "4,8" } } })
  has(text, "nodes = 4", "Only before, 2 runs:\n  nodes = 2, 16 devices, raf",
    "Only after, 2 runs:\n  nodes = 8, 64 devices, raf", "--set nodes=4,8")
end)

test("a system whose choice differs is shown with both choices", function()
  has(diff(function(results, _, i)
    for _, run in ipairs(results.runs) do
      if run.executor == "simulate" then run.choice = "degree=" .. 2 * i end
    end
  end), "raf (degree=2) -> raf (degree=4)")
end)

test("a changed field of the cluster is named, and its times are compared", function()
  local text = diff(function(results, _, i)
    for _, run in ipairs(i == 2 and results.runs or {}) do
      if run.executor == "simulate" then
        run.iteration_ms, run.cluster_parameters.nic.bytes_per_s = run.iteration_ms / 2, 7
        run.trace = nil
      end
    end
  end)
  has(text, "0.500  faster", "cluster_parameters.nic.bytes_per_s: ", " -> 7 (4 of 6 runs)")
end)

test("executed times are resolved only where their intervals are apart", function()
  local function of(factor)
    return diff(function(results, _, i)
      for _, run in ipairs(results.runs) do
        if run.executor == "cpu" then
          run.trace = nil
          for step = 1, 12 do run.samples_ms[step] = (i == 1 and 1 or factor) * (100 + step % 5) end
          run.iteration_ms = run.samples_ms[4]
        end
      end
    end)
  end
  has(of(1.01), "1.010  not resolved")
  has(of(1.2), "1.200  slower", "102 (100..104)")
  has(of(0.8), "0.800  faster")
end)

-- The lines on the plan of the first run, whose traces are `before` and `after`.
local function plan_of(before, after)
  local text = diff(function(results, files, i)
    for n, run in ipairs(results.runs) do
      if n > 1 then run.trace = nil end
    end
    results.runs[1].plan_hash = "hash " .. i
    files["out/" .. results.runs[1].trace] = i == 1 and before or after
  end)
  return text:match "\nPlan of [^\n]*\n(.*)" or ""
end

test("an op that is put elsewhere is the only one that moved, wherever it goes", function()
  local names = { "b0.a", "b0.b", "b0.c", "b1.a", "b1.b", "b1.c" }
  for from = 1, #names do
    for to = 1, #names do
      local list = { unpack(names) }
      table.insert(list, to, (table.remove(list, from)))
      local text = plan_of(trace(names), trace(list))
      if from == to then
        expect.equal(text, "")
      else
        has(text, "moved in the order of their lane: 1 op\n")
        if math.abs(from - to) > 1 then has(text, "  " .. names[from] .. ": now ") end
      end
    end
  end
end)

test("ops that were added, removed, cut, or are on another lane are told apart", function()
  local text = plan_of(trace({ "b0.x", "b0.y", "b0.z", "b1.x" }, { { "b0.t", 0, 5 } }),
    trace({ "b0.x.p0", "b0.x.p1", "b0.t", "b1.x.p0", "b1.x.p1", { "new", 99, 1, "split" } },
      { { "b0.y", 0, 1 } }))
  has(text, "added, by kind: 1 op\n  split", "removed, by kind: 1 op\n  linear",
    "cut otherwise: 2 ops\n  b*.x (2 ops): 1 part -> 2 parts",
    "moved to another lane: 2 ops\n  b0.t: comm -> compute\n  b0.y: compute -> comm")
end)

test("hidden communication is that under compute of the same rank", function()
  local function at(begin)
    return trace({ { "b0.x", 0, 4000 }, { "b0.y", 6000, 2000 } },
      { { "b0.a2a", begin, 3000 }, { "b1.a2a", 9000, 1000 } })
  end
  has(plan_of(at(4000), at(500)), "hidden communication: 1.00 of 4.00 ms, now 3.00 of 4.00 ms\n"
    .. "  b*.a2a: 1.00 -> 3.00 ms")
  expect.equal(plan_of(at(4000), at(3000)):match "b%*.a2a: (.-)\n?$", nil)
end)
