-- moe.pipeline_times{...} and moe.pipeline_layout{...}: a pipeline schedule in numbers, without a
-- model: its rows, its faults, and when its turns begin and end.
local core = require "moe.core"
local errors = require "moe.base.errors"
local pipeline = require "moe.spec.pipeline"
local schema = require "moe.base.schema"

local M = {}

local PATH = "moe.pipeline_times."
local MOST = 2 ^ 24          -- stages x micro-batches of a pipeline
local MOST_SYMBOLS = 2 ^ 20  -- of a layout
local TIME = { type = "number", lo = 0, hi = 1e15 }

local function time(doc, default) return schema.merged(TIME, { doc = doc, default = default }) end

local function per_stage(doc)
  return { type = "any", as = "number|number[]", doc = doc .. "; one per stage, or one for all" }
end

local function whole(doc) return { type = "integer", lo = 1, code = "bad_number", doc = doc } end

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
  links = { type = "list", of = { type = "list", of = TIME }, default = {},
    doc = "{ from, to, time } in place of f and b; these ranks count from 0" },
}

M.FIELDS = {
  schedule = { type = "any", as = "string|moe.Pipeline",
    doc = "name of a schedule (moebench list pipelines), or a value such as moe.pipeline.zb_v {}" },
  table = { type = "string", doc = "in place of schedule: a line per rank with cells such as 3F0" },
  placement = schema.merged(schema.optional(pipeline.TABLE.placement), { doc = "only with table: "
    .. pipeline.TABLE.placement.doc }),
  stages = whole "only with table: stages of all ranks; default: ranks x chunks",
  transfers = { type = "boolean", doc = "only with table: whether it spells out SEND and RECV" },
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
    .. "between stages, x*n and (...)*n repeat; commas and spaces mean nothing" },
  ranks = schema.merged(whole "pipeline ranks", { required = true }),
}

local function fail(field, text, ...) errors.user(PATH .. field .. ": " .. text:format(...)) end

local function list_per_stage(value, stages, field)
  if value == nil or value == core.null then return nil end  -- null: of a JSON file
  local list, one = {}, type(value) == "number"
  for i = 1, one and stages or 0 do list[i] = value end
  list = schema.field({ type = "list", of = TIME }, one and list or value, PATH .. field)
  if #list == stages then return core.array(list) end
  fail(field, "has %d numbers; give %d, one per stage", #list, stages)
end

-- Adds to the query what the core takes of the times.
local function set_costs(c, q, rows)
  q.mode, q.send_f, q.send_b, q.keep_w = c.send.mode, c.send.f, c.send.b, c.keep_w
  q.links, q.act = core.array(c.send.links), list_per_stage(c.act, q.stages, "act")
  for key in pairs(c.times and M.TIMES or {}) do
    q[key] = list_per_stage(c.times[key], q.stages, "times." .. key)
  end
  local split = q.I and q.W
  if c.times and not (q.F and (q.B or split)) then
    fail("times", "give F, and I and W or, for whole backwards alone, B")
  elseif c.times and not split and table.concat(rows, ","):find "%d[IW]%d" then
    fail("times", "the schedule has turns I and W; give the times I and W")
  end
  if split and not q.B then
    q.B = {}
    for i, time_of_i in ipairs(q.I) do q.B[i] = time_of_i + q.W[i] end
  end
  local rule, value = c.pair.rule, c.pair.value
  if not value and (rule == "fixed" or rule == "saving") then
    fail("pair.value", "is missing; the rule '%s' needs it", rule)
  end
  q.pair_time = rule == "fixed" and value or nil
  q.pair_saving = rule == "saving" and value or rule == "max" and 2 * TIME.hi or 0
  for i, link in ipairs(c.send.links) do
    local field = ("send.links[%d]"):format(i)
    if #link ~= 3 then fail(field, "give { from, to, time }") end
    for k = 1, 2 do
      schema.field({ type = "integer", lo = 0, hi = q.ranks - 1 }, link[k],
        ("%s%s[%d]"):format(PATH, field, k))
    end
  end
end

-- Adds the numbers of the pipeline to the query.
local function set_shape(q, ranks, stages, micro_batches, placement)
  q.ranks, q.stages, q.micro_batches, q.placement = ranks, stages, micro_batches, placement
  if math.max(ranks, stages) * micro_batches <= MOST then return end
  fail("micro_batches", "%g micro-batches on %g stages are more than %d together; give fewer",
    micro_batches, math.max(ranks, stages), MOST)
end

-- Returns the value that the call and the schedule's own option give, which must agree.
local function agreed(key, given, own)
  if given and own and given ~= own then
    fail(key, "%g is not the schedule's own %s = %g; give it once", given, key, own)
  end
  return given or own
end

-- Returns the rows of a schedule, and sets the query's numbers.
local function rows_of_schedule(c, q)
  local path, given = PATH .. "schedule", c.schedule
  if type(given) == "string" then
    given = { name = given, options = {} }
  elseif not schema.is_a("pipeline", given, path) then
    schema.refuse(path, given, "a schedule's name, or a value such as moe.pipeline.zb_v {}")
  end
  local name, def, o = given.name, pipeline.known[given.name], schema.merged(given.options, {})
  if not def then
    errors.user(schema.unknown_text(path, "schedule", name, schema.keys_of(pipeline.known))
      .. " (unknown_schedule)")
  elseif not c.ranks then
    fail("ranks", "is missing")
  elseif c.group and not def.options.group then
    fail("group", "'%s' has no groups; leave it out", name)
  end
  o.group = agreed("group", c.group, o.group ~= 0 and o.group or nil)
  o.chunks = agreed("chunks", c.chunks, o.chunks) or def.chunks
  o = schema.check(def.options, o, "moe.pipeline_times")
  local two_way = def.placement == "two_way"
  local only = two_way and 2 or def.fixed_chunks and def.chunks or o.chunks
  if o.chunks ~= only then
    fail("schedule", "%s: %s_a_rank: a rank has %d of its stages, not %g; give chunks = %d", name,
      ({ "one_stage", "two_stages" })[only] or only .. "_stages", only, o.chunks, only)
  end
  if o.group then
    o.group = o.group > 0 and o.group or c.ranks
    local rest = c.micro_batches % o.group
    local why = o.group < c.ranks
        and "group_below_ranks: group = %d of %d micro-batches is below the %d ranks; give more"
      or o.group > c.micro_batches
        and "group_above_micro_batches: group = %d is above all %d micro-batches; give fewer"
      or rest > 0 and rest < c.ranks and "short_last_group: the last group of up to %d of %d "
        .. "micro-batches is below the %d ranks; give a multiple of the group"
    if why and o.chunks > 1 and c.ranks > 1 then  -- else the schedule itself refuses
      fail("schedule", "%s: " .. why, name, o.group, c.micro_batches, c.ranks)
    end
  end
  set_shape(q, c.ranks, c.ranks * (two_way and 1 or o.chunks), c.micro_batches, def.placement)
  core.end_loading()
  local rows, why = pipeline.rows_of(name, schema.merged(q, { chunks = o.chunks }), o)
  return rows or fail("schedule", "%s: %s", name, why)
end

-- Returns the rows of a table, and sets the query's numbers. Lines without any cell or comma are
-- rows only if there are exactly as many lines, apart from comments, as ranks.
local function rows_of_table(c, q)
  local lines, filled = {}, {}
  for line in (c.table:gsub("\n$", "") .. "\n"):gmatch "(.-)\n" do
    local row = line:gsub("#.*", ""):gsub("%s", "")
    if row ~= "" then filled[#filled + 1] = row end
    if row ~= "" or not line:find "#" then lines[#lines + 1] = row end
  end
  local ranks, two_way = c.ranks or #filled, c.placement == "two_way"
  local stages = c.stages or ranks * (two_way and 1 or c.chunks or 1)
  local rows = #lines == ranks and lines or filled
  if #filled == 0 then
    fail("table", "the table has no rows; give a line per rank")
  elseif #rows > ranks then
    fail("table", "the table has %d rows for %d ranks; give a line per rank", #rows, ranks)
  elseif two_way and stages ~= ranks then
    fail("stages", "%g is not allowed; give %g, as many as ranks, for the placement two_way",
      stages, ranks)
  end
  set_shape(q, ranks, stages, c.micro_batches, c.placement or "loop")
  for rank = #rows + 1, ranks do rows[rank] = "" end
  q.transfers = c.transfers
  return rows
end

-- Returns the entries of each rank: { text, begin, end }.
local function entries_of(t)
  local out = {}
  for rank, row in ipairs(t.rows) do
    local entries, begins, ends = {}, t.begins[rank], t.ends[rank]
    for text in row:gmatch "[^,]+" do
      local i = #entries + 1
      entries[i] = { text = text, begin = begins[i], ["end"] = ends[i] }
    end
    out[rank] = entries
  end
  return out
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
  local at, q = errors.here(), {}
  local c = schema.check(M.FIELDS, t, "moe.pipeline_times", at)
  if (c.schedule == nil) == (c.table == nil) then
    errors.user("moe.pipeline_times: give either schedule or table, "
      .. (c.table and "not both" or "neither is given"))
  end
  for _, key in ipairs { "placement", "stages", "transfers" } do
    if not c.table and c[key] then fail(key, "has no effect beside schedule; leave it out") end
  end
  local own = schema.is_a("pipeline", c.schedule) and c.schedule.table
  if own then  -- a moe.pipeline.table
    c = schema.merged(c, { table = own.csv, placement = own.placement, transfers = own.transfers })
    for _, key in ipairs { "chunks", "micro_batches" } do c[key] = agreed(key, c[key], own[key]) end
  end
  if not c.micro_batches then fail("micro_batches", "is missing") end
  q.rows = (c.table and rows_of_table or rows_of_schedule)(c, q)
  q.entries = c.times ~= nil and c.entries
  set_costs(c, q, q.rows)
  local out = errors.call(at, core.pipeline_times, q)
  if not c.times then return { errors = out.errors, rows = out.rows, peak = out.peak } end
  out.entries, out.begins, out.ends = out.begins and entries_of(out), nil, nil
  return out
end

-- Returns the layout without commas and spaces, its repeats written out.
local function written_out(layout)
  local function repeated(part, times)
    if #part * times <= MOST_SYMBOLS then return part:rep(times) end
    errors.user(("moe.pipeline_layout.layout: has more than %d symbols; give fewer repeats"):format(
      MOST_SYMBOLS))
  end
  local text = layout:gsub("[,%s]", ""):gsub("([%a|])%*(%d+)", repeated)
  repeat
    local count
    text, count = repeated(text, 1):gsub("%(([^()]*)%)%*(%d+)", repeated)
    if count == 0 then text, count = text:gsub("%(([^()]*)%)", "%1") end
  until count == 0
  return text
end

schema.record("pipeline layout", "layout", "the layers of the stages of a pipeline", {
  { "stages", "string[]", "the layers of each stage" },
  { "of_rank", "string[][]", "the layers of a rank's stages, indexed by [rank][chunk]" },
})

--- moe.pipeline_layout{...}: returns { stages, of_rank }, in which stage s is on rank s mod ranks.
function M.pipeline_layout(t)
  local c = schema.check(M.LAYOUT, t, "moe.pipeline_layout", errors.here())
  local text, stages, of_rank = written_out(c.layout), {}, {}
  local unknown = text:match "[^EtmL|]"
  for stage in (text .. "|"):gmatch "([^|]*)|" do stages[#stages + 1] = stage end
  local why = unknown and ("unknown_symbol: '%s' is not allowed here; a layout has E, t, m and L, "
      .. "| between stages, and x*n or (...)*n for repeats"):format(unknown)
    or #stages % c.ranks ~= 0 and ("stages_not_multiple: %d stages do not go onto %g ranks; give a "
      .. "multiple of the ranks"):format(#stages, c.ranks)
    or not text:find "^E[^E]*$" and "embedding: E must be once, as the first symbol of all"
    or not text:find "^[^L]*L$" and "loss: L must be once, as the last symbol of all"
    or text:find "m.*t" and "mtp_before_decoder: decoder layers (t) must be before MTP layers (m)"
  if why then errors.user("moe.pipeline_layout.layout: " .. why) end
  for rank = 1, c.ranks do of_rank[rank] = {} end
  for i, layers in ipairs(stages) do table.insert(of_rank[(i - 1) % c.ranks + 1], layers) end
  return { stages = stages, of_rank = of_rank }
end

return M
