-- Recipes that are wrong in one way, which only the engine finds; tests/lua has those that the
-- library finds. Rows: the kind of the error, the line that the message must name (0: none), the
-- recipe, parts of the message.
local HEAD = 'local moe = require "moe" '
local SIZES = "vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2, "
local ALL = ", tokens = 'reference' }"

-- A plan of a system with these passes, on the last line.
local function plan(passes, layers)
  return ("\nmoe.plan { cluster = moe.cluster.p4de { nodes = 2 }, "
    .. "system = moe.system 'mine' { %s }, model = moe.model.gpt2_moe { vocab = 256, layers = %d, "
    .. "hidden = 64, heads = 4, seq = 32, batch_per_device = 2, experts_per_device = 2 } }")
    :format(passes, layers or 2)
end

-- A policy whose function has this body, from line 2 on, and a plan with it.
local function policy(kind, body)
  return ("%slocal p = moe.policy.%s { name = 'broken', %s apply = function(s, g, ctx)\n%s\nend }")
    :format(HEAD, kind, kind == "pass" and "at = 'step'," or "", body) .. plan "p {}"
end

local function schedule(body) return policy("schedule", body) end

-- A gate of one choice with these fields besides, whose route() has this body, on line 2, and a
-- training of three steps with it, on line 4.
local function gate(body, fields)
  return HEAD .. ("local g = moe.policy.gate { name = 'broken', k = 1, %s, route = "
    .. "function(ctx, s)\n%s\nend }\nmoe.train { ranks = 2, steps = 3, "
    .. "model = moe.model.gpt2_moe { %s experts = 4, gate = g {}, capacity_factor = 0.5 }")
    :format(fields or "scope = 'token'", body, SIZES) .. ALL
end

-- A plan of a gate with this bound.
local function bound(body)
  return gate("", "scope = 'token', weight = 'prob', bound = function() " .. body .. " end")
end

local WHERE = ", step 0, op b1.moe.gate: gate 'broken', layer 2: "

return {
  { "run", 0, HEAD .. plan("moe.pass.prophet {}, moe.pass.priority {}", 4),
    "priority { hold = false }", "give 'b1.moe.copy' a priority of 1" },
  { "user", 2, schedule "ctx:skip('a \\255')",
    "bad argument #1: the text is not UTF-8 from byte 3 on; give UTF-8 text" },
  { "run", 0, schedule "local a = g:ops { kind = 'all_to_all' } s:before(a[2], a[1])", "broken",
    "cycle" },
  { "user", 0, policy("pass", "s:remove(s:op { kind = 'all_to_all', phase = 'forward' })"),
    "broken" },
  { "user", 0, HEAD .. plan("moe.pass.fastermoe_pipeline {}, moe.pass.hierarchical_a2a {}", 4),
    "op 'b1.moe.a2a_1.p0' is cut into rounds by fastermoe_pipeline",
    "leave one of the two stages out" },
  { "user", 4, HEAD .. [[return moe.experiment { name = "x", over = { seq = { 16, 2 } },
      case = function(p) return { cluster = moe.cluster.p3dn { nodes = 1 },
        systems = { moe.system "raf" {},
          moe.system "parts" { moe.pass.capacity_pipeline { degree = 2 } } },
        model = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = p.seq, vocab = 256,
          batch_per_device = 1, experts_per_device = 1 } } end }]],
    "a capacity of 1, so 1 to 1 is allowed (system 'parts', seq = 2)" },
  { "user", 0, bound "return 2147483647",
    "gate 'broken': bound() returned 2147483647 slots for each of",
    "at most 2147483647 slots in all are allowed" },
  { "user", 0, bound "", "gate 'broken': bound() returned nil; return a whole number" },
  { "user", 4, gate "ctx:fill(s:topk_rows(1), s:topk_col(1, ctx.tokens))", "gate 'broken'",
    "scope = 'token' is declared, but token", "declare scope = 'batch'" },
  { "user", 4, gate("for t = 0, ctx.tokens - 1 do ctx:take(t, 1) end", "scope = 'batch'"), WHERE,
    "recipe.lua:2: token 0 is not allowed; Lua counts from 1: give 1 to 32" },
  { "user", 2, gate "ctx:take(1, 99)", "gate 'broken'" },
  { "user", 2, gate "ctx:take(ctx.tokens + 1, 1)", "gate 'broken'" },
  { "user", 4, gate "if ctx.tokens > 0 then error 'oh no' end", "gate 'broken'", "rank", "oh no" },
  { "user", 4, gate "return s:argmax_rows()", WHERE,
    "recipe.lua:1: route() returned a userdata, which has no effect",
    "it returns nothing and chooses experts by ctx:take or ctx:fill" },
  { "user", 7, HEAD .. [[local g = moe.policy.gate { name = "broken", scope = "token", k = 1,
      route = function(ctx, s)
        if ctx.step == 2 then error "oh no" end
        local best = s:argmax_rows()
        for t = 1, ctx.tokens do ctx:take(t, best(t)) end
      end }
    return moe.experiment { name = "x", systems = { moe.system "raf" {} },
      run = { { "cpu", ranks = 2, steps = 3, rehearse = 0, tokens = "reference" } },
      model = moe.model.gpt2_moe { ]] .. SIZES .. "experts_per_device = 2, gate = g {} } }",
    "gate 'broken'", "recipe.lua:3: oh no" },
  { "run", 2, HEAD .. "local p = moe.policy.placement { name = 'asks', place = function(ctx, load, "
    .. "p)\nctx:simulate(p) return p end }\nmoe.train { ranks = 2, steps = 3, system = moe.system "
    .. "'x' { p {} }, model = moe.model.gpt2_moe { " .. SIZES .. "experts = 4 }" .. ALL,
    "placement 'asks', rank 0, step 0, layer 1",
    "ctx:simulate is possible only while the plan is simulated" },
  { "user", 2, HEAD .. "\nmoe.train { ranks = 2, model = moe.model.gpt2_moe { " .. SIZES
    .. "experts = 4, gate = 'hash', balance_loss = { coefficient = 0.01 } }" .. ALL,
    "model.balance_loss: the gate 'hash' does not choose experts by their scores" },
  { "user", 2, HEAD .. "\nmoe.train { ranks = 2, text = '/nonexistent/corpus.txt', "
    .. "model = moe.model.gpt2_moe { " .. SIZES .. "experts = 4 } }", "/nonexistent/corpus.txt" },
}
