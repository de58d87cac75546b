-- moe.pipeline_times{...} and moe.pipeline_layout{...}: a pipeline schedule in numbers, without a
-- model: its rows, its faults, and when its turns begin and end.
local core = require "moe.core"
local errors = require "moe.base.errors"
local pipeline = require "moe.spec.pipeline"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"

local M = {}

M.constructors, M.rows = pipeline.load(policy.constructors)

local MOST = 2 ^ 24  -- stages x micro-batches of a pipeline

local function time(doc, default)
  return { type = "number", lo = 0, hi = 1e15, default = default, doc = doc }
end

local function per_stage(doc)
  return { type = "any", as = "number|number[]", doc = doc .. "; one per stage, or one for all" }
end

-- A whole number of at least 1, which is checked by count(), since its error has a code.
local function whole(doc) return { type = "any", as = "integer", doc = doc } end

M.TIMES = {
  F = per_stage "times of forwards",
  I = per_stage "times of gradients of the input",
  W = per_stage "times of gradients of the weights",
  B = per_stage "times of whole backwards; default: I + W",
}
M.PAIR = {
  rule = { type = "string", enum = { "sum", "max", "fixed", "saving" }, default = "sum",
    doc = "sum: both halves; max: the longer one; fixed: `value`; saving: `value` less than both, "
      .. "at least the longer half" },
  value = time "the number of the rules fixed and saving",
}
M.SEND = {
  mode = { type = "string", enum = { "async", "link", "blocking" }, default = "async",
    doc = "async: all at once; link: those from one rank to another one after the other; blocking: "
      .. "they occupy the sender" },
  f = time("time of an activation between ranks", 0),
  b = time("time of a gradient between ranks", 0),
  links = { type = "list", of = { type = "list", of = { type = "number", lo = 0, hi = 1e15 } },
    default = {}, doc = "{ from, to, time } in place of f and b; these ranks count from 0" },
}

M.FIELDS = {
  schedule = { type = "any", as = "string|moe.Pipeline",
    doc = "name of a schedule (moebench list pipelines), or a value such as moe.pipeline.zb_v {}" },
  table = { type = "string", doc = "in place of schedule: a line per rank with cells such as 3F0" },
  placement = schema.merged(pipeline.PLACEMENT, { doc = "only with table: "
    .. pipeline.PLACEMENT.doc }),
  stages = whole "only with table: stages of all ranks; default: ranks x chunks",
  transfers = { type = "boolean", default = false,
    doc = "only with table: whether it spells out SEND and RECV" },
  ranks = whole "pipeline ranks; of a table by default its lines",
  chunks = whole "stages per rank; default: the schedule's own",
  micro_batches = whole "micro-batches of a step",
  group = whole "only of schedules with this option: micro-batches of a group; default: the ranks",
  times = { type = M.TIMES,
    doc = "times of turns, without unit; without them there is no timeline" },
  pair = { type = M.PAIR, default = {}, doc = "how long a forward and a backward in one take" },
  keep_w = { type = "number", lo = 0, hi = 1, default = 1,
    doc = "the share of an activation that is kept from I to W" },
  act = per_stage "what an activation counts in peak; default: 1",
  send = { type = M.SEND, default = {},
    doc = "transfers between ranks; default: they take no time" },
  entries = { type = "boolean", default = true,
    doc = "whether the result has .entries, a small table per turn" },
}

M.LAYOUT = {
  layout = { type = "string", required = true, doc = "the layers of each stage, as Megatron-LM's "
    .. "--pipeline-model-parallel-layout: E embedding, t decoder layer, m MTP layer, L loss, | "
    .. "between stages, x*n and (...)*n repeat" },
  ranks = schema.merged(whole "pipeline ranks", { required = true }),
}

-- Returns a whole number of at least 1, or nil if none is given.
local function count(value, path, at)
  if value == nil then return nil end
  if type(value) == "number" and value >= 1 and value <= 2 ^ 31 and value == math.floor(value) then
    return value
  end
  schema.refuse(path, value, "a whole number of at least 1 (bad_number)", at)
end

local function refuse(name, code, reason, at)
  errors.user(("moe.pipeline_times.schedule: %s: %s: %s"):format(name, code, reason), at)
end

local function per_stage_of(value, stages, path, at)
  if value == nil or value == core.null then return nil end  -- null: of a JSON file
  local out, number = {}, { type = "number", lo = 0, hi = 1e15 }
  if type(value) == "number" then
    for i = 1, stages do out[i] = schema.field(number, value, path, at) end
    return core.array(out)
  end
  out = schema.field({ type = "list", of = number }, value, path, at)
  if #out ~= stages then
    errors.user(("%s: has %d numbers; give %d, one per stage"):format(path, #out, stages), at)
  end
  return core.array(out)
end

local function check_costs(c, query, at)
  local path = "moe.pipeline_times."
  if c.times then
    for key in pairs(M.TIMES) do
      query[key:lower()] = per_stage_of(c.times[key], query.stages, path .. "times." .. key, at)
    end
    if not query.f or not (query.b or query.i and query.w) then
      errors.user(path .. "times: give F, and I and W or, for whole backwards alone, B", at)
    end
  end
  local needs = c.pair.rule == "fixed" or c.pair.rule == "saving"
  if needs and not c.pair.value then
    errors.user(("%spair.value: is missing; the rule '%s' needs it"):format(path, c.pair.rule), at)
  end
  for i, link in ipairs(c.send.links) do
    local where = ("%ssend.links[%d]"):format(path, i)
    if #link ~= 3 then errors.user(where .. ": give { from, to, time }", at) end
    for k = 1, 2 do
      schema.field({ type = "integer", lo = 0, hi = query.ranks - 1 }, link[k],
        ("%s[%d]"):format(where, k), at)
    end
  end
  query.act = per_stage_of(c.act, query.stages, path .. "act", at)
  query.timed, query.keep_w, query.entries = c.times ~= nil, c.keep_w, c.entries
  query.pair, query.pair_value = c.pair.rule, c.pair.value
  query.mode, query.send_f, query.send_b = c.send.mode, c.send.f, c.send.b
  query.links = core.array(c.send.links)
end

local function check_size(query, at)
  if query.stages * query.micro_batches <= MOST then return end
  errors.user(("moe.pipeline_times.micro_batches: %d micro-batches on %d stages are more than %d "
    .. "together; give fewer"):format(query.micro_batches, query.stages, MOST), at)
end

-- Returns the turns of a schedule in Lua.
local function turns_of(name, def, options, query, at)
  local p = core.pipeline_turns { ranks = query.ranks, stages = query.stages,
    micro_batches = query.micro_batches, placement = query.placement }
  local ok, e = xpcall(function()
    local prepared = def.prepare and def.prepare(p, options)
    for rank = 1, query.ranks do
      errors.call(at, core.pipeline_rank, p)
      def.turns(p, rank, options, prepared)
    end
    errors.call(at, core.pipeline_rank, p)
  end, errors.with_traceback)
  local code, reason = core.pipeline_refusal(p)
  if code then refuse(name, code, reason, at) end
  if not ok then error(e, 0) end
  return p
end

-- Returns the value that the call and the schedule's own option give, which must agree.
local function agreed(key, given, own, at)
  if given and own and given ~= own then
    errors.user(("moe.pipeline_times.%s: %g is not the schedule's own %s = %g; give it once")
      :format(key, given, key, own), at)
  end
  return given or own
end

-- Completes the query of a schedule in place; returns what the core takes as its second argument.
local function of_schedule(c, query, at)
  local path, given = "moe.pipeline_times.schedule", c.schedule
  if type(given) ~= "string" and not schema.is_a("pipeline", given, path, at) then
    schema.refuse(path, given, "a schedule's name, or a value such as moe.pipeline.zb_v {}", at)
  end
  local name = type(given) == "string" and given or given.name
  local def, options = pipeline.known[name], schema.merged(given.options or {}, {})
  if not def then
    errors.user(schema.unknown_text(path, "schedule", name, schema.keys_of(pipeline.known))
      .. " (unknown_schedule)", at)
  end
  for key in pairs { ranks = 1, micro_batches = 1 } do
    if not c[key] then errors.user(("moe.pipeline_times.%s: is missing"):format(key), at) end
  end
  if c.group and not def.options.group then
    errors.user(("moe.pipeline_times.group: '%s' has no groups; leave it out"):format(name), at)
  end
  local own = options.group ~= 0 and options.group or nil
  options.group = agreed("group", c.group, own, at) or def.options.group and 0 or nil
  options.chunks = agreed("chunks", c.chunks, options.chunks, at) or def.chunks
  for key, field in pairs(def.options) do
    if options[key] == nil then options[key] = field.default end
  end
  local two_way = def.placement == "two_way"
  query.chunks, query.placement = options.chunks, def.placement
  query.stages = two_way and c.ranks or c.ranks * options.chunks
  if two_way and options.chunks ~= 2 then
    refuse(name, "two_stages_a_rank", ("the placement two_way has two stages per rank, not %g; "
      .. "give chunks = 2"):format(options.chunks), at)
  end
  check_size(query, at)
  query.schedule, query.group = name, options.group
  return def.turns and turns_of(name, def, options, query, at)
end

-- Completes the query of a table in place.
local function of_table(c, query, at)
  local path = "moe.pipeline_times."
  if not c.micro_batches then errors.user(path .. "micro_batches: is missing", at) end
  if not c.ranks then  -- lines with cells
    query.ranks = 0
    for line in c.table:gmatch "[^\n]+" do
      if line:gsub("#.*", ""):find "%S" then query.ranks = query.ranks + 1 end
    end
    query.ranks = math.max(query.ranks, 1)
  end
  local two_way = c.placement == "two_way"
  query.stages = c.stages or query.ranks * (two_way and 1 or c.chunks or 1)
  if two_way and query.stages ~= query.ranks then
    schema.refuse(path .. "stages", query.stages, ("%g, as many as ranks, for the placement "
      .. "two_way"):format(query.ranks), at)
  end
  check_size(query, at)
  query.table, query.spelled, query.placement = c.table, c.transfers, c.placement
end

-- Returns the fields with those of a moe.pipeline.table in place of `schedule`.
local function with_table(c, at)
  local own = c.schedule.table
  return schema.merged(c, { table = own.csv, placement = own.placement,
    transfers = own.transfers, chunks = agreed("chunks", c.chunks, own.chunks, at),
    micro_batches = agreed("micro_batches", c.micro_batches, own.micro_batches, at) })
end

schema.record("pipeline times", "times", "a pipeline schedule in numbers; ranks count from 1, "
  .. "stages and micro-batches in texts from 0", {
  { "rows", "string[]?", "the turns of each rank, as text; transfers are left out" },
  { "errors", "{ code: string, rank: integer?, action: string }[]?",
    "what is wrong with the table or schedule; there is then nothing else" },
  { "entries", "{ text: string, begin: number, end: number }[][]?",
    "turns and pairs of each rank with their times; nil without times, as what follows but peak" },
  { "step", "number?", "when the last turn ends" },
  { "busy", "number[]?", "the sum of the lengths of a rank's turns" },
  { "bubble", "number[]?", "step - busy" },
  { "inner", "number[]?", "the time without a turn between a rank's first and last turn" },
  { "sending", "number[]?", "the time that blocking transfers occupy a rank" },
  { "peak", "number[]?", "the most activations that a rank holds, in stages x micro-batches" },
})

--- moe.pipeline_times{...}: returns a record of the type "pipeline times".
function M.pipeline_times(t)
  local at = errors.here()
  local c = schema.check(M.FIELDS, t, "moe.pipeline_times", at)
  for _, key in ipairs { "ranks", "chunks", "micro_batches", "group", "stages" } do
    c[key] = count(c[key], "moe.pipeline_times." .. key, at)
  end
  if (c.schedule == nil) == (c.table == nil) then
    errors.user("moe.pipeline_times: give either schedule or table, "
      .. (c.table and "not both" or "neither is given"), at)
  end
  for _, key in ipairs { "placement", "stages", "transfers" } do
    if c.schedule ~= nil and t[key] then
      errors.user(("moe.pipeline_times.%s: has no effect beside schedule; leave it out"):format(
        key), at)
    end
  end
  if schema.is_a("pipeline", c.schedule) and c.schedule.table then c = with_table(c, at) end
  local query, turns = { ranks = c.ranks, micro_batches = c.micro_batches }, nil
  if c.table then of_table(c, query, at) else turns = of_schedule(c, query, at) end
  check_costs(c, query, at)
  return errors.call(at, core.pipeline_times, query, turns)
end

schema.record("pipeline layout", "layout", "the layers of the stages of a pipeline", {
  { "stages", "string[]", "the layers of each stage" },
  { "of_rank", "string[][]", "the layers of a rank's stages, indexed by [rank][chunk]" },
})

--- moe.pipeline_layout{...}: returns { stages, of_rank }.
function M.pipeline_layout(t)
  local at = errors.here()
  local c = schema.check(M.LAYOUT, t, "moe.pipeline_layout", at)
  local ranks = count(c.ranks, "moe.pipeline_layout.ranks", at)
  local out = { stages = errors.call(at, core.pipeline_layout, c.layout, ranks), of_rank = {} }
  for rank = 1, ranks do out.of_rank[rank] = {} end
  for i, layers in ipairs(out.stages) do
    table.insert(out.of_rank[(i - 1) % ranks + 1], layers)
  end
  return out
end

return M
