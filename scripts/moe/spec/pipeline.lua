-- Pipeline schedules as values: moe.pipeline.zb_v { chunks = 2 }. Five are the engine's, the others
-- files of pipelines/, written as a recipe writes its own (moe.policy.pipeline, spec/policy.lua).
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("pipeline", "a pipeline schedule, for example moe.pipeline.zb_v {}")

--- Definitions of all schedules by name; those of the engine have no `turns`.
M.known = {}

local TURN = "(micro_batch: integer, options?: { chunk?: integer, beside?: boolean })"

local Turns = schema.methods("pipeline turns", "p",
  "the turns of one rank of a pipeline schedule, which the schedule gives in order", {
    { "ranks", "integer", "pipeline ranks" },
    { "chunks", "integer", "stages per rank" },
    { "micro_batches", "integer", "micro-batches of a step" },
    { "forward", TURN, "adds the forward of a micro-batch as the rank's next turn. chunk: which of "
      .. "the rank's stages, by default the first, or if placement = 'two_way' the micro-batch's; "
      .. "beside: the turn and the next one, a backward, run as a pair" },
    { "backward", TURN, "adds a whole backward: both gradients in one turn" },
    { "dx", TURN, "adds the gradient of the stage's input" },
    { "dw", TURN, "adds the gradient of the stage's weights, after its dx" },
    { "refuse", "(code: string, reason: string)",
      "ends with an error: the schedule does not exist for these numbers" },
  })

for method, work in pairs { forward = "F", backward = "B", dx = "I", dw = "W" } do
  Turns[method] = function(p, micro, options)
    schema.field(p.micro, micro, "micro-batch")
    for key, value in next, options or {} do  -- schema.check() alone takes too long
      if not p.options[key] then schema.check(p.options, options, "options of a turn") end
      schema.field(p.options[key], value, key)
    end
    local two_way, o = p.placement == "two_way", options or {}
    local chunk = o.chunk or two_way and micro > math.floor(p.micro_batches / 2) and 2 or 1
    local up = p.placement ~= "loop" and chunk % 2 == 0
    local cell = ("%d%s%d"):format((two_way and 0 or (chunk - 1) * p.ranks)
      + (up and p.ranks - p.rank or p.rank - 1), work, micro - 1)
    if o.beside and work ~= "F" then
      errors.user "beside: a pair is a forward and the backward after it; give it to p:forward"
    elseif p.first and work ~= "B" then
      errors.user "the forward before has beside = true; give p:backward as the next turn"
    elseif p.first then
      cell = ("(%s;%s)OVERLAP_F_B"):format(p.first, cell)
    end
    p.first = o.beside and cell or false
    if not p.first then p.cells[#p.cells + 1] = cell end
  end
end

local function refuse(p, why)
  errors.user(("moe.pipeline_times.schedule: %s: %s"):format(p.name, why), p.at)
end

function Turns:refuse(code, reason) refuse(self, ("%s: %s"):format(code, reason)) end

--- Returns the rows of the schedule as texts. numbers: { ranks, chunks, micro_batches, placement }.
function M.rows_of(name, numbers, options, at)
  local rows, turns, q = {}, M.known[name].turns, schema.merged(numbers, { name = name, at = at })
  if not turns then
    local ok, got = pcall(core.pipeline_rows, schema.merged(options, q))
    if type(got) == "string" then refuse(q, got) end
    return ok and got or error(got, 0)
  end
  local p = setmetatable(schema.merged(q, { first = false,
    micro = { type = "integer", lo = 1, hi = q.micro_batches, required = true },
    options = { beside = { type = "boolean" },
      chunk = { type = "integer", lo = 1, hi = q.chunks } } }), Turns)
  for rank = 1, q.ranks do
    p.rank, p.cells = rank, {}
    turns(p, rank, options)
    if p.first then
      errors.user(("rank %d: the last turn has beside = true, but no backward follows"):format(
        rank))
    end
    rows[rank] = table.concat(p.cells, ",")
  end
  return rows
end

local PLACEMENT = { type = "string", enum = { "loop", "v", "two_way" }, default = "loop",
  doc = "the rank of a stage. loop: stage modulo ranks; v: down the ranks and back; two_way: there "
    .. "are as many stages as ranks, stage s of the first half of the micro-batches on rank s, of "
    .. "the second half counted from the last rank" }
local CHUNKS = { type = "integer", lo = 1, hi = 1024, doc = "stages per rank" }
local GROUP = { type = "integer", lo = 0, default = 0,
  doc = "micro-batches of a group, at least as many as ranks; 0: as many" }

--- Fields of moe.policy.pipeline beside those of all policies.
M.DEFINITION = {
  chunks = schema.merged(CHUNKS, { default = 1,
    doc = "stages per rank unless the recipe asks for others (p.chunks)" }),
  fixed_chunks = { type = "boolean", default = false, doc = "refuse other numbers of stages" },
  placement = PLACEMENT,
  turns = { type = "function", required = true,
    as = "fun(p: moe.PipelineTurns, rank: integer, o: table)",
    doc = "gives the turns of a rank in order: p:forward(m), p:backward(m), p:dx(m), p:dw(m)" },
}

--- Returns the constructor of a schedule, which M.known gets.
function M.define(def, path, at)
  local name, options = def.name, schema.options(def.params, (path or "") .. ".params", at)
  if M.known[name] or name == "table" or name == "any" then
    errors.user(("%s.name: '%s' is the name of another pipeline; give another name"):format(path,
      name), at)
  elseif options.chunks then
    errors.user(path .. ".params.chunks: is an option of every pipeline; give another name", at)
  end
  options.chunks = schema.merged(CHUNKS, { doc = "stages per rank; default: " .. def.chunks })
  options.group = options.group and schema.merged(GROUP, { default = options.group.default })
  M.known[name] = schema.merged(def, { options = options })
  return function(given)
    return schema.object({ name = name, given = given,
      options = schema.check(options, given or {}, "moe.pipeline." .. name, errors.here()) }, mt)
  end
end

M.TABLE = {
  csv = { type = "string",
    doc = "a line per rank with cells such as 3F0, as PyTorch writes schedules" },
  file = { type = "string", doc = "in place of csv: a file with such lines" },
  placement = PLACEMENT,
  chunks = schema.merged(CHUNKS, { required = true }),
  micro_batches = { type = "integer", lo = 1, required = true, doc = "micro-batches of a step" },
  transfers = { type = "boolean", default = false, doc = "whether it spells out SEND and RECV" },
}

M.ANY = { of = { type = "list", of = { type = "pipeline" }, least = "schedule",
  doc = "the schedules to try; by default all that `moebench list pipelines` shows" } }

local table_of = schema.taking(M.TABLE, "moe.pipeline.table", function(c, at)
  schema.one_of(c, "csv", "file", "moe.pipeline.table", at)
  c.csv = c.csv or errors.call(at, core.read_file, c.file)
  return schema.object({ name = "table", table = c }, mt)
end)

-- Returns moe.pipeline.any, for which made() returns the constructors of all schedules.
local function any_of(made)
  return function(t)
    local of = schema.check(M.ANY, t or {}, "moe.pipeline.any", errors.here()).of or {}
    for i, name in ipairs(of[1] and {} or schema.keys_of(M.known)) do of[i] = made[name] {} end
    return schema.object({ name = "any", of = of }, mt)
  end
end

--- Returns the schedule as a label: its name and the options that the recipe gives.
function M.label(schedule)
  local parts = { schedule.name }
  for _, key in ipairs(schema.keys_of(schedule.given or {})) do
    parts[#parts + 1] = ("%s=%g"):format(key, schedule.given[key])
  end
  return table.concat(parts, " ")
end

--- Loads the files of pipelines/, each a function of a table with policy.pipeline that returns a
--- constructor. Returns moe.pipeline, and a list of { name, doc, options } for `moebench list`.
function M.load(policy)
  local made, rows = {}, {}
  for _, row in ipairs(core.table "pipelines") do
    made[row.name] = M.define(schema.merged(row, { params = { group = row.grouped and 0 or nil } }))
  end
  for _, name in ipairs(core.library_files("pipelines", ".lua")) do
    made[name] = require("moe.pipelines." .. name) { policy = policy }
  end
  local calls = { table = { table_of, M.TABLE, "moe.Pipeline",
    "a pipeline schedule as text, in the form of PyTorch's CSV files" },
    any = { any_of(made), M.ANY, "moe.Pipeline", "the schedule with the shortest simulated step of "
      .. "those that fit in memory; those that do not exist for the numbers are passed over" } }
  for i, name in ipairs(schema.keys_of(made)) do
    local known, options = M.known[name], {}
    calls[name] = { made[name], known.options, "moe.Pipeline", known.doc }
    for j, key in ipairs(schema.keys_of(known.options)) do
      options[j] = { name = key, default = known.options[key].default or known.chunks }
    end
    rows[i] = { name = name, doc = known.doc, options = options }
  end
  return schema.functions("moe.pipeline", "pipeline schedule", calls), rows
end

return M
