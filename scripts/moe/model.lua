-- moe.model.gpt2_moe{...}: a checked model. Sizes that depend on the number of devices (batch or
-- batch_per_device, experts or experts_per_device) are resolved when the target is known.
local core = require "moe.core"
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

local mt = { __name = "model" }
M.mt = mt

M.fields = {
  name = { type = "string", default = "gpt2_moe" },
  vocab = { type = "integer", lo = 2, hi = 1e7, default = 50257, doc = "vocabulary" },
  layers = { type = "integer", lo = 1, hi = 10000, required = true, doc = "blocks" },
  hidden = { type = "integer", lo = 1, hi = 1e6, required = true, doc = "model width" },
  heads = { type = "integer", lo = 1, hi = 1e5, required = true, doc = "divide hidden" },
  seq = { type = "integer", lo = 1, hi = 1e7, required = true, doc = "tokens a row" },
  ffn = { type = "integer", lo = 1, hi = 1e7, doc = "inner width of an FFN; 4 * hidden" },
  batch = { type = "integer", lo = 1, hi = 1e8, doc = "rows of the whole batch" },
  batch_per_device = { type = "integer", lo = 1, hi = 1e7, doc = "rows a device" },
  experts = { type = "integer", lo = 1, hi = 1e6, doc = "experts in all" },
  experts_per_device = { type = "integer", lo = 1, hi = 1e5, doc = "experts a device" },
  moe_every = { type = "integer", lo = 1, hi = 1e4, default = 2,
    doc = "an MoE FFN in the last of every so many blocks" },
  gate = { type = "any", default = "switch", doc = "a gate's name or a policy" },
  k = { type = "integer", lo = 1, hi = 1e6,
    doc = "choices a token, where the gate leaves it open" },
  capacity_factor = { type = "number", lo = 1e-6, hi = 1e6 },
  capacity = { type = "string", enum = { "none" } },
  attention = { type = "string", enum = { "fused", "unfused" }, default = "fused",
    doc = "one kernel, or score, softmax and context through memory" },
  dtype = { type = "string", enum = { "f16", "f32" }, doc = "element type; the target's default" },
}

local function check_gate(gate, path, at)
  if type(gate) == "string" then
    local names = {}
    for _, g in ipairs(core.table("gates")) do
      if g.name == gate then return end
      names[#names + 1] = g.name
    end
    schema.unknown(path, "gate", gate, names, at)
  end
  if type(gate) == "table" and gate.kind == "gate" then return end
  errors.user(("%s: %s is not allowed; give a gate's name or a gate policy"):format(path,
    schema.show(gate)), "gate", at)
end

local function exactly_one(m, a, b, path, at)
  if (m[a] == nil) == (m[b] == nil) then
    errors.user(("%s: give either %s or %s, %s"):format(path, a, b,
      m[a] == nil and "neither is there" or "not both"), m[a] and a or nil, at)
  end
end

function M.gpt2_moe(t)
  local at = errors.here()
  local m = schema.check(M.fields, t, "model.gpt2_moe", at)
  exactly_one(m, "batch", "batch_per_device", "model.gpt2_moe", at)
  exactly_one(m, "experts", "experts_per_device", "model.gpt2_moe", at)
  if m.capacity and m.capacity_factor then
    errors.user("model.gpt2_moe: give either capacity or capacity_factor, not both", "capacity", at)
  end
  if m.hidden % m.heads ~= 0 then
    errors.user(("model.gpt2_moe.heads: %d does not divide hidden = %d"):format(m.heads, m.hidden),
      "heads", at)
  end
  check_gate(m.gate, "model.gpt2_moe.gate", at)
  m.given = t
  m.at = at
  return setmetatable(m, mt)
end

--- A copy of the model with some fields replaced; of a pair (batch, batch_per_device) the new one
--- stands.
function M.override(model, changes, path, at)
  if changes == nil then return model end
  if type(changes) ~= "table" then
    errors.user(path .. ": give a table of what differs", nil, at)
  end
  local t = {}
  for k, v in pairs(model.given) do t[k] = v end
  local pairs_of = { batch = "batch_per_device", batch_per_device = "batch",
    experts = "experts_per_device", experts_per_device = "experts",
    capacity = "capacity_factor", capacity_factor = "capacity" }
  for k, v in pairs(changes) do
    if M.fields[k] == nil then schema.unknown(path, "key", k, schema.keys_of(M.fields), at) end
    if pairs_of[k] then t[pairs_of[k]] = nil end
    t[k] = v
  end
  return M.gpt2_moe(t)
end

--- The plain table that the core takes, for `devices` devices.
function M.resolve(model, devices, dtype, at)
  at = at or model.at
  local function split(total, per, what)
    if model[per] then return model[per] end
    if model[total] % devices ~= 0 then
      errors.user(("model.%s: %d %s do not divide over %d ranks"):format(total, model[total], what,
        devices), total, at)
    end
    return model[total] / devices
  end
  local factor = model.capacity and 0 or model.capacity_factor or 1.25
  local gate = model.gate
  local resolved = {
    name = model.name, vocab = model.vocab, layers = model.layers, hidden = model.hidden,
    heads = model.heads, seq = model.seq, ffn = model.ffn or 0, moe_every = model.moe_every,
    batch_per_device = split("batch", "batch_per_device", "rows"),
    experts = split("experts", "experts_per_device", "experts") * devices,
    gate = type(gate) == "string" and gate or gate.name, k = model.k or 1,
    capacity_factor = factor, fused_attention = model.attention == "fused",
    dtype = model.dtype or dtype,
  }
  errors.call(at, nil, core.check_model, resolved, devices)
  return resolved, type(gate) == "table" and gate or nil
end

--- Expected share of capacity slots that hold a token when routing is balanced.
function M.fill(resolved)
  if resolved.capacity_factor <= 0 then return 1 / resolved.experts end
  return math.min(1, 1 / resolved.capacity_factor)
end

M.constructors = setmetatable({ gpt2_moe = M.gpt2_moe }, {
  __index = function(_, name)
    schema.unknown("moe.model", "model", name, { "gpt2_moe" }, errors.here())
  end,
})

return M
