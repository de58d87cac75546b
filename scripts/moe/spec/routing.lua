-- Routing models, which state the experts that tokens choose without a gate: moe.workload "name"
-- {...}, moe.trace "file" {...} with the functions moe.trace.*, and moe.loads{...}, which counts
-- the choices of a routing model.
local core = require "moe.core"
local csv = require "moe.formats.csv"
local errors = require "moe.base.errors"
local loads = require "moe.formats.loads"
local lua_text = require "moe.base.lua_text"
local megatron = require "moe.formats.megatron"
local outputs = require "moe.run.outputs"
local rank_loads = require "moe.formats.rank_loads"
local schema = require "moe.base.schema"
local tensorrt = require "moe.formats.tensorrt"

local M = {}

local mt = schema.class("routing",
  "a workload or a trace, for example moe.workload 'zipf' { s = 1.2 }")

local SEED = { type = "integer", lo = 0, hi = 2 ^ 53,
  doc = "seed of the workload's random numbers; default: --seed, or 1" }

--- Returns the options of a workload, an entry of core.table("workloads"), as a field list.
function M.workload_fields(row)
  local out = { seed = SEED }
  for _, o in ipairs(row.options) do
    out[o.name] = { type = o.whole and "integer" or "number", lo = o.lo, hi = o.hi,
      default = o.default, doc = o.doc, replaces = o.replaces }
  end
  return out
end

--- Returns the options of all workloads as one field list without defaults, since the workloads'
--- defaults differ.
function M.options()
  local out = {}
  for _, row in ipairs(core.table "workloads") do
    for name, field in pairs(M.workload_fields(row)) do out[name] = schema.optional(field) end
  end
  return out
end

--- Makes an object for the field `routing` of a model. handle, name: as the core's functions return
--- them; made: the Lua text that makes it; file: of a trace, else nil; scored: true if a gate can
--- choose by scores that follow it.
local function object(handle, name, made, file, scored)
  return schema.object({ handle = handle, name = name, made = made, file = file, scored = scored },
    mt)
end
M.object = object

local function workload_row(name, at)
  local names = {}
  for i, row in ipairs(core.table "workloads") do
    if row.name == name then return row end
    names[i] = row.name
  end
  schema.unknown("moe.workload", "workload", name, names, at)
end

--- moe.workload "zipf" { s = 1.2, seed = 3 }: the routing model of this name, options and seed.
function M.workload(name)
  local row = workload_row(name, errors.here())
  return function(t)
    local at = errors.here()
    local fields, path = M.workload_fields(row), "moe.workload." .. name
    local given = schema.check(fields, t or {}, path, at)
    schema.check_replaced(fields, t or {}, path, at)
    local seed = given.seed or core.args.seed or 1
    given.seed = nil
    local handle, full_name = errors.call(at, core.workload, name, given, seed)
    local made = ("moe.workload %q %s"):format(name,
      lua_text.text(schema.merged(given, { seed = seed })))
    return object(handle, full_name, made, nil, row.has_popularity)
  end
end

M.LOADS = {
  routing = { type = "routing", required = true, doc = "moe.workload or moe.trace" },
  ranks = { type = "integer", lo = 1, hi = 65536, required = true,
    doc = "number of ranks that hold tokens" },
  tokens = { type = "integer", lo = 0, hi = 1e8, required = true, doc = "tokens per rank" },
  experts = { type = "integer", lo = 1, hi = 65536, required = true, doc = "experts of a layer" },
  k = { type = "integer", lo = 1, hi = 65536, default = 1, doc = "choices per token" },
  ep = { type = "integer", lo = 1, hi = 65536,
    doc = "ranks that together hold all experts, which matters where a law is about ranks; "
      .. "default: all" },
  step = { type = "integer", lo = 1, hi = 1e9, default = 1,
    doc = "step of the routing model, from 1" },
  layer = { type = "integer", lo = 1, hi = 1e6, default = 1, doc = "MoE layer, from 1" },
}

--- moe.loads{...}: returns the number of choices, indexed by [source rank][expert].
M.loads = schema.taking(M.LOADS, "moe.loads", function(c, at)
  if c.ep and c.ranks % c.ep ~= 0 then
    schema.refuse("moe.loads.ep", c.ep, ("a divisor of ranks = %d"):format(c.ranks), at)
  end
  local handle = c.routing.handle
  c.routing = nil
  return errors.call(at, core.loads, handle, c)
end)

M.TRACE = {
  cycle = { type = "boolean", default = false,
    doc = "whether steps after the last recorded step replay the trace from its first step" },
}

local FORMATS = { csv = csv, loads = loads, megatron = megatron, rank_loads = rank_loads,
  tensorrt = tensorrt }

local FORMAT = { type = "string", enum = { "csv", "megatron", "tensorrt" },
  required = true, doc = "csv: lines layer,expert, k for a token; consecutive lines of "
    .. "a layer are its tokens, and a step begins where the layer number falls; megatron: "
    .. "Megatron-LM's RouterTracer; tensorrt: TensorRT-LLM's slot_dispatch_matrix" }

M.IMPORT = {
  format = schema.changed({ format = FORMAT }, { format = {
    enum = { "csv", "loads", "megatron", "rank_loads", "tensorrt" },
    doc = FORMAT.doc .. "; loads: counts by [step][layer][expert] as JSON, CSV or npy, which are "
      .. "dealt evenly to the ranks that have the tokens; rank_loads: rows that each rank "
      .. "computes, a CSV file with the columns "
      .. "iter, layer, rank, token_num" } }).format,
  files = { type = "list", of = { type = "string" }, required = true,
    doc = "files to read: megatron, one per rank; other formats, one file" },
  experts = { type = "integer", lo = 1, hi = 65535,
    doc = "number of experts of a layer; default: the highest expert in the files; of rank_loads: "
      .. "those of all ranks (the default), or of one node, if each node has all experts and "
      .. "computes only rows of its own (ep = node)" },
  k = { type = "integer", lo = 1, hi = 65535,
    doc = "choices per token, for formats that do not state this number; default: 1" },
  where = { type = "table", as = "table<string, string>",
    doc = "of rank_loads: value of each further column in the rows that count, for example "
      .. "{ method = 'LAER' }" },
  node = { type = "integer", lo = 1, hi = 65535,
    doc = "of rank_loads: successive ranks that compute rows of their own, as far as they can; "
      .. "default: all" },
  even = { type = "boolean",
    doc = "of rank_loads: whether all ranks compute as many rows, in place of those of the file" },
  experts_per_rank = { type = "integer", lo = 1, hi = 1024,
    doc = "of rank_loads: experts that share the rows of a rank; more than one where a token has "
      .. "more than one of its choices on a rank; default: 1" },
  ranks = { type = "integer", lo = 1, hi = 65536, doc = "of loads: ranks that have tokens" },
  tokens = { type = "integer", lo = 1, hi = 1e8, doc = "of loads: tokens of each rank, to k of "
    .. "which per token the counts of a layer are scaled; default: as many as the counts say" },
  to = { type = "string", required = true,
    doc = "name of the trace to write, a file of the output folder" },
}

M.EXPORT = {
  format = FORMAT,
  trace = { type = "string", required = true, doc = "a recorded or imported trace" },
  to = { type = "string", required = true,
    doc = "name of the file to write in the output folder; megatron: with what the files' names "
      .. "begin" },
  step = { type = "integer", lo = 1, hi = 1e9,
    doc = "the step to write, for tensorrt only; default: 1" },
  layer = { type = "integer", lo = 1, hi = 1e6,
    doc = "the MoE layer to write, for tensorrt only; default: 1" },
}

local function text_of(value, path, at)
  return schema.field({ type = "string", required = true }, value, path, at)
end

-- Raises a user error for a given field that the format c.format does not use. fields: name -> set
-- of the formats that use it.
local function only(c, fields, path, at)
  for name, formats in pairs(fields) do
    if c[name] and not formats[c.format] then
      errors.user(("%s.%s: is not used by the format '%s'; omit it"):format(path, name, c.format),
        at)
    end
  end
end

local function read(file)
  local at = errors.here()
  return errors.call(at, core.trace_info, text_of(file, "moe.trace.read", at))
end

local converted = {}  -- name of a file -> the options with which it was written, as JSON

-- Does what moe.trace.`name` with the fields c does, whose output file c.to it claims. Raises a
-- user error if the recipe has written that file, unless with the same options.
local function write_claimed(c, name, at)
  local what = core.json_encode(c)
  outputs.claim(c.to, ("moe.trace.%s of %s"):format(name, c.files and c.files[1] or c.trace),
    ("moe.trace.%s.to"):format(name), at, converted[c.to] == what)
  core.end_loading()
  local ok, made = pcall(FORMATS[c.format][name], c)
  if not ok then
    if not converted[c.to] then outputs.release(c.to) end
    error(made, 0)
  end
  converted[c.to] = what
  return made
end

local import = schema.taking(M.IMPORT, "moe.trace.import", function(c, at)
  local path = "moe.trace.import"
  only(c, { experts = { csv = true, megatron = true, rank_loads = true },
    k = { csv = true, tensorrt = true, rank_loads = true, loads = true },
    ranks = { loads = true }, tokens = { loads = true }, where = { rank_loads = true },
    node = { rank_loads = true }, experts_per_rank = { rank_loads = true },
    even = { rank_loads = true } }, path, at)
  for _, column in ipairs(schema.keys_of(c.where or {})) do
    text_of(c.where[column], path .. ".where." .. tostring(column), at)
  end
  local each = c.format == "megatron"
  if #c.files == 0 or #c.files > 1 and not each then
    errors.user(("%s.files: has %d files, but the format '%s' takes one%s"):format(path, #c.files,
      c.format, each and " per rank" or ""), at)
  end
  c.experts, c.k = c.experts or 0, c.k or 1
  errors.stop_in "policies"
  errors.stop_in "check"
  local made = write_claimed(c, "import", at)
  if c.format == "loads" then
    core.warn(("%s: it does not say which rank sent a choice; they are dealt evenly to %d ranks")
      :format(c.files[1], c.ranks))
  end
  return made
end)

local export = schema.taking(M.EXPORT, "moe.trace.export", function(c, at)
  local path = "moe.trace.export"
  only(c, { step = { tensorrt = true }, layer = { tensorrt = true } }, path, at)
  c.step, c.layer = c.step or 1, c.layer or 1
  errors.stop_in "policies"
  errors.stop_in "check"
  -- Copied to a plain list, which moe.trace.import accepts as `files`.
  return schema.merged(write_claimed(c, "export", at), {})
end)

--- A table of the functions moe.trace.read, import and export that can also be called: moe.trace
--- "file" { cycle = false } returns the routing model that replays the recorded choices.
M.trace = schema.functions("moe.trace", "function", {
  read = { read, "(file: string)", "{ steps: integer, layers: integer, ranks: integer, tokens: "
    .. "integer, experts: integer, k: integer, blocks: integer[], choices: boolean }",
    "reads the properties of a trace; choices is false if the trace has only counts of choices "
      .. "and not the choices of each token" },
  import = { import, M.IMPORT, "string",
    "converts another tool's files to a trace; returns the trace's path" },
  export = { export, M.EXPORT, "string[]",
    "converts a trace to another tool's files; returns their paths" },
})
schema.calls[#schema.calls + 1] = { name = "trace", takes = "(file: string)",
  gives = "fun(t?: moe.TraceFields): moe.Routing", fields = M.TRACE,
  doc = "the routing model that replays the choices recorded in a trace" }
getmetatable(M.trace).__call = function(_, file)
  text_of(file, "moe.trace", errors.here())
  return function(t)
    local at = errors.here()
    local c = schema.check(M.TRACE, t or {}, "moe.trace", at)
    local handle, name = errors.call(at, core.trace_routing, file, c.cycle)
    local made = ("moe.trace %q { cycle = %s }"):format(file, tostring(c.cycle))
    return object(handle, name, made, file)
  end
end

return M
