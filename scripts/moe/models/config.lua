-- A config.json as a table of fields that are checked when they are read: those that the config
-- states, and the defaults of its class.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

-- Names that classes give a field, of which each class has one.
M.NAMES = {
  experts = { "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts" },
  k = { "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k" },
  expert_ffn = { "moe_intermediate_size", "intermediate_size" },
  shared = { "n_shared_experts", "num_shared_experts", "moe_num_shared_experts",
    "num_shared_expert" },
  shared_ffn = { "shared_expert_intermediate_size", "shared_intermediate_size" },
  groups = { "n_group", "num_expert_group" },
  scale = { "routed_scaling_factor", "route_scale", "router_scaling_factor",
    "moe_routed_scaling_factor" },
  dense = { "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index" },
  every = { "decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step" },
}

-- What fields are in JSON whose default does not show it; those that do not stand here are numbers.
local KINDS = { model_type = "string", tie_word_embeddings = "boolean", layer_types = "list",
  mlp_only_layers = "list", mlp_layer_types = "list", rope_parameters = "table",
  rope_scaling = "table", rope_type = "string", type = "string", truncate = "boolean",
  full_attention = "table", sliding_attention = "table" }

--- Returns the fields of all tables, of which later ones replace earlier ones.
function M.merged(...)
  local out = {}
  for _, t in ipairs { ... } do
    for k, v in pairs(t) do out[k] = v end
  end
  return out
end

local function kind_of(value)
  local is = type(value)
  return is == "table" and (#value > 0 and "list" or next(value) == nil and "empty") or is
end

--- Whether a value is `right`, of which a list may be shorter: it repeats.
function M.same(value, right)
  if type(value) ~= "table" then return value == right end
  local list = type(right) == "table" and right or { right }
  for key, x in pairs(value) do
    local at = type(key) == "number" and #list > 0 and (key - 1) % #list + 1 or key
    if not M.same(x, list[at]) then return false end
  end
  return #value > 0 or next(list) == nil or #list == 0
end

local Config = {}
Config.__index = Config

--- what, at: as in configs.fields; class: { fields = field -> default, names = }.
function M.config_of(given, what, at, class)
  return setmetatable({ given = given, what = what, at = at, read = {}, class = class }, Config)
end

function Config:fail(text, ...)
  errors.user(("%s: " .. text):format(self.what, ...), self.at)
end

-- Returns the value of a field, or its default, and whether the config states it; nil for null. A
-- value of another kind is the user's error. A list with the same number for each block is that
-- number.
function Config:get(key)
  self.read[key] = true
  local default = self.class.fields[key]
  local value, stated = self.given[key], self.given[key] ~= nil
  if not stated then value = default end
  if value == nil or value == core.null then return nil, stated end
  local kind = (default ~= nil and default ~= core.null) and kind_of(default) or KINDS[key]
    or "number"
  if kind == "empty" then kind = "list" end
  if kind == "number" and kind_of(value) == "list" then
    for _, x in ipairs(value) do
      if x ~= value[1] then self:fail("%s: a number of its own per block is not built", key) end
    end
    value = value[1]
  end
  local is = kind_of(value)
  if is == "empty" and (kind == "list" or kind == "table") then is = kind end
  if is ~= kind then
    schema.refuse(("%s: %s"):format(self.what, key), value, "a " .. kind, self.at)
  end
  if kind == "table" then value = M.config_of(value, self.what, self.at, { fields = {} }) end
  return value, stated
end

function Config:need(key)
  local value = self:get(key)
  if value == nil then self:fail("%s: is missing", key) end
  return value
end

-- Returns a number that is `value` where the config or the class says "auto".
function Config:auto(key, value)
  if self.given[key] == nil and self.class.fields[key] == "auto" or self.given[key] == "auto" then
    self.read[key] = true
    return value
  end
  if self.class.fields[key] == "auto" then self.class.fields[key] = nil end
  return self:need(key)
end

-- Returns the name that this class, or the hub's code for it, gives the field, or nil.
function Config:name(of)
  for _, key in ipairs(M.NAMES[of]) do
    if self:has(key) then return key end
  end
end

-- Returns the value of the field by whatever name it has, or nil.
function Config:of(name)
  local key = self:name(name)
  if key then return self:get(key) end
end

function Config:stated(key) return self.given[key] ~= nil end
function Config:has(key) return self.class.fields[key] ~= nil end

-- Returns what an entry of types.lua says: the value of the field that it names, or itself.
function Config:says(entry)
  if type(entry) == "table" then return self:get(entry[1]) and entry[2] or "none" end
  if type(entry) == "string" then return self:get(entry) or false end
  return entry or false
end

-- Returns the part that is not built of a field of which only one value is, or nil.
function Config:only(allowed)
  for _, key in ipairs(schema.keys_of(allowed)) do
    local value, one = self.given[key], allowed[key]
    if value == nil then value = self.class.fields[key] end
    self.read[key] = true
    if value ~= nil and value ~= core.null and not M.same(value, one) then
      return ("%s = %s: only %s is built"):format(key, schema.show(value),
        one == core.null and "null" or schema.show(one))
    end
  end
end

return M
