-- Lanes that pick, exclusive lanes, chunks, priorities and holds from Lua, on a small model's plan.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
  batch_per_device = 2, experts_per_device = 1 }
local function plan_of(passes)
  passes.all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }
  return moe.plan { model = model, cluster = moe.cluster.p4de { nodes = 1 },
    system = moe.system "mine" (passes) }
end
local function schedule(apply, ...)
  return plan_of { moe.policy.schedule { name = "mine", apply = apply } {}, ... }
end
]]  -- 11 lines

local function good(text) expect.plans(HEAD .. text) end

-- Rows: the body of a schedule(s, g) on line 12, parts of the message. passes: those after it.
local function bad(rows, passes)
  for _, row in ipairs(rows) do
    expect.plans(("%sschedule(function(s, g) %s end%s)"):format(HEAD, row[1], passes or ""),
      unpack(row, 2))
  end
end

test("a pick in Lua that follows the priorities plans and simulates as the built-in one", function()
  good([[
    local function system(pick)
      return schedule(function(s, g)
        for _, op in ipairs(g:ops { kind = "all_to_all" }) do
          s:priority(op, 1)
          assert(op.priority == 1)
        end
        s:discipline("comm_reduce", { pick = pick })
        s:discipline("comm", { pick = pick })
      end)
    end
    local calls = 0
    moe.policy.schedule { name = "other", apply = function() end }
    local builtin = plan_of { moe.policy.schedule { name = "builtin", apply = function(s, g)
      s:discipline("comm_reduce", { pick = "priority" })
      s:discipline("comm", { pick = "priority" })
    end } {} }
    local own = system(function(ready)
      calls = calls + 1
      local best = ready[1]
      for _, op in ipairs(ready) do
        assert(op.name and op.bytes > 0 and (op.kind == "all_to_all" or op.kind == "all_reduce"))
        if op.priority > best.priority then best = op end
      end
      return best
    end)
    assert(calls > 50, calls)
    assert(own:simulate().iteration_ms == builtin:simulate().iteration_ms)
  ]])
end)

test("a pick decides: the largest first ends the largest before the smallest", function()
  good([[
    local first
    local function by(better)
      return plan_of { moe.policy.schedule { name = "by" .. tostring(better), apply = function(s, g)
        s:discipline("comm_reduce", { pick = function(ready)
          local best = ready[1]
          for _, op in ipairs(ready) do if better(op, best) then best = op end end
          if #ready > 5 and not first then first = best end
          return best
        end })
      end } {} }
    end
    by(function(a, b) return a.bytes > b.bytes end)
    local large = first
    first = nil
    by(function(a, b) return a.bytes < b.bytes end)
    assert(large and first and large ~= first)
  ]])
end)

test("handles that the schedule kept are those that a pick gets, readable there only", function()
  good([[
    local seen, kept_s
    local last
    schedule(function(s, g)
      local ops = g:ops { kind = "all_reduce" }
      last = ops[#ops]
      kept_s = s
      s:discipline("comm_reduce", { pick = function(ready)
        for _, op in ipairs(ready) do
          if op == last then seen = last.name end
        end
        local ok, why = pcall(function() kept_s:priority(ready[1], 2) end)
        assert(not ok and tostring(why):find("a pick cannot change", 1, true), tostring(why))
        return ready[1]
      end })
    end)
    assert(seen)
    local ok, why = pcall(function() return last.name end)
    assert(not ok and tostring(why):find("has ended", 1, true))
  ]])
end)

test("what a pick does wrong fails the run at its line, with lane and schedule", function()
  for i, row in ipairs {
    { "return nil", "recipe.lua:13: ", "returned nil, although op '" },
    { "return g:op { kind = 'gelu' }", "which is not ready" },
    { "return g:ops { kind = 'all_to_all' }[4]", "returned op", "which is not ready" },
    { "return 1", "returned a number; return one of the ready ops" },
    { "local x = nil; x()", "recipe.lua:14: attempt to call" },
  } do
    local w = expect.plans(HEAD .. "schedule(function(s, g)\ns:discipline('comm', { pick = "
      .. "function(ready)\n" .. row[1] .. " end }) end)", "lane 'comm'", "schedule 'mine'",
      unpack(row, 2))
    expect.equal(w.error.kind, i < 5 and "run" or "lua")
  end
end)

test("Lina's priority written in Lua makes the built-in's plan", function()
  good([[
    local own = schedule(function(s, g)
      for _, op in ipairs(g:ops { kind = "all_to_all" }) do s:priority(op, 1) end
      for _, op in ipairs(g:ops { kind = "all_reduce", where = function(op)
        return op.inputs[1].bytes > 1000 end }) do
        s:chunk(op, 1000)
      end
      s:discipline("comm", { exclusive = { "comm_reduce" }, hold = function(op, g)
        local from = op:producers()[1]
        return from and from.kind == "combine_dx" and from or nil
      end })
    end)
    local builtin = plan_of { moe.pass.priority {}, moe.pass.chunked { bytes = 1000 } }
    assert(own:simulate().iteration_ms == builtin:simulate().iteration_ms)
    local free = plan_of { moe.pass.priority { hold = false }, moe.pass.chunked { bytes = 1000 } }
    assert(own:info().hash ~= free:info().hash)
  ]])
end)

test("a discipline that is wrong is refused at its line", function()
  bad {
    { "s:discipline('com', { pick = 'priority' })", "recipe.lua:12: ", "unknown lane 'com', have",
      "Did you mean 'comm'?" },
    { "s:discipline('comm', { pik = 'priority' })",
      "recipe.lua:12: s:discipline: unknown key 'pik'", "Did you mean 'pick'?" },
    { "s:discipline('comm', { pick = 'priorty' })", "'priority'?" },
    { "s:discipline('comm', { pick = 3 })",
      'pick: a number is not allowed; give "order", "priority" or a function' },
    { "s:discipline('compute', { pick = 'priority' })",
      "recipe.lua:12: lane 'compute' is a compute lane" },
    { "s:discipline('comm', { exclusive = { 'compute' } })",
      "recipe.lua:12: lane 'compute' is a compute lane" },
    { "s:discipline('comm', { exclusive = { 'comm' } })",
      "recipe.lua:12: exclusive: lane 'comm' is listed twice" },
    { "s:discipline('comm', {}) s:discipline('comm', { pick = 'priority' })",
      "lane 'comm' already has a discipline", "'mine' and 'mine'" },
    { "s:discipline('comm', { hold = function() end })",
      "lane 'comm' runs its ops in the schedule's order and is not exclusive" },
    { "s:discipline('comm', { pick = 'priority', hold = function(op) return op end })",
      "recipe.lua:12: s:discipline: hold of", "is not a compute op" },
    { "s:discipline('comm', { pick = 'priority', hold = function(op, g) return "
      .. "g:op { kind = 'sgd' } end })",
      "illegal schedule: hold", "the first op must come before the second" },
  }
  bad({ { "s:discipline('comm', {})", "lane 'comm' already has a discipline",
    "'mine' and 'priority'" } }, ", moe.pass.priority {}")
  expect.plans(HEAD .. "plan_of { moe.pass.prophet {}, moe.pass.priority {} }",
    "priority { hold = false }", "give 'b3.moe.copy' a priority of 1")
end)

test("a chunk or a priority that is wrong is refused at its line", function()
  local op = "local op = g:op { kind = 'all_reduce' } "
  for _, bytes in ipairs { "0", "-1", "1e12", "0/0", "2.5" } do
    bad { { op .. "s:chunk(op, " .. bytes .. ")", "recipe.lua:12: s:chunk: bytes of "
      .. "'all_reduce.0': ", "is not allowed; give a whole number from 1 to 256" } }
  end
  bad {
    { op .. "s:chunk(op, 64) s:chunk(op, 32)",
      "is already cut into chunks of 64 bytes (stages 'mine' and 'mine')" },
    { "s:chunk(g:op { kind = 'gelu' }, 64)", "is a gelu; only transfers can be cut into chunks" },
    { op .. "s:priority(op, 0.5)", "s:priority: 0.5 is not allowed" },
  }
  bad({ { op .. "s:chunk(op, 64)", "(stages 'mine' and 'chunked')" } },
    ", moe.pass.chunked { bytes = 100 }")
end)
