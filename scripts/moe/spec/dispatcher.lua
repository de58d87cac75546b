-- Dispatchers as values: moe.dispatcher.deepep_v1 { sms = 24 }. All are files of dispatchers/, each
-- written as a recipe writes its own (moe.policy.dispatcher, spec/policy.lua): a function from the
-- sizes of an exchange to a route (engine/dispatch/route.h), which the engine counts and runs.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("dispatcher", "a dispatcher, for example moe.dispatcher.deepep_v1 {}")

--- Checked definitions of all dispatchers by name, each with `fields`, those of its constructor;
--- library: not of a recipe.
M.known = {}

M.MOST_SMS = 160  -- of any GPU

local WIDTH = { fp8 = 1 + 4 / 128, bf16 = 2, fp32 = 4 }

local Sizes = schema.methods("exchange sizes", "grid", "the sizes of an exchange of rows", {
  { "ranks", "integer", "ranks that exchange rows" },
  { "experts", "integer", "experts of all ranks" },
  { "topk", "integer", "choices per token" },
  { "hidden", "integer", "numbers of a row" },
  { "tokens", "integer", "the most tokens of a rank" },
  { "payload", "(dtype: string): number", "bytes of a row's numbers; fp8: with a scale of 4 bytes "
    .. "per 128" },
  { "align", "(bytes: number, to: integer): number", "the next multiple of `to`" },
})
function Sizes:payload(dtype) return self.hidden * WIDTH[dtype] end
function Sizes:align(bytes, to) return math.ceil(bytes / to) * to end

local function wire(default, doc)
  return { type = "string", enum = { "bf16", "fp8", "fp32" }, default = default, doc = doc }
end

local SMS = { type = "integer", lo = 0, hi = 1024, default = 0,
  doc = "SMs that its kernels take unless a system asks for others" }

--- Fields of moe.policy.dispatcher beside those of all policies.
M.DEFINITION = {
  wire = wire("bf16", "element type on the way there unless a system asks for another"),
  sms = SMS,
  even_sms = { type = "boolean", default = false,
    doc = "whether the number of SMs must be even and at least 2" },
  choices = { type = "table", default = {}, as = "table<string, string[]>",
    doc = "the allowed values of options in `params`" },
  route = { type = "function", required = true,
    as = "fun(grid: moe.ExchangeSizes, cluster: { nodes: integer, devices_per_node: integer }, "
      .. "o: table): moe.Route",
    doc = "returns the hops and the bytes of a row; o: the options, with wire, combine, sms, and "
      .. "weights and combine_weights: whether a row carries weights there and back" },
}

local function common(def)
  return {
    wire = wire(def.wire, "element type on the way there; fp8: with a scale per 128 numbers"),
    combine = wire("bf16", "element type on the way back"),
    sms = schema.merged(SMS, { default = def.sms, doc = "SMs that its kernels take" }),
  }
end

--- Returns the constructor of a dispatcher, which M.known gets.
function M.define(def, path, at)
  local own, fields = schema.options(def.params, path .. ".params", at), common(def)
  if M.known[def.name] then
    errors.user(("%s.name: '%s' is the name of another dispatcher; give another name"):format(path,
      def.name), at)
  end
  for _, name in ipairs(schema.keys_of(own)) do
    if fields[name] then
      errors.user(("%s.params.%s: is an option of every dispatcher; give another name"):format(path,
        name), at)
    end
    fields[name] = schema.merged(own[name], { enum = def.choices[name], doc = "an option of "
      .. def.name })
  end
  M.known[def.name] = schema.merged(def, { fields = fields })
  return function(given)
    local options = schema.check(fields, given or {}, "moe.dispatcher." .. def.name, errors.here())
    return schema.object({ name = def.name, options = options }, mt)
  end
end

local ROUTE = schema.declared "route"

--- Returns f(...), with the text of an error as the user's error under the path.
function M.call(path, at, f, ...)
  local results = { pcall(f, ...) }
  if results[1] then return results[2] end
  if type(results[2]) == "table" then error(results[2], 0) end
  errors.user(("%s.%s"):format(path, results[2]), at)
end

--- Returns the route that a dispatcher makes for an exchange, as the core takes it. sizes: of the
--- exchange, with expert_rank and tokens, the most of a rank; options: those of the dispatcher,
--- with weights and combine_weights; most_sms: those of the GPU; path: of what asks, for errors.
function M.route(name, sizes, options, most_sms, path, at)
  local def, o = M.known[name], options
  M.call(path, at, core.check_exchange, schema.merged(sizes, { dispatch = o.wire,
    combine = o.combine }))
  if def.even_sms and (o.sms < 2 or o.sms % 2 > 0) or o.sms > most_sms then
    schema.refuse(path .. ".sms", o.sms, ("%s to %d"):format(def.even_sms
      and "an even number from 2" or "a number from 0", most_sms), at)
  end
  local grid = setmetatable(schema.merged(sizes, {}), Sizes)
  local made = def.route(grid, { nodes = sizes.ranks / sizes.ranks_per_node,
    devices_per_node = sizes.ranks_per_node }, schema.merged(o, {}))
  if type(made) ~= "table" then
    schema.refuse(name .. ".route", made, "a table with hops and bytes of rows", at)
  end
  local route = schema.check(ROUTE, schema.merged({ dispatch = o.wire, combine = o.combine,
    sms = o.sms, times_of = name }, made), name .. ".route", at)
  core.array(route.there)
  route.back = core.array(route.back or {})
  return route
end

--- Loads the files of dispatchers/, each a function of a table with policy.dispatcher that returns
--- constructors. Returns moe.dispatcher, and a list of { name, doc, options } for `moebench list`.
function M.load(policy)
  local made, rows, calls = {}, {}, {}
  for _, file in ipairs(core.library_files("dispatchers", ".lua")) do
    for _, constructor in ipairs { require("moe.dispatchers." .. file) { policy = policy } } do
      made[constructor {}.name] = constructor
    end
  end
  for i, name in ipairs(schema.keys_of(made)) do
    local known, options = M.known[name], {}
    known.library = true
    calls[name] = { made[name], known.fields, "moe.Dispatcher", known.doc }
    for j, key in ipairs(schema.keys_of(known.fields)) do
      options[j] = { name = key, default = known.fields[key].default }
    end
    rows[i] = { name = name, doc = known.doc, options = options }
  end
  return schema.functions("moe.dispatcher", "dispatcher", calls), rows
end

return M
