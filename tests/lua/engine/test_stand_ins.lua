-- Parts of attention for which a block of stated flops and bytes stands in: they are planned by all
-- systems, cost what is stated, are said in heads, and run nowhere.
local test = require "test"
local world = require "world"

local CONFIG = world.encode { model_type = "qwen3_next", num_hidden_layers = 4, hidden_size = 256,
  num_attention_heads = 4, num_key_value_heads = 2, head_dim = 64, linear_key_head_dim = 32,
  linear_value_head_dim = 64, linear_num_key_heads = 2, linear_num_value_heads = 4,
  moe_intermediate_size = 128, shared_expert_intermediate_size = 128, num_experts = 16,
  num_experts_per_tok = 2, vocab_size = 1000 }

local HEAD = [[
local moe = require "moe"
local function model(flops, bytes, seq)
  return moe.model.from_config("c.json", flops and { stand_in = { linear_attention = {
    flops = flops, bytes = bytes } } }) { seq = seq or 256, batch_per_device = 2 }
end
local cluster = moe.cluster.h100 { nodes = 2 }
local function plan(m, name)
  return moe.plan { model = m, cluster = cluster, system = moe.system(name or "megatron") {} }
end
]]

-- Runs a recipe on the engine; returns the message of its error, if it raised one.
local function run(text)
  return world.run(HEAD .. text, {}, "run", function(w, core)
    world.on_engine(w, core)
    local read = core.read_file
    core.read_file = function(name) return name == "c.json" and CONFIG or read(name) end
  end).message
end

local function runs(text)
  local why = run(text)
  assert(not why, why)
end

test("a part that does not exist is named, with what may stand in for it", function()
  local why = run "model()"
  assert(why:find("needs linear attention, which does not exist here; it can be simulated with "
    .. "stand_in = { linear_attention = { flops", 1, true), why)
end)

test("the parameters are all there, and the step takes as long as what is stated", function()
  runs [[
local keys, values = 2 * 32, 4 * 64
local delta = 256 * (2 * keys + values + values + 2 * 4) + 4 * (2 * keys + values) + 2 * 4 + 64
  + 256 * values
local full = 256 * (4 * 64 * 2 + 2 * 2 * 64) + 2 * 64 + 256 * 4 * 64  -- with a gate
local ffn = 16 * 256 + 17 * 3 * 256 * 128 + 256
local m = model(0, 0)
assert(m:parameters() == 2 * 1000 * 256 + 256 + 3 * delta + full + 4 * (ffn + 2 * 256))
local free, busy = plan(m):simulate(), plan(model(1e9, 0)):simulate()
local moving = plan(model(0, 1e6)):simulate()
assert(busy.iteration_ms > free.iteration_ms and moving.iteration_ms > free.iteration_ms)
-- Forward and twice as much backward, of 3 blocks and 512 tokens.
local rate = 3 * 3 * 512 * 1e6 / (moving.iteration_ms - free.iteration_ms) * 1e3
assert(rate > 1e12 and rate < 4e12, tostring(rate))
assert(math.abs(model(1e6, 0):flops() - m:flops() - 3e6) < 1)
]]
end)

test("every system plans it, and says what is stood in for", function()
  for _, name in ipairs { "raf", "tutel", "lancet", "lina", "prophet", "pipemoe", "eplb" } do
    runs(([[
local p = plan(model(1e6, 1e3), "%s")
assert(p:simulate().iteration_ms > 0)
assert(p:text():find("# Stand-in: for linear attention, 1e+06 FLOP and 1000 bytes per token", 1,
  true))
]]):format(name))
  end
end)

test("what is stood in for is not executed", function()
  local why = run "moe.train { model = model(1e6, 1e3, 16), ranks = 2, steps = 1 }"
  assert(why and why:find("linear attention, which is simulated only", 1, true), why)
end)
