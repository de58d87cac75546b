-- moe.policy.gate / pass / schedule: policies written in Lua, and moe.pass: the built-in passes.
-- Each is a constructor: calling it with options makes an instance for a model or a system. Rank
-- threads look gates up by name.
local core = require "moe.core"
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

--- kind -> name -> definition, in this Lua state.
M.registry = { gate = {}, pass = {}, schedule = {} }

local instance_mt = {
  gate = schema.class("gate", "a gate"),
  pass = schema.class("pass", "a pass; call its constructor, as moe.pass.dw_schedule {}"),
}

-- Fields of all policies, with those of one kind.
local function fields(more)
  return schema.merged({
    name = { type = "string", required = true, doc = "names it in results and errors" },
    doc = { type = "string", default = "" },
    params = { type = "table", default = {}, doc = "option -> default" },
  }, more)
end

M.KINDS = {
  gate = fields {
    scope = { type = "string", enum = { "token", "batch" }, required = true,
      doc = "what a token's choice depends on: 'token' or 'batch'" },
    scores = { type = "string", enum = { "softmax", "sigmoid" }, default = "softmax" },
    weight = { type = "string", enum = { "prob", "renorm", "one" }, default = "prob" },
    k = { type = "integer", lo = 1, hi = 1e6, doc = "choices a token; the model's k" },
    bound = { type = "function", doc = "function(C, o): the largest capacity, for buffers" },
    route = { type = "function", required = true, doc = "function(ctx, s, o)" },
  },
  pass = fields {
    at = { type = "string", enum = { "forward", "step" }, required = true,
      doc = "the graph it edits: 'forward' or the whole 'step'" },
    apply = { type = "function", required = true, doc = "function(g, ctx, o)" },
  },
  schedule = fields {
    apply = { type = "function", required = true, doc = "function(s, g, ctx, o)" },
  },
}

-- Options as a field list. Their types are those of the defaults.
local function option_fields(params, path, at)
  local out = {}
  for name, default in pairs(params) do
    local kind = type(default)
    if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
      schema.refuse(path .. "." .. tostring(name), default, "a number, a string or a boolean", at)
    end
    out[name] = { type = kind, default = default }
  end
  return out
end

local function check_name(kind, def, at)
  local path = ("moe.policy.%s.name: '%s' "):format(kind, def.name)
  for _, known in ipairs(core.table(kind == "gate" and "gates" or "passes")) do
    if known.name == def.name then errors.user(path .. "is the name of a built-in one", at) end
  end
  if M.registry[kind][def.name] then errors.user(path .. "is defined twice", at) end
end

-- Whether a case of an experiment is being made.
local in_case = false

--- Calls f, in which no policy may be defined: rank threads know those that are defined when the
--- recipe is read, and a case is made once a point.
function M.without_definitions(f)
  in_case = true
  local results = { xpcall(f, errors.with_traceback) }
  in_case = false
  if not results[1] then error(results[2], 0) end
  return results[2]
end

local function define(kind)
  return function(t)
    local at = errors.here()
    local path = "moe.policy." .. kind
    if in_case then
      errors.user(path .. ": stands in a case, which is made once a point and not by the ranks; "
        .. "define the policy before moe.experiment and use it in the case", at)
    end
    local def = schema.check(M.KINDS[kind], t, path, at)
    check_name(kind, def, at)
    local options = option_fields(def.params, path .. ".params", at)
    M.registry[kind][def.name] = def
    return function(given)
      local here = errors.here()
      local instance = { kind = kind, name = def.name, stage = def.at or kind,
        options = schema.check(options, given or {}, def.name, here) }
      for _, key in ipairs { "scope", "scores", "weight", "k", "bound", "route", "apply" } do
        instance[key] = def[key]
      end
      return setmetatable(instance, instance_mt[kind == "gate" and "gate" or "pass"])
    end
  end
end

M.constructors = schema.namespace("moe.policy", "kind of policy", { gate = define "gate",
  pass = define "pass", schedule = define "schedule" }, { placement = true })

--- The options of a row of core.table("passes") as a field list.
function M.pass_options(row)
  local out = {}
  for _, o in ipairs(row.options) do
    out[o.name] = { type = type(o.default), default = o.default, doc = o.doc, lo = o.lo, hi = o.hi,
      enum = o.allowed }
  end
  return out
end

local function builtin(row)
  local options = M.pass_options(row)
  return function(given)
    local at = errors.here()
    return setmetatable({ name = row.name, stage = row.kind,
      options = schema.check(options, given or {}, "moe.pass." .. row.name, at) },
      instance_mt.pass)
  end
end

local passes = {}
for _, row in ipairs(core.table("passes")) do passes[row.name] = builtin(row) end

--- Built-in passes: moe.pass.<name>{ options }.
M.passes = schema.namespace("moe.pass", "pass", passes)

return M
