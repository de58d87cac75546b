-- Recipes that are wrong in one way, which a training finds; tests/lua has the others. Rows: the
-- kind of the error, the line that the message must name, the recipe, parts of the message.
local HEAD = 'local moe = require "moe" '
local SIZES = "vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2, "
local ALL = ", tokens = 'reference' }"

-- A gate of one choice with these fields besides, whose route() has this body, on line 2, and a
-- training of three steps with it, on line 4.
local function gate(body, fields)
  return HEAD .. ("local g = moe.policy.gate { name = 'broken', k = 1, %s, route = "
    .. "function(ctx, s)\n%s\nend }\nmoe.train { ranks = 2, steps = 3, "
    .. "model = moe.model.gpt2_moe { %s experts = 4, gate = g {}, capacity_factor = 0.5 }")
    :format(fields or "scope = 'token'", body, SIZES) .. ALL
end

local WHERE = ", step 0, op b1.moe.gate: gate 'broken', layer 2: "

return {
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
