-- moe.policy.gate / pass / schedule: policies written in Lua. Each returns a constructor: calling
-- it with options makes an instance for a model or a system. Rank threads look gates up by name.
local core = require "moe.core"
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

--- kind -> name -> definition, in this Lua state.
M.registry = { gate = {}, pass = {}, schedule = {} }

local KINDS = {
  gate = {
    name = { type = "string", required = true }, doc = { type = "string", default = "" },
    params = { type = "table", default = {} },
    scope = { type = "string", enum = { "token", "batch" }, required = true,
      doc = "what a token's choice depends on" },
    scores = { type = "string", enum = { "softmax", "sigmoid" }, default = "softmax" },
    weight = { type = "string", enum = { "prob", "renorm", "one" }, default = "prob" },
    k = { type = "integer", lo = 1, hi = 1e6, doc = "choices a token; the model's k" },
    bound = { type = "function", doc = "function(C, o): the largest capacity, for buffers" },
    route = { type = "function", required = true, doc = "function(ctx, s, o)" },
  },
  pass = {
    name = { type = "string", required = true }, doc = { type = "string", default = "" },
    params = { type = "table", default = {} },
    at = { type = "string", enum = { "forward", "step" }, required = true },
    apply = { type = "function", required = true, doc = "function(g, ctx, o)" },
  },
  schedule = {
    name = { type = "string", required = true }, doc = { type = "string", default = "" },
    params = { type = "table", default = {} },
    apply = { type = "function", required = true, doc = "function(s, g, ctx, o)" },
  },
}

-- Options of an instance: defaults from params, unknown ones refused.
local function options_of(def, given, at)
  local o = {}
  for k, v in pairs(def.params) do o[k] = v end
  for k, v in pairs(given or {}) do
    if def.params[k] == nil then
      schema.unknown(def.name, "option", k, schema.keys_of(def.params), at)
    end
    if type(v) ~= type(def.params[k]) then
      errors.user(("%s.%s: %s is not allowed; give a %s"):format(def.name, k, schema.show(v),
        type(def.params[k])), k, at)
    end
    o[k] = v
  end
  return o
end

local function define(kind)
  return function(t)
    local at = errors.here()
    local def = schema.check(KINDS[kind], t, "moe.policy." .. kind, at)
    for _, known in ipairs(core.table(kind == "gate" and "gates" or "passes")) do
      if known.name == def.name then
        errors.user(("moe.policy.%s: the name '%s' is taken by a built-in one"):format(kind,
          def.name), "name", at)
      end
    end
    if M.registry[kind][def.name] then
      errors.user(("moe.policy.%s: the name '%s' is defined twice"):format(kind, def.name), "name",
        at)
    end
    def.at_place = at
    M.registry[kind][def.name] = def
    local constructor = {}
    return setmetatable(constructor, { __call = function(_, given)
      local options = options_of(def, given, errors.here())
      local instance = { kind = kind, name = def.name, options = options }
      for _, key in ipairs { "scope", "scores", "weight", "k", "bound", "route", "apply", "at" } do
        instance[key] = def[key]
      end
      return instance
    end })
  end
end

M.gate, M.pass, M.schedule = define "gate", define "pass", define "schedule"

--- Built-in passes: moe.pass.<name>{ options }.
M.pass_constructors = setmetatable({}, {
  __index = function(_, name)
    local names, at = {}, errors.here()
    for _, p in ipairs(core.table("passes")) do
      if p.name == name then
        return function(given)
          local here = errors.here()
          local fields = {}
          for _, o in ipairs(p.options) do
            local numeric = type(o.default) == "number"
            fields[o.name] = { type = type(o.default), default = o.default, doc = o.doc,
              lo = numeric and o.lo ~= o.hi and o.lo or nil,
              hi = numeric and o.lo ~= o.hi and o.hi or nil,
              enum = o.allowed and #o.allowed > 0 and o.allowed or nil }
          end
          return { kind = "builtin", stage = p.kind, name = name,
            options = schema.check(fields, given or {}, "moe.pass." .. name, here) }
        end
      end
      names[#names + 1] = p.name
    end
    schema.unknown("moe.pass", "pass", name, names, at)
  end,
})

return M
