-- Type stubs for lua-language-server, from the same field lists as the checks: `moebench list stubs
-- > moe.lua`, in a folder that the editor's workspace.library names.
local claims = require "moe.results.claims"
local cluster = require "moe.spec.cluster"
local collectives = require "moe.spec.collectives"
local comm_tables = require "moe.spec.comm_tables"
local core = require "moe.core"
local experiment = require "moe.run.experiment"
local infer = require "moe.run.infer"
local inference = require "moe.techniques.inference"
local jobs = require "moe.run.jobs"
local judge = require "moe.results.judge"
local lina = require "moe.techniques.lina"
local machine = require "moe.spec.machine"
local model = require "moe.spec.model"
local packing = require "moe.spec.packing"
local pipemoe = require "moe.techniques.pipemoe"
local policy = require "moe.spec.policy"
local prophet = require "moe.techniques.prophet"
local results = require "moe.results.results"
local routing = require "moe.spec.routing"
local schema = require "moe.base.schema"
local system = require "moe.spec.system"
local target = require "moe.spec.target"
local train = require "moe.run.train"

local M = {}

-- Field lists that stand inside others.
local NESTED = { [cluster.DEVICE] = "moe.Device", [cluster.LINK] = "moe.ClusterLink",
  [model.BALANCE_LOSS] = "moe.BalanceLoss", [model.BIAS_BALANCE] = "moe.BiasBalance",
  [train.LINK] = "moe.Link", [train.INTRA] = "moe.LinkInside", [train.NCCL] = "moe.Nccl",
  [cluster.OVERLAP_SLOWDOWN] = "moe.OverlapSlowdown", [target.OPTIMIZER] = "moe.Optimizer",
  [system.REDUCE] = "moe.AllReduce", [comm_tables.FIELDS] = "moe.Collectives",
  [packing.FIELDS] = "moe.SystemPacking" }

local function class_name(name) return "moe." .. name:sub(1, 1):upper() .. name:sub(2) end

local function type_text(field)
  local kind = field.type
  if NESTED[kind] then return NESTED[kind] end
  if type(kind) == "table" then return "table" end
  if kind == "list" then return field.of and ("(%s)[]"):format(type_text(field.of)) or "table" end
  if schema.classes[kind] then return class_name(kind) end
  if field.enum then return ('"%s"'):format(table.concat(field.enum, '"|"')) end
  return kind
end

local function doc_text(field)
  local parts = { field.doc }
  if field.lo and field.hi then
    parts[#parts + 1] = ("(%s to %s)"):format(field.lo, field.hi)
  elseif field.lo then
    parts[#parts + 1] = ("(at least %s)"):format(field.lo)
  end
  if field.default ~= nil and type(field.default) ~= "table" then
    parts[#parts + 1] = ("[%s]"):format(tostring(field.default))
  end
  return table.concat(parts, " ")
end

-- A class whose fields are a field list's; assumed: numbers may be moe.assumed; given: all fields
-- are there.
local function class(out, name, fields, assumed, given)
  out[#out + 1] = "---@class " .. name
  for _, key in ipairs(schema.keys_of(fields)) do
    local field = fields[key]
    local text = type_text(field)
    if assumed and (text == "number" or text == "integer") then text = text .. "|moe.Assumed" end
    local shown = key .. ((field.required or given) and "" or "?")
    out[#out + 1] = ("---@field %s %s %s"):format(shown, text, doc_text(field)):gsub("%s+$", "")
  end
  out[#out + 1] = ""
end

local function constructor(out, name, fields, returned)
  out[#out + 1] = ("---@param t %s"):format(fields)
  out[#out + 1] = ("---@return %s"):format(returned)
  out[#out + 1] = ("function moe.%s(t) end\n"):format(name)
end

-- What cannot be read from a field list.
local FIXED = [[
---@class moe.Values
---@field mean fun(self): number?
---@field max fun(self): number?
---@field min fun(self): number?
---@field median fun(self): number?
---@field each fun(self): fun(): number, moe.Run?

---@class moe.Results
---@field runs moe.Run[]
---@field where fun(self, fields: table): moe.Results
---@field each fun(self): fun(): moe.Run
---@field by fun(self, fields: string|string[]): fun(): any, moe.Results
---@field get fun(self, field: string): moe.Values
---@field map fun(self, f: fun(run: moe.Run): number?): moe.Values
---@field best fun(self, t: table): moe.Results
---@field ratio fun(self, t: table): moe.Values
---@field table fun(self, t: table): string

---@class moe.Plan
---@field order fun(self, lane: string): string[]
---@field text fun(self): string
---@field explain fun(self): table exposures, findings, collectives, causes, bound, idle, text
---@field memory fun(self): table
---@field info fun(self): table
---@field simulate fun(self, t?: moe.SimulateFields): table
---@field overlap fun(self): table
---@field spans fun(self, t?: moe.SpansFields): table[] op, kind, rank, lane, begin_ms, end_ms, ...
---@field micro_ops fun(self): table a2a_ms, ffn_ms, num
---@field run fun(self, executor: "cpu"|"cuda", t?: moe.RunFields): table

---@class moe.Op read only, in the calls of a pass or a schedule
---@field name string
---@field kind string
---@field lane string
---@field seg string
---@field phase string
---@field layer integer?
---@field part integer?
---@field dw boolean
---@field flops number
---@field bytes number
---@field cost_ms number
---@field priority integer
---@field producers fun(self): moe.Op[]
---@field consumers fun(self): moe.Op[]

---@class moe.Discipline
---@field pick? "order"|"priority"|fun(ready: moe.Op[]): moe.Op who is next, of those that may begin
---@field exclusive? string[] lanes with which it shares the network, one transfer at a time
---@field hold? fun(op: moe.Op, g: table): moe.Op? the compute op that announces op; planned once

---@class moe.Schedule
---@field free fun(self, a: moe.Op, b: moe.Op): boolean
---@field before fun(self, a: moe.Op, b: moe.Op, why?: string)
---@field sequence fun(self, ops: moe.Op[], why?: string)
---@field lane fun(self, op: moe.Op, lane: string)
---@field under fun(self, op: moe.Op, comm: moe.Op, why?: string)
---@field chunk fun(self, op: moe.Op, bytes: integer)
---@field priority fun(self, op: moe.Op, n: integer) higher first; 0 where none is given
---@field discipline fun(self, lane: string, t: moe.Discipline) one per lane

---@class moe.PlacementContext in the calls of a placement; all ranks see the same
---@field step integer
---@field layer integer MoE layer
---@field experts integer
---@field devices integer
---@field model table
---@field cluster table with :node_of(device) and :devices_of(node)
---@field workload string? the routing model's name
---@field placement moe.Placement in force, read only
---@field rates table what p:time_ms() counts with: input_bytes, expert_bytes, inputs_per_s, ...
---@field rng table :uniform(), :below(n); seeded by --seed, step and layer, alike on all ranks
---@field state table lives over the calls of one rank and layer
---@field log fun(self, why: string) stands with the step's placement in results

---@class moe.Loads
---@operator call(integer): integer tokens for an expert; of one source as the second argument
---@field of_expert fun(self, e: integer): integer
---@field of_device fun(self, d: integer): integer that it sends
---@field by_expert fun(self): integer[]
---@field by_device fun(self): integer[]
---@field heaviest fun(self): integer[] experts, those with most tokens first
---@field total fun(self): integer

---@class moe.Placement edits return it
---@field copy fun(self): moe.Placement
---@field owner fun(self, e: integer): integer
---@field holders fun(self, e: integer): integer[] the owner first
---@field holds fun(self, e: integer, d: integer): boolean
---@field shadow fun(self, e: integer, d: integer): moe.Placement a copy for one step
---@field replicate fun(self, e: integer, d: integer): moe.Placement a second resident
---@field migrate fun(self, e: integer, d: integer): moe.Placement the owner moves, with its state
---@field swap fun(self, a: integer, b: integer): moe.Placement owners of two experts change places
---@field drop fun(self, e: integer, d: integer): moe.Placement takes a copy away
---@field clear_shadows fun(self): moe.Placement
---@field share fun(self, e: integer, how: string|fun(src, d): number): moe.Placement
---@field device_load fun(self, d: integer): integer rows that it computes under these loads
---@field time_ms fun(self): number a layer's step by Pro-Prophet's model, copies included
---@field move_ms fun(self): number until residents are there, from the placement in force
---@field free_slots fun(self, d: integer): integer, integer of shadows, of residents
---@field free_bytes fun(self, d: integer): number? memory left; nil where it is not known

---Pro-Prophet's performance model beside a run's spans
---@class moe.PlannerError
---@field error number? mean of |estimated - real| / real; nil without samples
---@field num integer samples in error: of all steps but the first
---@field samples table lists: step, layer, phase, estimated_ms, real_ms

---@class moe.TrainResult
---@field placements table[][]? [step][layer]: layer, owners, replicas, shadows, moves, ...
---@field planner_error table<string, moe.PlannerError>? of a2a, experts, trans, agg
---@field samples_ms number[]

---@class moe.InferResult
---@field losses number[] by batch
---@field accuracy number[] by batch, of next tokens
---@field digest string of all predictions
---@field parameters_digest string
---@field samples_ms number[]
---@field moe table[][] [batch][layer], as moe.TrainResult
---@field rows integer[][][]? [batch][layer][rank] of tokens
---@field phase_2 boolean[] by layer
---@field placed_again boolean[][] [batch][layer]
---@field record string? path of the trace

---@class moe.prophet.Devices
---@field time_s number
---@field time_without_s number
---@field computed integer[] inputs by device
---@field received integer[]
---@field computed_without integer[]
---@field received_without integer[]
---@field balance number standard deviation of computed
---@field balance_without number
---@field rb number balance_without / balance

---@class moe.prophet.Plan: moe.prophet.Devices
---@field selected table[] expert, devices

---@class moe.prophet.Placed: moe.prophet.Devices
---@field holders integer[][] by expert, the owner first
---@field move_s number
---@field break_even_steps number

---@class moe
---@field version string
local moe = { lina = {}, model = {}, cluster = {}, pass = {}, pipemoe = {}, policy = {},
  prophet = {} }

---@param name string
---@return fun(t: moe.SystemFields): moe.System
function moe.system(name) end

---@param name string as `moebench list workloads` names it
---@return fun(t?: moe.WorkloadFields): moe.Routing
function moe.workload(name) end

---@class moe.TraceFunctions
---@field read fun(file: string): table steps, layers, ranks, tokens, experts, k, blocks, choices
---@field import fun(t: moe.TraceImportFields): string path of the trace
---@field export fun(t: moe.TraceExportFields): string[] paths
---@overload fun(file: string): fun(t?: moe.TraceFields): moe.Routing
moe.trace = {}

---@param constructor fun(t?: table): moe.Pass
---@param options table one option a list of values
---@return moe.Best
function moe.best(constructor, options) end

---@param constructor fun(t?: table): moe.Pass
---@param options table one option a list of values, the wanted one first
---@return moe.Fallback
function moe.fallback(constructor, options) end

---@param e moe.Experiment
---@return moe.Results
function moe.run(e) end

---@param file string made by `moebench calibrate`
---@param options? moe.MachineOptions
---@return moe.ClusterFields
function moe.machine(file, options) end

---@param file string output of all_reduce_perf or alltoall_perf
---@return moe.Times
function moe.nccl_tests(file) end

---@param rows (string|number)[][] the first is the header; one without cells is an empty line
---@return string aligned columns
function moe.table(rows) end

---@param dir string
---@return moe.Results
function moe.results(dir) end
]]

-- Name, fields, and whether numbers among them may be moe.assumed.
local CLASSES = {
  { "moe.AssumedFields", schema.ASSUMED },
  { "moe.ModelFields", model.FIELDS, true },
  { "moe.LancetFields", schema.merged(model.FIELDS, model.LANCET), true },
  { "moe.LinaFields", schema.merged(model.FIELDS, model.LINA), true },
  { "moe.ProprophetFields", schema.merged(model.FIELDS, model.PROPROPHET), true },
  { "moe.Device", cluster.DEVICE, true },
  { "moe.ClusterLink", cluster.LINK, true },
  { "moe.ClusterFields", cluster.FIELDS, true },
  { "moe.OverlapSlowdown", cluster.OVERLAP_SLOWDOWN, true },
  { "moe.MachineOptions", machine.OPTIONS, true },
  { "moe.Link", train.LINK },
  { "moe.LinkInside", train.INTRA },
  { "moe.Nccl", train.NCCL },
  { "moe.Optimizer", target.OPTIMIZER },
  { "moe.BalanceLoss", model.BALANCE_LOSS },
  { "moe.BiasBalance", model.BIAS_BALANCE },
  { "moe.AllReduce", system.REDUCE },
  { "moe.Collectives", comm_tables.FIELDS },
  { "moe.AllToAllOp", collectives.OPS.all_to_all },
  { "moe.AllReduceOp", collectives.OPS.all_reduce },
  { "moe.CollectivesFields", collectives.FIELDS },
  { "moe.JudgeFields", judge.FIELDS },
  { "moe.LoadsFields", routing.LOADS },
  { "moe.TraceFields", routing.TRACE },
  { "moe.TraceImportFields", routing.IMPORT },
  { "moe.TraceExportFields", routing.EXPORT },
  { "moe.pipemoe.DegreeFields", pipemoe.DEGREE },
  { "moe.pipemoe.TimeFields", pipemoe.TIME },
  { "moe.pipemoe.SimulateFields", pipemoe.SIMULATE },
  { "moe.pipemoe.LayersFields", pipemoe.LAYERS },
  { "moe.pipemoe.FitFields", pipemoe.FIT },
  { "moe.prophet.PlaceFields", prophet.PLACE },
  { "moe.prophet.PlanFields", prophet.PLAN },
  { "moe.SystemPacking", packing.FIELDS },
  { "moe.LinaPackingFields", lina.PACKING },
  { "moe.LinaTraceFields", inference.TRACE },
  { "moe.LinaInferenceFields", inference.INFERENCE },
  { "moe.LinaPopularityFields", inference.POPULARITY },
  { "moe.LinaPlaceFields", inference.PLACE },
  { "moe.LinaLocalityFields", inference.LOCALITY },
  { "moe.LinaTokenClassesFields", inference.TOKEN_CLASSES },
  { "moe.SystemFields", system.FIELDS },
  { "moe.RunFields", train.RUN },
  { "moe.SimulateFields", train.SIMULATE },
  { "moe.SpansFields", train.SPANS },
  { "moe.SimulateEntryFields", experiment.SIMULATE },
  { "moe.CpuRunFields", experiment.CPU },
  { "moe.TrainFields", train.TRAIN },
  { "moe.InferFields", infer.INFER },
  { "moe.PlanFields", train.PLAN },
  { "moe.Case", jobs.CASE },
  { "moe.ExperimentFields", experiment.FIELDS },
  { "moe.ClaimFields", claims.FIELDS },
}

local function field_classes(out)
  for _, row in ipairs(CLASSES) do
    class(out, row[1], row[2], row[3])
  end
  for _, kind in ipairs(schema.keys_of(policy.KINDS)) do
    class(out, ("moe.policy.%sFields"):format(kind), policy.KINDS[kind])
  end
  for _, row in ipairs(core.table "passes") do
    class(out, "moe.pass." .. row.name .. "Options", policy.pass_options(row))
  end
  local options = {}
  for _, row in ipairs(core.table "workloads") do
    for name, field in pairs(routing.workload_fields(row)) do
      options[name] = schema.merged(field, {})
      options[name].default = nil  -- workloads differ in it
    end
  end
  class(out, "moe.WorkloadFields", options)
end

-- What the engine declares of results.
local function result_classes(out)
  class(out, "moe.TrainResult", schema.declared "result", false, true)
  class(out, "moe.MoeStats", schema.declared "moe_stats", false, true)
  class(out, "moe.RankStats", schema.declared "rank", false, true)
end

local function run_class(out)
  out[#out + 1] = "---@class moe.Run"
  for _, key in ipairs(schema.keys_of(results.FIELDS)) do
    out[#out + 1] = ("---@field %s any %s"):format(key, results.FIELDS[key])
  end
  out[#out + 1] = ""
end

local function constructors(out)
  constructor(out, "assumed", "moe.AssumedFields", "moe.Assumed")
  constructor(out, "claim", "moe.ClaimFields", "moe.Claim")
  constructor(out, "collectives", "moe.CollectivesFields",
    "{ begin_ms: number, end_ms: number, rank_end_ms: number[] }[]")
  constructor(out, "experiment", "moe.ExperimentFields", "moe.Experiment")
  constructor(out, "judge", "moe.JudgeFields", "table[] verdicts")
  constructor(out, "pipemoe.degree", "moe.pipemoe.DegreeFields",
    "{ degree: integer, time_s: number }")
  constructor(out, "pipemoe.time", "moe.pipemoe.TimeFields", "number seconds")
  constructor(out, "pipemoe.simulate", "moe.pipemoe.SimulateFields",
    "{ time_s: number, spans: table[]? }")
  constructor(out, "pipemoe.layers", "moe.pipemoe.LayersFields", "table[]")
  constructor(out, "pipemoe.fit", "moe.pipemoe.FitFields",
    "{ lines: table, error: table, degrees: integer[], capacity: integer }")
  constructor(out, "prophet.place", "moe.prophet.PlaceFields", "moe.prophet.Placed")
  constructor(out, "prophet.plan", "moe.prophet.PlanFields", "moe.prophet.Plan")
  constructor(out, "lina.packing", "moe.LinaPackingFields", "table")
  constructor(out, "lina.trace", "moe.LinaTraceFields", "moe.Inference_trace")
  constructor(out, "lina.inference", "moe.LinaInferenceFields", "table")
  constructor(out, "lina.popularity", "moe.LinaPopularityFields", "moe.Popularity")
  constructor(out, "lina.place", "moe.LinaPlaceFields",
    "{ holders: integer[][], experts: integer[][] }")
  constructor(out, "lina.locality", "moe.LinaLocalityFields",
    "{ share: number[], layers: table[], tokens: integer }")
  constructor(out, "lina.token_classes", "moe.LinaTokenClassesFields", "moe.Routing")
  constructor(out, "loads", "moe.LoadsFields", "integer[][] by source and expert")
  constructor(out, "model.gpt2_moe", "moe.ModelFields", "moe.Model")
  constructor(out, "model.lancet", "moe.LancetFields", "moe.Model|false")
  constructor(out, "model.lina", "moe.LinaFields", "moe.Model")
  constructor(out, "model.proprophet", "moe.ProprophetFields", "moe.Model")
  constructor(out, "plan", "moe.PlanFields", "moe.Plan")
  constructor(out, "train", "moe.TrainFields", "moe.TrainResult")
  constructor(out, "infer", "moe.InferFields", "moe.InferResult")
  for _, name in ipairs(schema.keys_of(cluster.constructors)) do
    constructor(out, "cluster." .. name,
      name == "custom" and "moe.ClusterFields" or "{ nodes: integer }", "moe.Cluster")
  end
  for _, kind in ipairs(schema.keys_of(policy.KINDS)) do
    constructor(out, "policy." .. kind, ("moe.policy.%sFields"):format(kind),
      ("fun(options?: table): %s"):format(kind == "gate" and "moe.Gate" or "moe.Pass"))
  end
  for _, row in ipairs(core.table "passes") do
    out[#out + 1] = "---" .. row.doc
    constructor(out, "pass." .. row.name, ("moe.pass.%sOptions?"):format(row.name), "moe.Pass")
  end
end

--- The text of the stub file.
function M.text()
  local out = { "---@meta moe", "-- Made by `moebench list stubs`.\n" }
  for _, name in ipairs(schema.keys_of(schema.classes)) do
    out[#out + 1] = "---@class " .. class_name(name)
  end
  out[#out + 1] = ""
  field_classes(out)
  run_class(out)
  result_classes(out)
  out[#out + 1] = FIXED
  constructors(out)
  out[#out + 1] = "return moe"
  return table.concat(out, "\n")
end

return M
