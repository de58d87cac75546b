-- moe.policy.gate / pass / schedule / placement / pipeline / dispatcher: policies in Lua; and
-- moe.pass: the built-in passes. A definition returns a constructor: calling it with options makes
-- an instance for a model or a system. In a run each rank thread evaluates the recipe in a Lua
-- state of its own and finds gates and placements in M.registry by name.
local balance = require "moe.techniques.balance"
local balance_pass = require "moe.techniques.balance.pass"
local core = require "moe.core"
local dispatcher = require "moe.spec.dispatcher"
local errors = require "moe.base.errors"
local pipeline = require "moe.spec.pipeline"
local schema = require "moe.base.schema"

local M = {}

--- The built-in passes, as core.table "passes" has them: those of the engine, and the balancing
--- methods in Lua.
M.pass_rows = {}

--- The policies that were defined in this Lua state, and the placements in Lua of the library:
--- kind -> name -> checked definition.
M.registry = { gate = {}, pass = {}, schedule = {}, placement = {} }

local instance_mt = {
  gate = schema.class("gate", "a gate"),
  pass = schema.class("pass", "a pass: call its constructor, for example moe.pass.dw_schedule {}"),
}

local options_of = setmetatable({}, { __mode = "k" })  -- pass -> its options as a field list

--- Returns the options of a pass as a field list.
function M.options_of(pass) return options_of[pass] end

--- Returns the pass with another value of an option, which is checked under the path `path`.
function M.with_option(pass, name, value, path, at)
  local fields = options_of[pass]
  local options = schema.check(fields, schema.merged(pass.options, { [name] = value }), path, at)
  local made = schema.object(schema.merged(pass, { options = options }), instance_mt.pass)
  options_of[made] = fields
  return made
end

-- Returns the fields that all policies have together with `more`, the fields of one kind.
local function fields(more)
  return schema.merged({
    name = { type = "string", required = true, doc = "the policy's name in results and errors" },
    doc = { type = "string", default = "", doc = "a line of text on what the policy does" },
    params = { type = "table", default = {}, as = "table<string, any>",
      doc = "the policy's options: name -> default" },
  }, more)
end

-- Fields of a placement that are also options of its instances.
local PLACED = {
  every = { type = "integer", lo = 1, hi = 1e9, default = 1,
    doc = "steps from one placement to the next" },
  shadows = { type = "integer", lo = 0, hi = 4096, default = 1,
    doc = "slots per device for copies of one step; each takes the memory of an expert" },
  extra_residents = { type = "integer", lo = 0, hi = 4096, default = 0,
    doc = "slots per device for residents, in addition to experts / devices" },
  static_rows = { type = "integer", lo = 0, hi = 1e9, default = 0,
    doc = "rows that every copy with tokens computes, padded where it gets fewer, as kernels of "
      .. "static shapes need it (ECHO, MoonEP); in simulations only; 0: the rows that it gets" },
  plan_us = { type = "number", lo = 0, hi = 1e9, default = 0,
    doc = "time of one plan of a layer in us, as measured or published; charged in simulations "
      .. "where the placement is made; an execution takes the time that it takes" },
  expected_copies = { type = "number", lo = 0, hi = 4096, default = 1,
    doc = "copies that a device is expected to receive per step, for plans before a run" },
}

-- Returns the field of what a pass needs or gives. The names are those that built-in passes have.
local function facts(doc)
  local names, seen = {}, {}
  for _, row in ipairs(core.table "passes") do
    for _, list in ipairs { row.needs, row.gives } do
      for _, name in ipairs(list) do
        if not seen[name] then names[#names + 1] = name end
        seen[name] = true
      end
    end
  end
  table.sort(names)
  return { type = "list", of = { type = "string", enum = names }, doc = doc }
end

M.KINDS = {
  gate = fields {
    scope = { type = "string", enum = { "token", "batch" }, required = true,
      doc = "whether a choice depends on its 'token' alone or on the whole 'batch'" },
    scores = { type = "string", enum = { "softmax", "sigmoid" }, default = "softmax",
      doc = "the function that turns a token's router logits into scores" },
    weight = { type = "string", enum = { "prob", "renorm", "one" }, default = "prob",
      doc = "weight of an expert's output: its score, the score divided by the sum of the chosen "
        .. "experts' scores, or 1" },
    k = { type = "integer", lo = 1, hi = 1e6, doc = "choices per token; default: the model's k" },
    bound = { type = "function", as = "fun(capacity: integer, o: table): integer",
      doc = "returns the largest capacity, for buffers; o: the options" },
    route = { type = "function", required = true,
      as = "fun(ctx: moe.GateContext, s: moe.Scores, o: table)",
      doc = "gives slots to tokens with ctx:take or ctx:fill; o: the options" },
  },
  pass = fields {
    at = { type = "string", enum = { "forward", "step" }, required = true,
      doc = "the graph that the pass edits: the 'forward' or the whole 'step'" },
    needs = facts("the pass runs after all passes that give one of these; without needs and gives "
      .. "it runs where the system lists it"),
    gives = facts("what the pass makes, for passes that need it: counts of rows in use, rounds or "
      .. "parts of all-to-alls, all-to-alls in two steps"),
    apply = { type = "function", required = true,
      as = "fun(g: moe.Graph, ctx: moe.PolicyContext, o: table)",
      doc = "edits the graph g; o: the options" },
  },
  schedule = fields {
    at = { type = "string", enum = { "micro_batch", "step" }, default = "micro_batch",
      doc = "whose schedule it edits: that of one 'micro_batch', which all repeat, or of the whole "
        .. "'step' of a pipeline rank, with the ops of all micro-batches (op.micro)" },
    apply = { type = "function", required = true,
      as = "fun(s: moe.Schedule, g: moe.Graph, ctx: moe.PolicyContext, o: table)",
      doc = "orders the ops with the methods of s; o: the options" },
  },
  pipeline = fields(pipeline.DEFINITION),
  dispatcher = fields(dispatcher.DEFINITION),
  placement = fields(schema.merged(PLACED, {
    at = { type = "string", enum = { "step", "layer" }, default = "step",
      doc = "'step': a placement is made from a step's load and used from the next step on; "
        .. "'layer': it is made from a layer's load and used in the same layer and step" },
    moves = { type = "boolean",
      doc = "whether experts may move or get further residents; default: true if at = 'step'" },
    weighted = { type = "boolean", default = false,
      doc = "whether p:share may be given a function; takes memory for devices^2 * slots numbers "
        .. "per layer" },
    place = { type = "function", required = true,
      as = "fun(ctx: moe.PlacementContext, load: moe.Loads, p: moe.Placement, o: table): "
        .. "moe.Placement",
      doc = "edits p and returns it, the same on all ranks; o: the options" },
  })),
}

local function check_name(kind, def, at)
  local path = ("moe.policy.%s.name: '%s' "):format(kind, def.name)
  for _, known in ipairs(kind == "gate" and core.table "gates" or M.pass_rows) do
    if known.name == def.name then
      errors.user(("%sis the name of a built-in %s; give another name"):format(path,
        kind == "gate" and "gate" or "pass"), at)
    end
  end
  if M.registry[kind][def.name] then
    errors.user(path .. "is defined twice; give each policy a name of its own", at)
  end
end

-- true while the function `case` of an experiment is being called.
local in_case = false

--- Calls f and returns its result; defining a policy inside f is a user error. f is the function
--- `case` of an experiment: rank threads evaluate the recipe but never call `case`, so they would
--- not have the policy.
function M.without_definitions(f)
  in_case = true
  local results = { xpcall(f, errors.with_traceback) }
  in_case = false
  if not results[1] then error(results[2], 0) end
  return results[2]
end

-- Adds to the options of a placement's instances the fields of PLACED, with the definition's values
-- as defaults; sets and checks def.moves.
local function placement_options(def, options, path, at)
  for name, field in pairs(PLACED) do
    if options[name] then
      errors.user(("%s.params.%s: every placement has an option of this name; give the option "
        .. "another name"):format(path, name), at)
    end
    options[name] = schema.merged(field, { default = def[name] })
  end
  if def.moves == nil then def.moves = def.at == "step" end
  if def.moves and def.at == "layer" then
    errors.user(path .. ".moves: experts move with their state only between steps, not at = "
      .. "'layer'; give at = 'step' or moves = false", at)
  end
end

-- Returns the constructor of instances of a checked definition, which `registry` gets.
local function constructor(kind, def, options, own)
  M.registry[kind][def.name] = def
  return function(given)
    local here = errors.here()
    local instance = { kind = kind, name = def.name, stage = kind == "pass" and def.at
      or kind == "schedule" and def.at == "step" and "pipeline" or kind,
      own = own, options = schema.check(options, given or {},
        (own and "" or "moe.pass.") .. def.name, here) }
    for _, key in ipairs { "scope", "scores", "weight", "k", "bound", "route", "apply", "needs",
        "gives" } do
      instance[key] = def[key]
    end
    if kind == "placement" then
      if instance.options.static_rows > 0 and instance.options.shadows == 0 then
        errors.user(("%s.static_rows: %d has no effect with shadows = 0, since only copies are "
          .. "padded; omit it or give shadows"):format(def.name, instance.options.static_rows),
          here)
      end
      instance.placement = { at = def.at, moves = def.moves, weighted = def.weighted,
        library = not own }
    end
    options_of[instance] = options
    return schema.object(instance, instance_mt[kind == "gate" and "gate" or "pass"])
  end
end

local function define(kind)
  return function(t)
    local at = errors.here()
    local path = "moe.policy." .. kind
    if in_case then
      errors.user(path .. ": the policy is defined inside the function `case`, which the ranks of "
        .. "a run do not call, so they would not have the policy; define it before moe.experiment "
        .. "and use it in `case`", at)
    end
    local def = schema.check(M.KINDS[kind], t, path, at)
    if kind == "pipeline" then return pipeline.define(def, path, at) end
    if kind == "dispatcher" then return dispatcher.define(def, path, at) end
    check_name(kind, def, at)
    local options = schema.options(def.params, path .. ".params", at)
    if kind == "placement" then placement_options(def, options, path, at) end
    return constructor(kind, def, options, true)
  end
end

local kinds = {}
for kind, doc in pairs { gate = "chooses the experts of tokens", pass = "edits a plan's graph",
  schedule = "orders ops and divides lanes", placement = "places experts on devices",
  pipeline = "orders the turns of pipeline ranks",
  dispatcher = "says what travels to experts and back, by which hops" } do
  kinds[kind] = { define(kind), M.KINDS[kind],
    ("fun(options?: table): moe.%s"):format(({ gate = "Gate", pipeline = "Pipeline",
      dispatcher = "Dispatcher" })[kind] or "Pass"),
    ("defines a %s policy in Lua, which %s; returns its constructor"):format(kind, doc) }
end
M.constructors = schema.functions("moe.policy", "kind of policy", kinds)

--- Returns the options of a built-in pass, an entry of core.table("passes"), as a field list.
function M.pass_options(row)
  local out = {}
  for _, o in ipairs(row.options) do
    out[o.name] = { type = o.whole and "integer" or type(o.default), default = o.default,
      doc = o.doc, lo = o.lo, hi = o.hi, enum = o.allowed, replaces = o.replaces }
  end
  return out
end

local function builtin(row)
  local options = M.pass_options(row)
  return function(given)
    local at, path = errors.here(), "moe.pass." .. row.name
    local pass = schema.object({ name = row.name, stage = row.kind,
      options = schema.check(options, given or {}, path, at) }, instance_mt.pass)
    schema.check_replaced(options, given or {}, path, at)
    options_of[pass] = options
    return pass
  end
end

local passes = {}
for _, row in ipairs(core.table "passes") do
  M.pass_rows[#M.pass_rows + 1] = row
  passes[row.name] = { builtin(row), M.pass_options(row), "moe.Pass", row.doc }
end

-- Returns a field list as the options of an entry of core.table("passes").
local function option_rows(given)
  local rows = {}
  for i, name in ipairs(schema.keys_of(given)) do
    local field = given[name]
    rows[i] = { name = name, doc = field.doc, default = field.default, lo = field.lo,
      hi = field.hi, whole = field.type == "integer" }
  end
  return rows
end

-- Returns the time of UltraEP's plan. The other methods that plan copies in the layer are assumed
-- to take as long; layouts are made beside the steps and take no time of them.
local function ultraep_plan_us()
  for _, row in ipairs(core.table "passes") do
    for _, option in ipairs(row.options) do
      if row.name == "ultraep" and option.name == "plan_us" then return option.default end
    end
  end
end

for _, name in ipairs(schema.keys_of(balance)) do
  local method = balance[name]
  local def = schema.merged(method.pooled and balance_pass.LAYOUT or balance_pass.COPIES,
    { name = name, place = balance_pass.place(method),
      plan_us = method.pooled and 0 or ultraep_plan_us() })
  local options = schema.merged(method.options, {})
  placement_options(def, options, "moe.pass." .. name)
  M.pass_rows[#M.pass_rows + 1] = { name = name, doc = method.doc, kind = "placement",
    reads = "nothing", needs = {}, gives = {}, options = option_rows(options) }
  passes[name] = { constructor("placement", def, options, false), options, "moe.Pass", method.doc }
end

--- The constructors of the built-in passes and pipelines: moe.pass.<name>{ options }.
M.passes = schema.functions("moe.pass", "pass", passes)
M.pipelines, M.pipeline_rows = pipeline.load(M.constructors)
M.dispatchers, M.dispatcher_rows = dispatcher.load(M.constructors)

return M
