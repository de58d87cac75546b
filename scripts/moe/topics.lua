-- The topics of `moebench doc` and of the type stubs: every field list that the library checks,
-- every function, and every type of values that recipes get, each under its topic name. The docs
-- themselves are not here but next to what they describe: in calls of schema.functions,
-- schema.record and schema.methods, and of new_type in the bindings.
local cluster = require "moe.spec.cluster"
local collectives = require "moe.spec.collectives"
local comm_tables = require "moe.spec.comm_tables"
local core = require "moe.core"
local experiment = require "moe.run.experiment"
local infer = require "moe.run.infer"
local jobs = require "moe.run.jobs"
local machine = require "moe.formats.machine"
local model = require "moe.spec.model"
local packing = require "moe.spec.packing"
local pipeline_times = require "moe.spec.pipeline_times"
local plan = require "moe.run.plan"
local schema = require "moe.base.schema"
local search = require "moe.search.search"
local sensitivity = require "moe.results.sensitivity"
local system = require "moe.spec.system"
local target = require "moe.spec.target"
local train = require "moe.run.train"

local M = {}

-- Field lists of tables inside the tables that functions take: { class, field list, doc, whether
-- numbers may be moe.assumed }.
local TABLES = {
  { "Device", cluster.DEVICE, "a cluster's devices", true },
  { "GemmRates", cluster.GEMM_RATES, "a device's rates of matrix products by element type", true },
  { "OpTimesRatios", cluster.OP_TIMES_RATIOS, "factors of op times by element type", true },
  { "ClusterLink", cluster.LINK, "a cluster's links", true },
  { "OverlapSlowdown", cluster.OVERLAP_SLOWDOWN, "how much transfers slow down compute", true },
  { "Collectives", comm_tables.FIELDS, "measured times of a cluster's collectives" },
  { "MachineOptions", machine.OPTIONS, "options of moe.machine" },
  { "BalanceLoss", model.COMMON.balance_loss.type, "a model's balance_loss" },
  { "BiasBalance", model.COMMON.bias_balance.type, "a model's bias_balance" },
  { "Optimizer", target.OPTIMIZER, "the optimizer, which updates the parameters" },
  { "AllReduce", system.REDUCE, "a system's all_reduce: how gradients are reduced" },
  { "SystemPacking", packing.FIELDS, "a system's packing" },
  { "SearchExecute", search.EXECUTE, "the field `execute` of moe.search" },
  { "Link", train.LINK, "the emulated link of ranks" },
  { "LinkInside", train.INTRA, "the emulated link inside a node" },
  { "Nccl", train.NCCL, "settings of NCCL" },
  { "Swaps", infer.SWAPS, "the field `swaps` of moe.infer" },
  { "TurnTimes", pipeline_times.TIMES, "the field `times` of moe.pipeline_times" },
  { "TurnPairs", pipeline_times.PAIR, "the field `pair` of moe.pipeline_times" },
  { "TurnTransfers", pipeline_times.SEND, "the field `send` of moe.pipeline_times" },
  { "Route", schema.declared "route", "what the function route of moe.policy.dispatcher returns" },
  { "Edits", train.EDITS, "changes of a plan's graph for a device" },
  { "RunFields", train.RUN, "options of plan:run" },
  { "SimulateFields", plan.SIMULATE, "options of plan:simulate" },
  { "RankFields", plan.RANK, "options of plan:order, plan:memory and plan:text" },
  { "ExplainFields", plan.EXPLAIN, "options of plan:explain" },
  { "SpansFields", plan.SPANS, "options of plan:spans" },
  { "Case", jobs.CASE, "what an experiment's case returns" },
  { "SimulateEntryFields", experiment.SIMULATE,
    'an entry of an experiment\'s run, { "simulate", ... }' },
  { "CpuRunFields", experiment.CPU, 'an entry of an experiment\'s run, { "cpu", ... }' },
  { "CudaRunFields", experiment.CUDA, 'an entry of an experiment\'s run, { "cuda", ... }' },
  { "SensitivityNumberFields", sensitivity.FIELDS, "an entry of an experiment's sensitivity" },
  { "AllToAllOp", collectives.OPS.all_to_all, 'an op of moe.collectives, kind = "all_to_all"' },
  { "AllReduceOp", collectives.OPS.all_reduce, 'an op of moe.collectives, kind = "all_reduce"' },
}

--- Returns the part of a class name for a type or field: "GateContext" for "gate context",
--- "AllReduce" for "all_reduce".
function M.camel(name)
  return (name:gsub("(%l)(%w*)[ _]?", function(first, rest) return first:upper() .. rest end))
end

-- Returns the class name of the table that a function takes: "moe.lina.PackingFields" for the
-- function "lina.packing".
local function class_of(call)
  local path, name = call.name:match "^(.-)([^.]*)$"
  return call.class or "moe." .. path .. M.camel(name) .. "Fields"
end

local classes = {}  -- field list -> the name of its class

--- Returns the type of a field in the notation of the stubs.
function M.type_of(field)
  local kind = field.type
  if field.as then return field.as end
  if classes[kind] then return classes[kind] end
  if type(kind) == "table" then
    local parts = {}
    for _, key in ipairs(schema.keys_of(kind)) do
      local inner = kind[key]
      parts[#parts + 1] = ("%s%s: %s"):format(key, inner.required and "" or "?", M.type_of(inner))
    end
    return ("{ %s }"):format(table.concat(parts, ", "))
  end
  if kind == "list" then
    local of = field.of and M.type_of(field.of) or "any"
    return (of:find "[|( ]" and not of:find "^{" and "(%s)[]" or "%s[]"):format(of)
  end
  if schema.classes[kind] then return "moe." .. M.camel(kind) end
  if field.enum then return ('"%s"'):format(table.concat(field.enum, '"|"')) end
  return kind
end

local function number_text(x)
  local short = ("%g"):format(x)
  if x == 2 ^ 53 then return "2^53" end
  return ((tonumber(short) == x and short or ("%.17g"):format(x)):gsub("e%+?(%-?)0*(%d)", "e%1%2"))
end

-- Returns a text on the allowed range and a text on the default; each is nil if there is none.
local function bounds_of(field)
  local default = field.default
  if type(default) == "number" then default = number_text(default) end
  if default == "" or type(default) == "table" then default = nil end
  local range
  if field.lo and field.hi then
    range = ("%s to %s"):format(number_text(field.lo), number_text(field.hi))
  elseif field.lo then
    range = "at least " .. number_text(field.lo)
  end
  return range, default ~= nil and tostring(default) or nil
end

-- Patterns of field names, and the unit of the fields that match.
local UNITS = { { "_bytes_per_s$", "bytes/s" }, { "^bytes_per_s$", "bytes/s" },
  { "_flops_per_s$", "flop/s" }, { "inputs_per_s$", "inputs/s" }, { "_ms$", "ms" },
  { "_us$", "us" }, { "_s$", "s" }, { "_bytes$", "bytes" }, { "^bytes", "bytes" },
  { "^flops$", "flop" } }

local function unit_of(name, type_text)
  if not (type_text:find "number" or type_text:find "integer") then return nil end
  for _, row in ipairs(UNITS) do
    if name:find(row[1]) then return row[2] end
  end
end

--- Returns the members of a field list, sorted by name. where: the name of the field list for error
--- messages; assumed: numbers may be moe.assumed; given: the fields are those of a value that
--- recipes get, so that only fields with `maybe` can be absent. Raises an error for a field without
--- a doc.
local function members_of(fields, where, assumed, given)
  local out = {}
  for i, key in ipairs(schema.keys_of(fields)) do
    local field = fields[key]
    local text = M.type_of(field)
    if not field.doc then error(("the field '%s' of %s has no doc"):format(key, where), 0) end
    local range, default = bounds_of(field)
    if given then range, default = nil, nil end
    if given and field.maybe then text = text .. "?" end
    out[i] = { name = key, type = text, doc = field.doc, range = range, default = default,
      unit = unit_of(key, text), required = field.required, optional = not field.required
        and not given, assumed = assumed and (text == "number" or text == "integer") }
  end
  return out
end

M.members_of = members_of

local function type_members(made)
  local out = {}
  for i, m in ipairs(made.members) do
    out[i] = schema.merged(m, { unit = unit_of(m.name, m.type), method = m.type:sub(1, 1) == "(" })
  end
  for _, m in ipairs(members_of(made.fields or {}, made.name, false, true)) do out[#out + 1] = m end
  return out
end

local function all()
  local out = {}
  local function add(topic) out[#out + 1] = topic end
  for _, row in ipairs(TABLES) do classes[row[2]] = "moe." .. row[1] end
  for _, call in ipairs(schema.calls) do
    local fields = type(call.takes) == "table" and call.takes or call.fields
    local class = fields and class_of(call)
    if fields and not classes[fields] then classes[fields] = class end
    add { name = call.name, call = call, class = class, doc = call.doc, fields = fields,
      takes = type(call.takes) == "string" and call.takes or nil, assumed = call.assumed }
  end
  for _, row in ipairs(TABLES) do
    add { name = row[1]:gsub("(%l)(%u)", "%1_%2"):lower(), class = "moe." .. row[1], doc = row[3],
      fields = row[2], assumed = row[4] }
  end
  for _, list in ipairs { core.table "types", schema.types } do
    for _, made in ipairs(list) do
      add { name = made.name:gsub(" ", "_"), as = made.as, also = made.also,
        class = "moe." .. M.camel(made.name),
        doc = made.doc, made = made }
    end
  end
  for _, topic in ipairs(out) do
    topic.members = topic.made and type_members(topic.made) or topic.fields
      and members_of(topic.fields, topic.name, topic.assumed) or {}
  end
  return out
end

local made

--- Returns all topics, a list of { name, doc, as = name of such a value in examples, also = another
--- name of the topic, class = name of its type, members = a list of { name, type, doc, unit, range,
--- default, required, method } }. A topic of a function also has call, an entry of schema.calls,
--- and takes, the signature if the function does not take a table. Raises an error that names a
--- field without a doc.
function M.all()
  made = made or all()
  return made
end

return M
