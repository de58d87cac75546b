-- Passes and schedules in Lua, on the plan of a small model.
local expect = require "expect"
local test = require "test"

local HEAD = [[
local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
  batch_per_device = 2, experts_per_device = 1 }
local cluster = moe.cluster.p4de { nodes = 1, stack = false }
local function plan(pass)
  return moe.plan { model = model, cluster = cluster, system = moe.system "mine" { pass } }
end
local function schedule(apply)
  return plan(moe.policy.schedule { name = "mine", apply = apply } {})
end
local function step_pass(apply)
  return plan(moe.policy.pass { name = "mine", at = "step", apply = apply } {})
end
local function contains(list, name)
  for i, n in ipairs(list) do if n == name then return i end end
end
]]  -- 16 lines

local function good(text) expect.plans(HEAD .. text) end
local function bad(text, ...) expect.plans(HEAD .. text, ...) end

-- Rows: the body of a schedule(s, g), or of a pass(g, ctx), and parts of the message.
local function bad_schedules(rows)
  for _, row in ipairs(rows) do
    bad("schedule(function(s, g) " .. row[1] .. " end)", unpack(row, 2))
  end
end
local function bad_passes(rows)
  for _, row in ipairs(rows) do
    bad("step_pass(function(g, ctx) " .. row[1] .. " end)", unpack(row, 2))
  end
end

test("ops are found by what they are", function()
  good([[schedule(function(s, g)
    local all = g:ops()
    local fwd = g:ops { kind = "all_to_all", phase = "forward" }
    assert(#fwd == 4, #fwd)
    assert(#g:ops { kind = "all_to_all", phase = "forward", layer = 2 } == 2)
    assert(#g:ops { kind = "all_to_all", layer = 1 } == 0)
    for _, op in ipairs(g:ops { dw = true }) do assert(op.dw and op.phase == "backward") end
    local heavy = g:ops { where = function(op) return op.flops > 1e6 end }
    assert(#heavy > 0 and #heavy < #all)
    local a2a = fwd[1]
    assert(a2a == g:op(a2a.name) and a2a == g:op { name = a2a.name })
    assert(a2a.lane == "comm" and a2a.seg == "dispatch" and a2a.layer == 2 and a2a.part == nil)
    assert(a2a.cost_ms > 0 and a2a.bytes > 0 and not a2a.dw and tostring(a2a) == a2a.name)
    local p = a2a:producers()
    assert(#p >= 1 and contains(p, p[1]))
    for _, op in ipairs(p) do assert(contains(op:consumers(), a2a)) end
    assert(#a2a.outputs[1].shape == 4 and a2a.outputs[1].bytes > 0)
    assert(a2a:attr "to" == "expert" and a2a:attr "no" == nil)
  end)]])
end)

test("wrong questions about ops are answered at their line", function()
  bad_schedules {
    { "\n g:ops { knd = 'gate' }", "recipe.lua:18: g:ops: unknown key 'knd'", "'kind'" },
    { "g:ops { kind = 'gat' }", "'gate'" },
    { "g:ops { seg = 'atn' }", "'attn'" },
    { "g:ops { phase = 'back' }", "backward" },
    { "g:op 'nothing'", "the graph has no op 'nothing'" },
    { "return g:ops()[1].cost", "unknown field of an op 'cost'" },
    { "s:before(g:ops()[1])", "argument 2: nothing is given, but an op is needed" },
    { "g:remove(g:ops()[1])", "a schedule policy cannot edit the graph" },
  }
end)

test("handles are refused once the policy's call is over", function()
  for keep, use in pairs { ["g:ops()[1]"] = "print(kept.name)", g = "kept:ops()",
    s = "kept:lane()" } do
    bad("local kept\nschedule(function(s, g) kept = " .. keep .. " end)\n" .. use,
      "recipe.lua:19: this handle is from a call of a policy that has ended")
  end
end)

test("before, sequence and under order the lanes; free sees data and order edges", function()
  good([[
    local first, second, hidden, a2a
    local p = schedule(function(s, g, ctx)
      local back = g:ops { kind = "all_to_all", phase = "backward" }
      a2a = back[1].name
      local free = g:ops { dw = true, where = function(op) return s:free(op, back[1]) end }
      assert(#free > 1)
      for _, op in ipairs(back[1]:producers()) do assert(not s:free(op, back[1])) end
      assert(not s:free(back[1], back[1]))
      s:under(free[1], back[1])
      assert(s:free(free[1], back[1]), "under leaves the two side by side")
      hidden = free[1].name
      local a, b = free[2], free[3]
      if s:free(a, b) then
        s:before(b, a)
        assert(not s:free(a, b) and not s:free(b, a))
        first, second = b.name, a.name
      end
      ctx.log(free[1], "longest")
      ctx:log(free[2], "again")
      assert(ctx.cost_ms(free[1]) == free[1].cost_ms and ctx:cost_ms(free[1]) > 0)
      assert(ctx.model.layers == 4 and ctx.cluster.devices == 8)
    end)
    local order = p:order "compute"
    if first then assert(contains(order, first) < contains(order, second)) end
    assert(p:explain().text:find(hidden .. "  [mine]  longest", 1, true), p:explain().text)
  ]])
end)

test("an op goes only onto a lane that runs its kind", function()
  bad_schedules {
    { "\n s:lane(g:op { kind = 'gate' }, 'comm')", "recipe.lua:18: illegal schedule",
      "lane 'comm'", "(in schedule 'mine')" },
    { "s:lane(g:op { kind = 'gate' }, 'com')", "comm" },
    { "s:under(g:ops()[1], g:ops()[2])", "is not a collective" },
    { "local a = g:ops { kind = 'all_to_all' } s:before(a[2], a[1])", "cycle" },
    { "ctx = nil\nlocal x = nil; x()", "recipe.lua:18: attempt to call", "(in schedule 'mine')" },
  }
end)

test("a pass may insert, redirect and remove", function()
  good([[
    local p = step_pass(function(g)
      local op = g:op { kind = "gelu", phase = "forward", layer = 1 }
      local again = g:insert { kind = "gelu", name = "mine.gelu", inputs = op.inputs,
        phase = "forward", seg = op.seg, layer = op.layer }
      assert(again.name == "mine.gelu" and again.layer == op.layer and again.seg == op.seg)
      g:redirect(op, again)
      g:remove(op)
    end)
    assert(contains(p:order "compute", "mine.gelu"))
  ]])
  local insert = "g:insert { kind = 'gelu', name = 'x', inputs = { g:ops()[1] }, "
  bad_passes {
    { "local op = g:ops()[1] g:remove(op) print(op.name)", "was removed from the graph" },
    { "g:remove(g:op { kind = 'all_to_all', phase = 'forward' })", "mine" },
    { "g:insert { kind = 'ad', name = 'x', inputs = {} }", "Did you mean 'add'?" },
    { insert .. "attrs = 'factor' }",
      "g:insert: attrs: a string is not allowed; give a table of attributes" },
  }
  for _, factor in ipairs { "true", "0 / 0", "1 / 0", "{}", "print" } do
    bad_passes { { insert:gsub("gelu", "scale") .. "attrs = { factor = " .. factor .. " } }",
      "g:insert: attrs.factor: ", "is not allowed; give a finite number or a text" } }
  end
end)

test("an op without outputs is no tensor", function()
  for _, body in ipairs { "g:redirect(g:ops()[1], update)", "g:redirect(update, g:ops()[1])",
    "g:insert { kind = 'gelu', name = 'x', inputs = { update } }",
    "g:split({ update, g:ops()[1] }, { axis = 1, parts = 2, try = true })" } do
    bad_passes { { "local update = g:op { kind = 'sgd' } " .. body,
      "sgd' has no output, which is needed here" } }
  end
end)

test("a pass may split a chain into parts, or learn why not", function()
  good([[
    local p = step_pass(function(g)
      local op = g:op { kind = "gelu", phase = "forward", layer = 1 }
      local parts = assert(g:split({ op }, { axis = 2, parts = 4 }))
      assert(#parts == 4 and #parts[1] == 1 and parts[3][1].part == 3)
      assert(parts[1][1].outputs[1].shape[2] == 8)
      local again = g:split(parts[1], { axis = 2, parts = 2 })
      assert(again[2][1].name:match "%.p0%.p1$" and again[2][1].part == 2)
      local layer = g:ops { kind = "linear", phase = "forward", layer = 1 }
      local unlike = { layer[1], layer[2] }  -- the attention's input and output, of other widths
      local none, why = g:split(unlike, { axis = 3, parts = 2, try = true })
      assert(none == nil and type(why) == "string")
    end)
    local order = table.concat(p:order "compute", " ")
    local _, n = order:gsub("gelu%.p%d", "")
    assert(n == 7, n)  -- with the split and the concat of the part that is cut again
  ]])
  bad_passes {
    { "g:split(g:ops { kind = 'gate' }, { axis = 9, parts = 2 })", "axis = 9" },
    { "g:split(g:ops { kind = 'gelu' }, { axes = 1 })", "g:split: unknown key 'axes'",
      "Did you mean 'axis'?" },
  }
  for _, sizes in ipairs { "axis = 2.9, parts = 2", "axis = 2^32 + 2, parts = 2",
    "axis = 2, parts = 2.9", "axis = 2, parts = '2'" } do
    bad_passes { { "g:split({ g:op { kind = 'gelu', phase = 'forward' } }, { " .. sizes .. " })",
      "is not allowed; give 1 to" } }
  end
end)

test("a pass in Lua runs after those that give what it needs, wherever it is listed", function()
  good([[
    local seen
    local mine = moe.policy.pass { name = "mine", at = "forward", needs = { "counts" },
      apply = function(g) seen = g:op("b1.moe.a2a_1"):attr "irregular" end }
    moe.plan { model = model, cluster = cluster,
      system = moe.system "mine" { mine {}, moe.pass.irregular_a2a {} } }
    assert(seen == 1, seen)]])
  bad([[moe.policy.pass { name = 'mine', at = 'forward', needs = { 'count' },
  apply = function(g) end }]], "needs", "'count'", "counts")
end)

test("an inserted op is where its neighbours are, unless it is said or they differ", function()
  good([[
    step_pass(function(g)
      local dw = g:op { dw = true, phase = "backward", where = function(op) return op.layer end }
      local after = g:insert { kind = "gelu", name = "after.dw", inputs = { dw } }
      for _, field in ipairs { "phase", "seg", "layer", "dw" } do
        assert(after[field] == dw[field], field)
      end
      assert(after.dw and after.phase == "backward")
      local said = g:insert { kind = "gelu", name = "said", inputs = { dw }, phase = "update",
        seg = "update", layer = false, dw = false }
      assert(said.phase == "update" and said.seg == "update" and not said.layer and not said.dw)
      local gelu = g:op { kind = "gelu", phase = "forward", layer = 2 }
      local also = g:insert { kind = "gelu", name = "also", inputs = gelu.inputs }
      assert(also.phase == "forward" and also.layer == 2 and also.seg == gelu.seg)
    end)
  ]])
  local two = "\n  local a = g:op { kind = 'gelu', phase = 'forward', layer = 1 }\n"
    .. "  local b = g:op { kind = 'gelu', phase = 'forward', layer = 2 }\n"
    .. "  g:insert { kind = 'add', name = 'x', inputs = { a, b }, "
  bad_passes {
    { two .. "seg = 'mlp' }", "recipe.lua:20: g:insert: 'x': layer is not given", "has 1",
      "2; give layer" },
    { two .. "seg = 'mlp', layer = 0 }", "layer 0 is not allowed; Lua counts" },
    { two .. "lyer = 1 }", "unknown key 'lyer'", "'layer'" },
  }
end)

test("a name that a handle does not have is answered with those it has", function()
  bad_passes {
    { "g:opps {}", "unknown method of a graph 'opps'", "Did you mean 'ops'?" },
    { "g:ops()[1]:consumer()", "unknown field of an op 'consumer'", "'consumers'" },
    { "ctx.rng:bellow(3)", "unknown method of a rng 'bellow'", "'below'" },
    { "ctx:lgo(g:ops()[1], 'x')", "unknown method of a policy context 'lgo'", "'log'" },
    { "g:ops()[1].name = 'x'", "an op cannot be changed by assigning to" },
    { "g:ops { layer = 0 }", "g:ops: layer 0 is not allowed; Lua counts from 1" },
    { "ctx:skip('a \\255')",
      "bad argument #1: the text is not UTF-8 from byte 3 on; give UTF-8 text" },
  }
  bad_schedules { { "s:befor()", "unknown method of a schedule 'befor', have: before, chunk" } }
end)

test("no handle shows an address", function()
  bad("schedule(function(s, g, ctx)\n"
    .. "error(('%s, %s, %s, %s'):format(s, g, g:ops()[1].outputs[1], ctx.rng)) end)",
    "schedule, graph, tensor, rng")
end)

test("a policy that changes nothing says so, with the reason that it gives", function()
  for policy, reason in pairs {
    ["step_pass(function() end)"] = "function changed nothing in the graph",
    ["schedule(function() end)"] = "function changed nothing in the schedule",
    ["schedule(function(s, g, ctx) ctx:skip('too short') end)"] = "too short",
    ["step_pass(function(g, ctx) ctx:skip('too short', g:ops()[1]) end)"] = ": too short",
    ["schedule(function(s, g) s:priority(g:op { kind = 'all_to_all' }, 1) end)"] =
      "these ops are on lanes that run in order",
    ["schedule(function(s, g) local a = g:ops() s:before(a[1], a[#a]) end)"] =
      "the simulated step is the same without it",
  } do
    good(("local p, reason = %s, %q\n"):format(policy, reason) .. [[
local all = p:info().without_effect
assert(#all == 1 and all[1].stage == "mine", #all)
assert(all[1].reason:find(reason, 1, true), all[1].reason)
assert(p:explain().text:find("without effect\n  mine: " .. all[1].reason, 1, true))]])
  end
  good([[
    local p = schedule(function(s, g) s:sequence(g:ops()) end)
    assert(#p:info().without_effect == 0)
    assert(p:info().stages[1].changes.order_edges > 10)
  ]])
end)
