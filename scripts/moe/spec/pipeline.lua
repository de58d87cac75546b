-- Pipeline schedules as values: moe.pipeline.zb_v { chunks = 2 }. Five are the engine's, the others
-- files of pipelines/, written as a recipe writes its own (moe.policy.pipeline, spec/policy.lua).
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("pipeline", "a pipeline schedule, for example moe.pipeline.zb_v {}")

M.PLACEMENT = { type = "string", enum = { "loop", "v", "two_way" }, default = "loop",
  doc = "the rank of a stage. loop: stage modulo ranks; v: down the ranks and back; two_way: each "
    .. "rank holds two of as many stages as ranks, stage s of the first half of the micro-batches "
    .. "on rank s, of the second half counted from the last rank" }

--- Fields of moe.policy.pipeline beside those of all policies.
M.DEFINITION = {
  chunks = { type = "integer", lo = 1, hi = 1024, default = 1,
    doc = "stages per rank unless the recipe asks for others (p.chunks)" },
  placement = M.PLACEMENT,
  prepare = { type = "function", as = "fun(p: moe.PipelineTurns, o: table): any",
    doc = "called once before the ranks; its result is the last argument of `turns`. Refuses "
      .. "numbers with p:refuse; o: the options" },
  turns = { type = "function", required = true,
    as = "fun(p: moe.PipelineTurns, rank: integer, o: table, prepared: any)",
    doc = "gives the turns of a rank in order: p:forward(m), p:backward(m), p:dx(m), p:dw(m)" },
}

--- What is known of each schedule, by name: { doc, chunks, placement, options = field list, and
--- prepare, turns of one in Lua }.
M.known = {}

local CHUNKS = { type = "integer", lo = 1, hi = 1024, doc = "stages per rank" }

--- Returns the constructor of a schedule with these options, which M.known gets.
function M.define(name, def, options, path, at)
  if options.chunks then
    errors.user(path .. ".params.chunks: every pipeline has an option of this name; give the "
      .. "option another name", at)
  end
  options.chunks = schema.merged(CHUNKS, { doc = ("stages per rank; default: %d"):format(
    def.chunks) })
  M.known[name] = schema.merged(def, { options = options })
  return function(given)
    return schema.object({ name = name,
      options = schema.check(options, given or {}, "moe.pipeline." .. name, errors.here()) }, mt)
  end
end

local TABLE = {
  csv = { type = "string", required = true,
    doc = "a line per rank with cells such as 3F0, as PyTorch writes schedules" },
  placement = M.PLACEMENT,
  chunks = schema.merged(CHUNKS, { required = true }),
  micro_batches = { type = "integer", lo = 1, hi = 1e6, required = true,
    doc = "micro-batches of a step" },
  transfers = { type = "boolean", default = false,
    doc = "whether the text spells out SEND and RECV" },
}

local function table_of(t)
  local c = schema.check(TABLE, t, "moe.pipeline.table", errors.here())
  return schema.object({ name = "table", table = c, options = { chunks = c.chunks } }, mt)
end

-- Returns the options of a schedule of the engine as a field list.
local function built_in_options(row)
  local out = {}
  for _, o in ipairs(row.options) do
    out[o.name] = { type = "integer", lo = o.lo, hi = o.hi, default = o.default, doc = o.doc }
  end
  return out
end

--- Loads the files of pipelines/, each a function of a table with policy.pipeline that returns a
--- constructor, and docs of its options. Returns moe.pipeline, and a list of { name, doc, options }
--- for `moebench list`.
function M.load(policy)
  local constructors, rows = {}, {}
  for _, row in ipairs(core.table "pipelines") do
    constructors[row.name] = M.define(row.name, row, built_in_options(row))
  end
  for _, name in ipairs(core.library_files("pipelines", ".lua")) do
    local docs
    constructors[name], docs = require("moe.pipelines." .. name) { policy = policy }
    for option, doc in pairs(docs or {}) do M.known[name].options[option].doc = doc end
  end
  local calls = { table = { table_of, TABLE, "moe.Pipeline",
    "a pipeline schedule as text, in the form of PyTorch's CSV files" } }
  for i, name in ipairs(schema.keys_of(constructors)) do
    local known = M.known[name]
    calls[name] = { constructors[name], known.options, "moe.Pipeline", known.doc }
    rows[i] = { name = name, doc = known.doc, options = {} }
    for _, key in ipairs(schema.keys_of(known.options)) do
      local default = known.options[key].default
      if key == "chunks" then default = known.chunks end
      table.insert(rows[i].options, { name = key, default = default })
    end
  end
  return schema.functions("moe.pipeline", "pipeline schedule", calls), rows
end

return M
