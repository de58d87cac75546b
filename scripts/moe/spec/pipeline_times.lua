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

local function per_stage(doc, as)
  return { type = "any", as = as or "number|number[]",
    doc = doc .. "; one per stage, or one for all"
      .. (as and "; in place of a stage's one per micro-batch" or "") }
end

local function whole(doc) return { type = "integer", lo = 1, code = "bad_number", doc = doc } end

local EACH = "number|(number|number[])[]"

M.TIMES = {
  F = per_stage("times of forwards", EACH),
  I = per_stage("times of gradients of the input", EACH),
  W = per_stage("times of gradients of the weights", EACH),
  B = per_stage("times of whole backwards; default: I + W", EACH),
}
M.PAIR = {
  rule = { type = "string", enum = { "sum", "max", "fixed", "saving" }, default = "sum",
    doc = "saving: `value` less than the sum, at least the longer half; fixed: `value`" },
  value = time "the number of the rules fixed and saving",
}
M.SEND = {
  mode = { type = "string", enum = { "async", "link", "blocking" }, default = "async",
    doc = "async: at once; link: one after the other per link; blocking: they occupy the sender" },
  f = time("time of an activation between ranks", 0),
  b = time("time of a gradient between ranks", 0),
  links = { type = "list", of = { type = "list", of = TIME }, default = {},
    doc = "{ from, to, time } in place of f and b; these ranks count from 0" },
}

M.FIELDS = {
  schedule = { type = "any", as = "string|moe.Pipeline",
    doc = "a name (moebench list pipelines), or a value such as moe.pipeline.zb_v {}" },
  table = { type = "string", doc = "in place of schedule: a line per rank with cells such as 3F0" },
  placement = schema.optional(pipeline.TABLE.placement),  -- these three only with table
  stages = whole "only with table: stages of all ranks; default: ranks x chunks",
  transfers = schema.optional(pipeline.TABLE.transfers),
  ranks = whole "pipeline ranks; of a table by default its lines",
  chunks = whole "stages per rank; default: the schedule's own",
  micro_batches = whole "micro-batches of a step",
  group = whole "only of schedules with this option: micro-batches of a group; default: the ranks",
  times = { type = M.TIMES, doc = "times of turns; without them there is no timeline" },
  pair = { type = M.PAIR, default = {}, doc = "how long a forward and a backward in one take" },
  keep_w = { type = "number", lo = 0, hi = 1, default = 1,
    doc = "the share of an activation that is kept from I to W" },
  act = per_stage "what an activation counts in peak; default: 1",
  send = { type = M.SEND, default = {}, doc = "transfers between ranks; default: of no time" },
  entries = { type = "boolean", default = true, doc = "whether the result has .entries" },
}

M.LAYOUT = {
  layout = { type = "string", required = true, doc = "as of Megatron-LM: E embedding, t decoder, "
    .. "m MTP, L loss, | between stages, x*n and (...)*n repeat" },
  ranks = schema.merged(whole "pipeline ranks", { required = true }),
}

local function fail(field, text, ...) errors.user(PATH .. field .. ": " .. text:format(...)) end

local function list_per_stage(value, stages, field, what)
  if value == nil or value == core.null then return nil end  -- null: of a JSON file
  local list, one = {}, type(value) == "number"
  for i = 1, one and stages or 0 do list[i] = value end
  list = schema.field({ type = "list", of = TIME }, one and list or value, PATH .. field)
  if #list == stages then return core.array(list) end
  fail(field, "has %d numbers; give %d, one per %s", #list, stages, what or "stage")
end

-- Returns times in one list: one per stage, or if some stage has one per micro-batch, all have.
local function times_per_stage(value, c, field)
  local each = false
  for _, of_stage in ipairs(type(value) == "table" and value or {}) do
    each = each or type(of_stage) == "table"
  end
  if not each then return list_per_stage(value, c.stages, field) end
  if #value ~= c.stages then
    fail(field, "has %d entries; give %d, one per stage", #value, c.stages)
  end
  local list = {}
  for s, of_stage in ipairs(value) do
    local path = ("%s[%d]"):format(field, s)
    for _, t in ipairs(list_per_stage(of_stage, c.micro_batches, path, "micro-batch")) do
      list[#list + 1] = t
    end
  end
  return core.array(list)
end

-- Checks the times and puts them in the form of the core.
local function set_costs(c)
  local times, rule, value = {}, c.pair.rule, c.pair.value
  for key in pairs(c.times or {}) do
    times[key] = times_per_stage(c.times[key], c, "times." .. key)
  end
  local split = times.I and times.W
  if c.times and not (times.F and (times.B or split)) then
    fail("times", "give F, and I and W or, for whole backwards alone, B")
  elseif c.times and not split and table.concat(c.rows, ","):find "%d[IW]%d" then
    fail("times", "the schedule has turns I and W; give the times I and W")
  elseif not value and (rule == "fixed" or rule == "saving") then
    fail("pair.value", "is missing; the rule '%s' needs it", rule)
  end
  if split and not times.B then
    times.B = {}
    local i, w = times.I, times.W
    local each = math.max(#i, #w) > c.stages and c.micro_batches or 1
    for n = 1, c.stages * each do
      local s = math.ceil(n / each)
      times.B[n] = i[#i > c.stages and n or s] + w[#w > c.stages and n or s]
    end
  end
  c.pair = { time = rule == "fixed" and value or nil,
    saving = rule == "saving" and value or rule == "max" and 2 * TIME.hi or 0 }
  for i, link in ipairs(c.send.links) do
    if #link ~= 3 or math.max(link[1], link[2]) >= c.ranks or link[1] % 1 + link[2] % 1 > 0 then
      fail(("send.links[%d]"):format(i), "give { from, to, time }, with ranks from 0 to %d",
        c.ranks - 1)
    end
  end
  core.array(c.send.links)
  c.act, c.entries = list_per_stage(c.act, c.stages, "act"), c.times ~= nil and c.entries
  c.times, c.schedule = times, nil
end

local function check_size(c)
  local most = math.max(c.ranks, c.stages)
  if most * c.micro_batches <= MOST then return end
  fail("micro_batches", "%g micro-batches on %g stages are more than %d together; give fewer",
    c.micro_batches, most, MOST)
end

-- Returns the value that the call and the schedule's own option give, which must agree.
local function agreed(key, given, own)
  if given and own and given ~= own then
    fail(key, "%g is not the schedule's own %s = %g; give it once", given, key, own)
  end
  return given or own
end

local function check_group(name, group, micro_batches, ranks)
  local rest = micro_batches % group
  local why = group < ranks
      and "group_below_ranks: group = %d of %d micro-batches is below the %d ranks; give more"
    or group > micro_batches
      and "group_above_micro_batches: group = %d is above the %d micro-batches; give more of them"
    or rest > 0 and rest < ranks and "short_last_group: the last group of up to %d of %d "
      .. "micro-batches is below the %d ranks; give a multiple of the group"
  if why then fail("schedule", "%s: " .. why, name, group, micro_batches, ranks) end
end

-- Returns the rows of a schedule; sets stages and placement.
local function rows_of_schedule(c, at)
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
    -- Otherwise the schedule itself refuses.
    if o.chunks > 1 and c.ranks > 1 then check_group(name, o.group, c.micro_batches, c.ranks) end
  end
  c.stages, c.placement = c.ranks * (two_way and 1 or o.chunks), def.placement
  check_size(c)
  core.end_loading()
  return pipeline.rows_of(name, { ranks = c.ranks, chunks = o.chunks, placement = c.placement,
    micro_batches = c.micro_batches }, o, at)
end

-- Returns the rows of a table; sets ranks, stages and placement. Lines without any cell or comma
-- are rows only if there are exactly as many lines, apart from comments, as ranks.
local function rows_of_table(c)
  local lines, filled = {}, {}
  for line in (c.table:gsub("\n$", "") .. "\n"):gmatch "(.-)\n" do
    local row = line:gsub("#.*", ""):gsub("%s", "")
    if row ~= "" then filled[#filled + 1] = row end
    if row ~= "" or not line:find "#" then lines[#lines + 1] = row end
  end
  local two_way = c.placement == "two_way"
  c.ranks, c.placement = c.ranks or #filled, c.placement or "loop"
  c.stages = c.stages or c.ranks * (two_way and 1 or c.chunks or 1)
  local rows = #lines == c.ranks and lines or filled
  if #filled == 0 then
    fail("table", "the table has no rows; give a line per rank")
  elseif #rows > c.ranks then
    fail("table", "the table has %d rows for %d ranks; give a line per rank", #rows, c.ranks)
  elseif two_way and c.stages ~= c.ranks then
    fail("stages", "%g is not allowed; give %g, as many as ranks, for the placement two_way",
      c.stages, c.ranks)
  end
  check_size(c)
  for rank = #rows + 1, c.ranks do rows[rank] = "" end
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

schema.record("pipeline times", "times", "a pipeline schedule in numbers; texts count from 0", {
  { "rows", "string[]?", "the turns of each rank, as text; transfers are left out" },
  { "errors", "{ code: string, rank: integer?, action: string }[]?", "what is wrong, alone" },
  { "entries", "{ text: string, begin: number, end: number }[][]?", "turns of each rank" },
  { "step", "number?", "when the last turn ends" },
  { "busy", "number[]?", "the sum of the lengths of a rank's turns" },
  { "bubble", "number[]?", "step - busy" },
  { "inner", "number[]?", "the time without a turn between a rank's first and last turn" },
  { "sending", "number[]?", "the time that blocking transfers occupy a rank" },
  { "peak", "number[]?", "the most activations that a rank holds, in stages x micro-batches" },
})

-- Sets the rows of a schedule or table, with stages and placement. at: the line that gives them.
local function set_rows(c, at)
  local own = schema.is_a("pipeline", c.schedule) and c.schedule.table
  schema.one_of(c, "schedule", "table", "moe.pipeline_times")
  for _, key in ipairs { "placement", "stages", "transfers" } do
    if not c.table and c[key] then fail(key, "has no effect beside schedule; leave it out") end
    if own then c[key] = own[key] end
  end
  for _, key in ipairs(own and { "chunks", "micro_batches" } or {}) do
    c[key] = agreed(key, c[key], own[key])
  end
  if not c.micro_batches then fail("micro_batches", "is missing") end
  c.table = own and own.csv or c.table
  c.rows = c.table and rows_of_table(c) or rows_of_schedule(c, at)
end

--- moe.pipeline_times{...}: returns a record of the type "pipeline times".
M.pipeline_times = schema.taking(M.FIELDS, "moe.pipeline_times", function(c, at)
  local timed = c.times ~= nil
  set_rows(c, at)
  set_costs(c)
  local out = errors.call(at, core.pipeline_times, c)
  if not timed then return { errors = out.errors, rows = out.rows, peak = out.peak } end
  out.entries, out.begins, out.ends = out.begins and entries_of(out), nil, nil
  return out
end)

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
M.pipeline_layout = schema.taking(M.LAYOUT, "moe.pipeline_layout", function(c)
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
end)

-- Returns how many blocks each stage of c.layout has, MTP layers among them, and how many of all
-- are MTP layers.
local function layers_of(c)
  local ok, layout = pcall(M.pipeline_layout, { layout = c.layout, ranks = c.ranks })
  local why
  if not ok then
    why = tostring(layout.message or layout):gsub("^.-moe.pipeline_layout.layout: ", "")
  elseif #layout.stages ~= c.stages then
    why = ("it has %d stages, but the schedule has %d on %d ranks"):format(#layout.stages,
      c.stages, c.ranks)
  end
  if why then errors.user("grid.layout: " .. why, c.at, "grid.layout") end
  local layers = core.array {}
  for i, stage in ipairs(layout.stages) do layers[i] = #stage:gsub("[^tm]", "") end
  return layers, #table.concat(layout.stages):gsub("[^m]", "")
end

--- Returns the turns of a plan: { ranks, stages, micro_batches, placement, rows, layers = the
--- blocks of each stage, or nil: equally many, mtp_layers = how many of them are MTP layers, peak =
--- the most activations of each rank }. c: { schedule = a name or a value, ranks, micro_batches,
--- layout = text or nil, at = the line of the grid }. Raises a user error with all that is wrong in
--- a schedule that is given as a table.
function M.turns(c)
  c.keep_w, c.pair, c.send = 1, { rule = "sum" }, { mode = "async", f = 0, b = 0, links = {} }
  set_rows(c, c.at)
  set_costs(c)
  local layers, mtp_layers
  if c.layout then layers, mtp_layers = layers_of(c) end
  local checked = core.pipeline_times(c)
  if checked.errors then
    local lines = {}
    for i, e in ipairs(checked.errors) do
      lines[i] = ("%s%s %s"):format(e.code, e.rank and (" on rank %d:"):format(e.rank) or ":",
        e.action)
    end
    errors.user(("the pipeline schedule has %d fault%s:\n  %s"):format(#lines,
      #lines > 1 and "s" or "", table.concat(lines, "\n  ")), c.at)
  end
  return { ranks = c.ranks, stages = c.stages, micro_batches = c.micro_batches,
    placement = c.placement, rows = checked.rows, layers = layers, peak = checked.peak,
    mtp_layers = mtp_layers }
end

return M
