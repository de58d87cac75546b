-- moe.model.<architecture>{...}: a checked model, and moe.model.define{...}, which makes an
-- architecture. Sizes that depend on the number of devices (batch or batch_per_device, experts or
-- experts_per_device) are computed by M.resolve, when the cluster or the number of ranks is known.
-- An architecture is { name, doc, fields = the fields of its own, options = function(m) that
-- returns what build gets of them, check = nil or function(m) that returns what is wrong with them,
-- build = function(b, o), tensors = nil or where its tensors are in a checkpoint (configs.lua) };
-- those of the library are in moe/models.
local cluster = require "moe.spec.cluster"
local core = require "moe.core"
local dtypes = require "moe.spec.dtypes"
local errors = require "moe.base.errors"
local grid_lib = require "moe.spec.grid"
local routing_lib = require "moe.spec.routing"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("model", "a model, for example moe.model.gpt2_moe {...}")

local declared = schema.declared "model"  -- ModelSpec of the engine

--- The fields of a model of any architecture: those of the engine, some of which recipes write in
--- another way, and those from which the engine's are computed.
M.COMMON = schema.changed(declared, {
  name = { doc = "the model's name in results; default: the architecture's" },
  batch = { type = "integer", lo = 1, hi = 1e8,
    doc = "sequences of a step on all devices together" },
  experts_per_device = { type = "integer", lo = 1, hi = 1e5, doc = "number of experts per device" },
  gate = { type = "any", as = "string|moe.Gate", doc = "a built-in gate's name or a gate policy" },
  routing = { type = "routing", doc = "which experts tokens choose, in place of the gate; a gate "
    .. "policy, and a built-in gate that does not take a token's best experts, choose by scores "
    .. "that follow it" },
  k = { doc = declared.k.doc .. "; default: 1" },
  capacity_factor = { lo = 1e-6, doc = "f in an expert's capacity for a rank's N tokens, "
    .. "ceil(k f N / E) slots; default: 1.25" },
  capacity = { type = "string", enum = { "none" },
    instead = function(value)
      return ("'none', or capacity_factor = %s for a bound"):format(schema.show(value))
    end,
    doc = "'none': no choice is dropped" },
  rows_bound = { doc = declared.rows_bound.doc .. "; default: executed, 4; simulated, 1.25 times "
    .. "that of the busiest device under the routing in the simulated steps, which for even "
    .. "choices is 1" },
  bias_balance = { type = schema.changed(declared.bias_balance.type, {
    rate = { default = 0.001 } }) },
  fill = { type = "number", lo = 1e-6, hi = 1,
    doc = "share of capacity slots that hold a token, for plans and, where the model has no "
      .. "routing, for simulations; default: that of the gate on even scores" },
  dtype = { type = "string", enum = cluster.DTYPES,
    doc = "element type (with bf16, parameters and gates stay f32; tf32: f32 numbers, multiplied "
      .. "as TF32 where a simulated device has a rate of it); default: dtypes" },
  dtypes = dtypes.FIELD,
})
M.COMMON.micro_batches, M.COMMON.tp, M.COMMON.cp = nil, nil, nil  -- the grid's
M.COMMON.etp, M.COMMON.cp_comm, M.COMMON.route_over = nil, nil, nil
-- Their defaults depend on other fields, on the architecture or on where the model runs.
for _, name in ipairs { "name", "batch_per_device", "experts", "ep", "k", "capacity_factor",
  "rows_bound" } do
  M.COMMON[name] = schema.optional(M.COMMON[name])
end

-- Pairs of fields that exclude each other: exactly one is given of the pairs of batch and experts,
-- at most one of capacity and capacity_factor, and of dtype and dtypes. Where M.override sets one
-- of a pair, it removes the other.
local PARTNER = { batch = "batch_per_device", batch_per_device = "batch",
  experts = "experts_per_device", experts_per_device = "experts",
  capacity = "capacity_factor", capacity_factor = "capacity", dtype = "dtypes", dtypes = "dtype" }

-- Returns the entry of core.table("gates") if `gate` is a built-in gate's name, or `gate` itself if
-- it is a gate policy. Raises a user error for another value.
local function check_gate(gate, path, at)
  if type(gate) == "string" then
    local names = {}
    for i, g in ipairs(core.table("gates")) do
      if g.name == gate then return g end
      names[i] = g.name
    end
    schema.unknown(path, "gate", gate, names, at)
  end
  if schema.is_a("gate", gate, path, at) then return gate end
  schema.refuse(path, gate, type(gate) == "function"
    and "a gate: call the gate's constructor, for example my_gate {}"
    or "a gate's name or a gate policy", at)
end

-- Returns the gate of a model with a routing model. If that has scores and the gate does not just
-- take the best ones, the gate itself chooses by them. Otherwise the routing model chooses, and the
-- gate is top_k (slots are then given out as under top_k), with the k of the gate that the recipe
-- named, if it named one that fixes k.
local function routed(m, given, gate, path, at)
  local policy = type(m.gate) == "table"
  m.by_scores = m.routing.scored and (policy or given and not gate.takes_best) or nil
  if m.by_scores then return gate end
  if policy then
    errors.user(("%s.routing: '%s' has choices but no scores by which the gate '%s' could choose; "
      .. "give a workload with popularity, for example zipf, or a built-in gate"):format(path,
      m.routing.name, gate.name), at)
  end
  m.gate = "top_k"
  local stand_in = check_gate(m.gate, path .. ".gate", at)
  return given and gate.k > 0 and schema.merged(stand_in, { k = gate.k }) or stand_in
end

-- Checks the fields and returns a model of the architecture. ends: as in schema.collector; grid:
-- nil or that of M.on.
local function make(arch, t, path, at, ends, grid)
  local assumed = schema.collector(path, "model", ends)
  local m = schema.check(arch.all, t, path, at, assumed)
  m.name = m.name or arch.name
  schema.one_of(m, "batch", "batch_per_device", path, at)
  schema.one_of(m, "experts", "experts_per_device", path, at)
  schema.one_of(m, "capacity", "capacity_factor", path, at, true)
  schema.one_of(m, "dtype", "dtypes", path, at, true)
  if m.rows_bound and not m.capacity then
    errors.user(path .. ".rows_bound = " .. m.rows_bound .. ": only a model without a capacity has "
      .. "room by rows_bound; add capacity = 'none' or leave rows_bound out", at,
      path .. ".rows_bound")
  end
  local wrong = arch.check and arch.check(m)
  if wrong then errors.user(path .. "." .. wrong, at) end
  local gate = check_gate(m.gate, path .. ".gate", at)
  if m.routing then gate = routed(m, t.gate, gate, path, at) end
  local fixed = gate.k and gate.k > 0 and gate.k or nil
  if fixed and m.k and m.k ~= fixed then
    errors.user(("%s.k: is %d, but the gate '%s' makes %d choices per token; omit k or change the "
      .. "gate"):format(path, m.k, gate.name, fixed), at)
  end
  m.k = fixed or m.k or 1
  m.given, m.root, m.at, m.assumed = schema.merged(t, {}), path, at, assumed.found
  m.architecture, m.grid = arch, grid
  m.path = path:match "^model%." and "model" or path
  return schema.object(m, mt)
end

--- Returns the model with some assumed constants at an end of their band. ends: as in
--- schema.collector.
function M.at_ends(model, ends)
  return make(model.architecture, model.given, model.root, model.at, ends, model.grid)
end

--- Returns the model on a grid; `model` itself if grid is nil.
function M.on(model, grid)
  if not grid then return model end
  return make(model.architecture, model.given, model.root, model.at, nil, grid)
end

-- Returns a copy of `given` without those fields that a field of `changes` excludes.
local function without_partners(given, changes)
  local t = schema.merged(given, {})
  for key in pairs(changes) do
    if PARTNER[key] then t[PARTNER[key]] = nil end
  end
  return t
end

--- Returns a model in which the fields of `changes` replace those of `model`; `model` itself if
--- changes is nil. A changed gate also removes `k`, and a changed gate, routing, k or capacity
--- removes `fill`, unless `changes` gives them.
function M.override(model, changes, path, at)
  if changes == nil then return model end
  if type(changes) ~= "table" then
    schema.refuse(path, changes, "a table of the model's fields to replace, for example { k = 2 }",
      at)
  end
  local t = without_partners(model.given, changes)
  if changes.gate then t.k = nil end
  if changes.capacity_factor then t.rows_bound = nil end
  for _, key in ipairs { "gate", "routing", "k", "capacity", "capacity_factor" } do
    if changes[key] ~= nil then t.fill = nil end
  end
  local grid = model.grid
  if grid and grid.ep and changes.ep then
    grid = grid_lib.with(grid, {}, grid.at)
    grid.ep = nil
  end
  return make(model.architecture, schema.merged(t, changes), path, at, nil, grid)
end

--- Returns the specification of a plan of the model for `all` devices, as far as it follows from
--- the model: { model = its fields, build = function(b, o), architecture =
--- its name, tensors = as in an architecture, gate = the gate's policy or nil }. types: the name of
--- the set of types (dtypes.lua) if the model does not give any.
function M.resolve(model, all, types)
  local pp, devices = grid_lib.pipeline_ranks(model, all)
  local ep, micro_batches, tp, cp, shares, etp = grid_lib.sizes(model, devices)
  local function split(total, what, ranks)
    local rows = model[total]
    if not rows then return model[PARTNER[total]] end
    if rows % ranks ~= 0 then
      local remedy, fits, rest = "", rows, devices
      while rest > 0 do fits, rest = rest, fits % rest end  -- the greatest common divisor
      if total == "experts" then
        remedy = (", or give ep, the number of ranks that hold all experts together, such as "
          .. "ep = %d"):format(fits)
      end
      errors.user(("%s.%s: %d %s cannot be spread evenly over %d ranks; give a multiple%s"):format(
        model.path, total, rows, what, ranks, remedy), model.at)
    end
    return rows / ranks
  end
  local policy = type(model.gate) == "table" and model.gate or nil
  local arch = model.architecture
  local resolved = arch.options(model)
  for name in pairs(declared) do resolved[name] = model[name] end
  resolved.ep, resolved.micro_batches, resolved.pp = ep, micro_batches, pp
  resolved.tp, resolved.cp, resolved.etp = tp, cp, etp
  resolved.cp_comm, resolved.route_over = (model.grid or {}).cp_comm, (model.grid or {}).route_over
  resolved.dtype, resolved.dtypes = dtypes.of(model, types)
  resolved.batch_per_device = split("batch", "sequences", shares)
  if model.batch then resolved.batch_per_device = resolved.batch_per_device / micro_batches end
  resolved.experts = split("experts", "experts", ep) * ep
  resolved.gate = policy and policy.name or model.gate
  resolved.capacity_factor = model.capacity and 0 or model.capacity_factor
    or declared.capacity_factor.default
  errors.call(model.at, core.check_model, resolved, devices)
  return { model = resolved, layout = (model.grid or {}).layout, at = (model.grid or {}).at,
    build = arch.build, architecture = arch.name, tensors = arch.tensors,
    gate = policy }
end

--- Returns { parameters = { { name, elements, expert } }, all = number of parameters, active =
--- those that a token uses, flops_per_token = of the forward } of a model, counted in its graph.
--- Each expert gets the same number of rows, none of them padding, as there are as many sequences
--- as experts.
function M.counts(model)
  local experts = math.max(model.experts or model.experts_per_device, model.k)
  local whole = make(model.architecture, model.given, model.root, model.at)  -- not on its grid
  local spec = M.resolve(M.override(whole, { batch_per_device = experts, ep = 1, dtype = "f32",
    experts = experts, gate = "top_k", k = model.k, capacity_factor = 1 }, model.root, model.at), 1)
  spec.model.micro_batches = 1
  local counts = errors.call(model.at, core.model_counts, spec)
  counts.all, counts.active = 0, 0
  for _, p in ipairs(counts.parameters) do
    counts.all = counts.all + p.elements
    counts.active = counts.active + (p.expert and p.elements * model.k / experts or p.elements)
  end
  counts.flops_per_token = counts.flops / (model.seq * experts)
  return counts
end

local methods = {}
mt.__index = methods

--- model:parameters(): returns the number of parameters, and of those that a token uses.
function methods:parameters()
  local counts = M.counts(self)
  return counts.all, counts.active
end

M.FLOPS = { seq = { type = "integer", lo = 1, hi = 1e7,
  doc = "tokens per sequence; default: the model's" } }

--- model:flops{...}: returns the floating-point operations of the forward per token, of which those
--- of causal attention count once; a step of training takes three times as many.
function methods:flops(t)
  local at = errors.here()
  local given = schema.check(M.FLOPS, t or {}, "flops", at)
  local sized = M.override(self, given.seq and { seq = given.seq }, self.root, at)
  return M.counts(sized).flops_per_token
end

schema.record("model", "m", "a model, from moe.model", {
  { "parameters", "(): number, number",
    "returns the number of parameters, and of those that a token uses" },
  { "flops", "(t?: { seq: integer }): number", "returns the floating-point operations of the "
    .. "forward per token, with causal attention, of sequences of `seq` tokens (default: the "
    .. "model's); a step of training takes three times as many" },
})

--- Returns the share of the capacity slots that hold a token: the model's `fill`, or the share
--- under balanced routing, which the core corrects by a sample of the gate. The simulator uses this
--- share where padding is neither sent nor computed. In a model without capacity each expert has
--- one slot for every token of a rank.
function M.fill(model, resolved)
  if model.fill then return model.fill end
  local full_at = 1
  for _, g in ipairs(core.table "gates") do
    if g.name == resolved.gate then full_at = g.full_at or math.huge end
  end
  if full_at == math.huge then return 1 end
  if resolved.capacity_factor <= 0 then return resolved.k / resolved.experts end
  return math.min(1, full_at / resolved.capacity_factor)
end

local architecture_mt = { __name = "architecture" }

-- Returns the architecture, with the list of all fields that its models have.
local function architecture(arch)
  local all = schema.merged(M.COMMON, arch.fields)
  return setmetatable(schema.merged(arch, { all = all }), architecture_mt)
end

local gpt2 = architecture(require "moe.models.gpt2_moe")
M.FIELDS = gpt2.all

local function constructor(arch)
  return function(t)
    local at = errors.here()
    if arch.defaults and type(t) == "table" then
      t = schema.merged(without_partners(arch.defaults, t), t)
    end
    return make(arch, t, "model." .. arch.name, at)
  end
end

local decoder = architecture(require "moe.models.decoder")
local configs = require "moe.models.configs"
local open_models = require "moe.models.open"

-- Returns the constructor of the models of a config.json; its fields replace those of the config.
-- what: names the model in errors; at: where the config is named; named: the name of its
-- constructor, or nil; how: nil or FROM's fields.
local function configured(config, what, at, named, how)
  local whole
  config, whole = configs.language_model(config)
  if how and how.like then config = schema.merged(config, { model_type = how.like }) end
  local fields, longest = configs.fields(config, what, at, how and how.stand_in)
  if not fields then errors.user(("%s: %s"):format(what, longest), at) end
  if how and how.mtp then fields.mtp_layers = configs.mtp_layers(config, what, at) end
  local base = schema.merged(decoder.defaults, fields)
  local arch = setmetatable(schema.merged(decoder, { name = fields.name, base = base, named = named,
    tensors = configs.tensors(config.model_type, whole) }), architecture_mt)
  return function(t)
    local here = errors.here()
    if type(t) ~= "table" then schema.refuse(what, t, "a table of the model's fields", here) end
    if longest and type(t.seq) == "number" and t.seq > longest then
      schema.refuse(what .. ".seq", t.seq, ("at most %d: beyond it attention scales with the "
        .. "sequence (rope_type 'dynamic', llama_4_scaling_beta), which is not built"):format(
        longest), here)
    end
    return make(arch, schema.merged(without_partners(base, t), t), what, here)
  end
end

local STAND_IN = {
  flops = { type = "number", lo = 0, hi = 1e15, required = true,
    doc = "floating-point operations of the forward per token and block, at the rate of matrix "
      .. "products; the gradients take twice as many" },
  bytes = { type = "number", lo = 0, hi = 1e12, required = true,
    doc = "bytes that the forward reads and writes per token and block" },
}
local FROM = { stand_in = { type = "table", as = "table<string, table>",
  doc = "by the name of a part of attention that does not exist here (linear_attention, mamba, "
    .. "sparse_attention, ..): { flops =, bytes = } of what stands in for it in a simulation" },
  mtp = { type = "boolean", default = false, doc = "whether the model has the MTP layers of the "
    .. "config (num_nextn_predict_layers), which transformers leaves out" },
  like = { type = "string", enum = schema.keys_of(configs.TYPES),
  doc = "the model_type whose architecture it is, if its own is not known" } }

-- moe.model.from_config(file, { like =, mtp =, stand_in = }): the constructor of the model of a
-- config.json of Hugging Face.
local function from_config(file, how)
  local at = errors.here()
  if type(file) ~= "string" then
    schema.refuse("moe.model.from_config", file, "the name of a config.json", at)
  end
  local config = errors.call(at, core.json_decode, errors.call(at, core.read_file, file), file)
  if type(config) ~= "table" or type(config.model_type) ~= "string" then
    errors.user(("%s: it is not a config.json of a model, which has a model_type"):format(file), at)
  end
  how = how and schema.check(FROM, how, "moe.model.from_config", at)
  for name, given in pairs(how and how.stand_in or {}) do
    local path = "moe.model.from_config.stand_in." .. tostring(name)
    how.stand_in[name] = schema.check(STAND_IN, given, path, at)
  end
  return configured(config, "model." .. file, at, nil, how)
end

-- The constructor of a published model, by its name in models/open.lua.
local function named(name)
  return function(t)
    local config = schema.merged(open_models[name], {})
    config.published = nil
    local at = errors.here()
    if t ~= nil and type(t) ~= "table" then
      schema.refuse("model." .. name, t, "a table of the model's fields (a config.json is read by "
        .. "moe.model.from_config)", at)
    end
    local constructed = configured(config, "model." .. name, at, name)
    return constructed(schema.merged({ name = name }, t or {}))
  end
end

--- Tokens per sequence for which a published model's operations are counted.
M.COUNTED_SEQ = 4096

--- Returns { all = parameters in units of 10^9, active = those that a token uses, gflops = 10^9
--- operations of the forward per token of a sequence of COUNTED_SEQ, nil if the model cannot be
--- built, missing = nil or the part that is not built } of the published model of this name, or nil
--- if there is none.
function M.published(name)
  local config = open_models[name]
  if not config then return nil end
  if config.published then
    return { all = config.published[1], active = config.published[2],
      missing = configs.MISSING[config.model_type] }
  end
  local counts = M.counts(named(name) { seq = M.COUNTED_SEQ, batch = 1 })
  return { all = counts.all / 1e9, active = counts.active / 1e9,
    gflops = counts.flops_per_token / 1e9 }
end

M.DEFINE = {
  name = { type = "string", required = true,
    doc = "the architecture's name in results and errors" },
  params = { type = "table", default = {}, as = "table<string, any>",
    doc = "the fields that its models have in addition to those of every model: name -> default" },
  build = { type = "function", required = true, as = "fun(b: moe.Builder, o: table)",
    doc = "builds the model: declares its parameters and adds its ops with b; o: the model's "
      .. "fields, with sizes per device" },
}

local defined = {}  -- names of the recipe's own architectures; by them executed runs are told apart

-- moe.model.define{...}: returns the constructor of models of a new architecture.
local define = schema.taking(M.DEFINE, "moe.model.define", function(def, at)
  if defined[def.name] then
    errors.user(("moe.model.define.name: '%s' is defined twice; give each architecture a name of "
      .. "its own"):format(def.name), at)
  end
  defined[def.name] = true
  local fields = schema.options(def.params, "moe.model.define.params", at)
  for name in pairs(fields) do
    if M.COMMON[name] then
      errors.user(("moe.model.define.params.%s: every model has a field of this name; give another "
        .. "name"):format(name), at)
    end
  end
  return constructor(architecture { name = def.name, fields = fields, build = def.build,
    options = function(m)
      local own = {}
      for name in pairs(fields) do own[name] = m[name] end
      return own
    end })
end)

local lancet = require "moe.models.lancet"(schema.assumed)
local lina = require "moe.models.lina"(schema.assumed)
local proprophet = require "moe.models.proprophet"(schema.assumed)

-- Returns the field `size` of a paper's models.
local function size_of(paper)
  return { size = { type = "string", enum = schema.keys_of(paper.sizes), required = true,
    doc = "one of the paper's sizes" } }
end

--- Fields of moe.model.lancet, lina and proprophet in addition to those of gpt2_moe, which may be
--- given to replace the values in models/.
M.LINA, M.PROPROPHET = size_of(lina), size_of(proprophet)
M.LANCET = schema.merged(size_of(lancet), {
  gpu = { type = "string", enum = { "p3dn", "p4de" }, required = true,
    doc = "the cluster, which decides the batch and the dtype" },
  reading = { type = "string", enum = schema.keys_of(lancet.readings), default = "artifact",
    doc = "artifact: as the authors' artifact runs it, with even scores; artifact_text: with loads "
      .. "as of untrained gates on text; print: what the paper prints, L at 48 on p4de; print_l8: "
      .. "L at 8, as section 7.4 implies" },
})

-- Returns the constructor of a paper's models. fields: its own; values_of(own): those of gpt2_moe
-- at its own fields' values.
local function of_paper(name, fields, values_of)
  local path = "model." .. name
  return function(t)
    local at, own, changes = errors.here(), {}, {}
    if type(t) ~= "table" then schema.refuse(path, t, "a table", at) end
    for key, value in pairs(t) do (fields[key] and own or changes)[key] = value end
    local values = values_of(schema.check(fields, own, path, at))
    return M.override(make(gpt2, values, path, at), changes, path, at)
  end
end

local function values_of_lancet(own)
  local reading = lancet.readings[own.reading]
  local values, on = schema.merged(lancet.common, reading.common), reading[own.gpu]
  values = schema.merged(schema.merged(values, lancet.sizes[own.size]), reading[own.size] or {})
  values.batch_per_device, values.dtype = on[own.size], on.dtype
  local s = lancet.zipf[own.reading]
  values.routing = s and routing_lib.workload "zipf" { s = s }
  return values
end

local function by_size(paper)
  return function(own) return schema.merged(paper.common, paper.sizes[own.size]) end
end

-- Returns the field list of a model with values: its own fields, and those of all models of its
-- architecture (`all`, default: gpt2_moe), which replace its values.
local function changing(own, all)
  local out = {}
  for name, field in pairs(all or M.FIELDS) do out[name] = schema.optional(field) end
  return schema.merged(out, own)
end

local constructors = {
  define = { define, M.DEFINE, "fun(t: table): moe.Model",
    "defines an architecture; returns the constructor of its models" },
  gpt2_moe = { constructor(gpt2), gpt2.all, "moe.Model", gpt2.doc, class = "moe.ModelFields",
    assumed = true },
  lancet = { of_paper("lancet", M.LANCET, values_of_lancet), changing(M.LANCET), "moe.Model",
    lancet.doc, assumed = true },
  lina = { of_paper("lina", M.LINA, by_size(lina)), changing(M.LINA), "moe.Model", lina.doc,
    assumed = true },
  proprophet = { of_paper("proprophet", M.PROPROPHET, by_size(proprophet)),
    changing(M.PROPROPHET), "moe.Model", proprophet.doc, assumed = true },
  decoder = { constructor(decoder), decoder.all, "moe.Model", decoder.doc, assumed = true },
  from_config = { from_config, "(file: string, how?: { like?: string, mtp?: boolean, "
    .. "stand_in?: table })",
    "fun(t: table): moe.Model",
    "reads a config.json of Hugging Face; returns the constructor of its model" },
}
for name in pairs(open_models) do
  constructors[name] = { named(name), changing({}, decoder.all), "moe.Model",
    "the published model of this name" }
end
M.constructors = schema.functions("moe.model", "model", constructors)

-- The fields of a model that policies get; of another architecture than gpt2_moe those of its own.
local SEEN = schema.changed(schema.merged(gpt2.fields, declared),
  { gate = { doc = "name of the gate" }, dtype = M.COMMON.dtype })
SEEN.attention, SEEN.fused_attention = nil, { type = "boolean",
  doc = "whether attention is one kernel" }
SEEN.pp = { type = "integer", doc = "pipeline ranks" }
schema.record("context model", "ctx.model", "sizes of the model, as policies get them", {}, SEEN)

return M
