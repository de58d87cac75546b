-- Parts of attention for which a block of stated flops and bytes stands in: they are planned by all
-- systems, cost what is stated, are said in heads, and run nowhere.
local core = require "moe.core"
local moe = require "moe"
local test = require "test"

local CONFIG = { model_type = "qwen3_next", num_hidden_layers = 4, hidden_size = 256,
  num_attention_heads = 4, num_key_value_heads = 2, head_dim = 64, linear_key_head_dim = 32,
  linear_value_head_dim = 64, linear_num_key_heads = 2, linear_num_value_heads = 4,
  moe_intermediate_size = 128, shared_expert_intermediate_size = 128, num_experts = 16,
  num_experts_per_tok = 2, vocab_size = 1000 }

local function model(flops, bytes, changes)
  local read = core.read_file
  core.read_file = function() return core.json_encode(CONFIG) end
  local ok, made = pcall(moe.model.from_config, "c.json", flops and { stand_in = {
    linear_attention = { flops = flops, bytes = bytes } } })
  core.read_file = read
  if not ok then return nil, made.message end
  local fields = { seq = 256, batch_per_device = 2 }
  for key, value in pairs(changes or {}) do fields[key] = value end
  return made(fields)
end

local cluster = moe.cluster.h100 { nodes = 2 }

local function plan(m, name)
  return moe.plan { model = m, cluster = cluster, system = moe.system(name or "megatron") {} }
end

test("a part that does not exist is named, with what may stand in for it", function()
  local _, why = model()
  assert(why:find("needs linear attention, which does not exist here; it can be simulated with "
    .. "stand_in = { linear_attention = { flops", 1, true), why)
end)

test("the parameters are all there, and the step takes as long as what is stated", function()
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
  local least = 3 * 3 * 512 * 1e6 / cluster.device.memory_bytes_per_s
  local rate = (moving.iteration_ms - free.iteration_ms) / 1e3 / least
  assert(rate > 0.9 and rate < 2, tostring(rate))
  assert(math.abs(model(1e6, 0):flops() - m:flops() - 3e6) < 1)
end)

test("every system plans it, and says what is stood in for", function()
  for _, name in ipairs { "raf", "tutel", "lancet", "lina", "prophet", "pipemoe", "eplb" } do
    local p = plan(model(1e6, 1e3), name)
    assert(p:simulate().iteration_ms > 0, name)
    assert(p:text():find("# Stand-in: for linear attention, 1e+06 FLOP and 1000 bytes per token", 1,
      true), name)
  end
end)

test("what is stood in for is not executed", function()
  local ok, why = pcall(moe.train, { model = model(1e6, 1e3, { seq = 16 }), ranks = 2,
    steps = 1 })
  why = tostring(type(why) == "table" and why.message or why)
  assert(not ok and why:find("linear attention, which is simulated only", 1, true), why)
end)
