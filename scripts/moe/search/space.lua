-- The space that moe.search searches: dimensions, each with choices, of which the first always
-- leaves its technique out. A mix has one choice per dimension; it is a list of their numbers.
local core = require "moe.core"
local dispatcher = require "moe.spec.dispatcher"
local pipeline = require "moe.spec.pipeline"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"

local M = {}

local NONE, READY, READY_EACH = system_lib.AFTER, system_lib.DDP, system_lib.LINA

-- Each dimension is { name, technique... } and each technique { name, passes = pass -> options } or
-- { name, set = field of the system -> values }. An option with a list has one choice per value.
-- label: what names the technique in a mix; without it, its name.
-- Passes that stand nowhere here are added by add_others().
local DIMENSIONS = {
  { "rows", { "irregular_a2a", passes = { irregular_a2a = {} } },
    { "used_rows", label = "irregular_a2a + used_rows",
      passes = { irregular_a2a = {}, used_rows = {} } } },
  { "parts", { "capacity_pipeline", passes = { capacity_pipeline = { degree = { 2, 4, 8 } } } },
    { "pipemoe", passes = { pipemoe = { objective = { "forward", "step" } } } },
    { "micro_ops", passes = { micro_ops = { bytes = { 30e6, 8e6 } } } } },
  { "rounds", { "fastermoe_pipeline", passes = { fastermoe_pipeline = {} } } },
  { "steps", { "hierarchical_a2a", passes = { hierarchical_a2a = {} } } },
  { "batch", { "partition", passes = { partition = { max_parts = { 2, 4, 8 } } } } },
  { "placement", { "prophet", passes = { prophet = { hidden = { 0, 1 } } } },
    { "prophet_split", passes = { prophet = { hidden = 1, split = true } } },
    { "fastermoe_shadowing", passes = { fastermoe_shadowing = {} } },
    { "top_k", passes = { top_k = { k = 2, shadows = 2 } } } },
  { "copies", { "prophet_schedule", passes = { prophet_schedule = {} } } },
  { "weights", { "dw_schedule", passes = { dw_schedule = {} } } },
  { "discipline", { "serial", passes = { serial = {} } },
    { "blocking_a2a", passes = { blocking_a2a = { experts = { true, false } } } },
    { "fixed", passes = { fixed = {} } },
    { "priority", passes = { priority = { hold = { true, false } } } } },
  { "chunks", { "chunked", passes = { chunked = { which = { "all_reduce", "both" } } } } },
  { "gradients", { "all_reduce", set = { all_reduce = { READY, READY_EACH } } } },
}

-- Passes that no mix has, beside those for inference: "placed" leaves experts where they are,
-- "weights_at_experts" saves memory and no time.
local EXCLUDED = { placed = true, weights_at_experts = true }

-- Kinds of passes that edit only the schedule.
local SCHEDULES = { schedule = true, pipeline = true }

-- What a choice of an all-reduce policy is called.
local REDUCE_NAMES = { [READY] = "when ready, buckets of 25 MiB",
  [READY_EACH] = "when ready, each gradient" }

local kinds, for_inference = {}, {}  -- indexed by the name of a pass
for _, row in ipairs(policy.pass_rows) do
  kinds[row.name], for_inference[row.name] = row.kind, row.inference
end

--- Returns the known systems that train, { name, system, n = number of passes }, those with the
--- most passes first: one with fewer is mostly a mix. at: where errors are raised.
function M.known_systems(at)
  local list = {}
  for name in pairs(system_lib.known) do
    local one, trains = { name = name, system = system_lib.named(name, at) }, true
    local stages = system_lib.expand(one.system)[1][1].stages
    for _, stage in ipairs(stages) do trains = trains and not for_inference[stage.name] end
    one.n = #stages
    list[#list + 1] = trains and one or nil
  end
  return schema.sorted(list, function(one) return -one.n, one.name end)
end

-- Adds the passes that no dimension has, with the defaults of their options: those that place
-- experts to the dimension "placement", each other pass as a dimension of its own.
local function add_others()
  local known, of = schema.merged(for_inference, EXCLUDED), {}  -- of: dimensions by name
  for _, dimension in ipairs(DIMENSIONS) do
    of[dimension[1]] = dimension
    for i = 2, #dimension do
      for name in pairs(dimension[i].passes or {}) do known[name] = true end
    end
  end
  for _, row in ipairs(policy.pass_rows) do
    if not known[row.name] then
      local dimension = row.kind == "placement" and of.placement or { row.name }
      dimension[#dimension + 1] = { row.name, passes = { [row.name] = {} } }
      if dimension ~= of.placement then DIMENSIONS[#DIMENSIONS + 1] = dimension end
    end
  end
end
add_others()

--- Returns the passes that the techniques, a set of names, have: name -> one of these techniques.
function M.passes_of(techniques)
  local of = {}
  for _, dimension in ipairs(DIMENSIONS) do
    for i = 2, #dimension do
      local technique = dimension[i]
      for pass in pairs(techniques[technique[1]] and technique.passes or {}) do
        of[pass] = of[pass] or technique[1]
      end
    end
  end
  return of
end

--- Takes the placements out of a set of techniques, but for those that `options` names.
function M.leave_placements_out(techniques, options)
  for _, dimension in ipairs(DIMENSIONS) do
    for i = 2, dimension[1] == "placement" and #dimension or 1 do
      local named = false
      for pass in pairs(dimension[i].passes) do named = named or options[pass] ~= nil end
      if not named then techniques[dimension[i][1]] = nil end
    end
  end
end

M.TECHNIQUES = {}
for _, dimension in ipairs(DIMENSIONS) do
  for i = 2, #dimension do M.TECHNIQUES[#M.TECHNIQUES + 1] = dimension[i][1] end
end

local function value_text(value)
  if REDUCE_NAMES[value] then return REDUCE_NAMES[value] end
  return type(value) == "number" and ("%g"):format(value) or tostring(value)
end

-- Returns all combinations of the lists in `options`, each { values = options, label = of those
-- that have a list of more than one value }.
local function combinations(options)
  local lists, all = {}, {}
  for name, given in pairs(options) do
    lists[name] = type(given) == "table" and #given > 0 and given or { given }
  end
  for i, values in ipairs(schema.product(lists)) do
    all[i] = { values = values, label = "" }
    for name, value in pairs(values) do
      local label = #lists[name] > 1 and (" %s=%s"):format(name, value_text(value)) or ""
      all[i].label = all[i].label .. label
    end
  end
  return all
end

-- Returns the choices of a technique, each { technique, label, passes = a list of passes, set =
-- fields of the system, schedules = whether it changes only the schedule }. grid: pass -> option ->
-- list of values, in place of those above.
local function choices_of(technique, grid)
  local name, made = technique[1], {}
  if technique.set then
    for _, one in ipairs(combinations(technique.set)) do
      local _, value = next(one.values)
      made[#made + 1] = { technique = name, label = name .. " " .. value_text(value), passes = {},
        set = one.values }
    end
    return made
  end
  made[1] = { technique = name, label = technique.label or name, passes = {}, set = {},
    schedules = true }
  for pass, options in pairs(technique.passes) do
    local more = {}
    for _, before in ipairs(made) do
      for _, one in ipairs(combinations(schema.merged(options, grid[pass] or {}))) do
        more[#more + 1] = schema.merged(before, { label = before.label .. one.label,
          schedules = before.schedules and SCHEDULES[kinds[pass]] or false,
          passes = schema.merged(before.passes,
            { [#before.passes + 1] = policy.passes[pass](one.values) }) })
      end
    end
    made = more
  end
  return made
end

local OUT = { label = "", passes = {}, set = {}, schedules = true }

-- Returns the label of a pass or dispatcher: its name, with the options that are not the defaults.
local function label_of(one, fields)
  local parts = { one.name }
  for _, name in ipairs(schema.keys_of(one.options)) do
    if one.options[name] ~= (fields[name] or {}).default then
      parts[#parts + 1] = ("%s=%s"):format(name, value_text(one.options[name]))
    end
  end
  return table.concat(parts, " ")
end

-- Returns the choice that has a policy of the recipe, or a pass that it gives, in the mix.
local function choice_with(pass)
  return { technique = pass.name, label = label_of(pass, policy.options_of(pass)),
    passes = { pass }, set = {}, given = true, schedules = SCHEDULES[pass.stage] or false }
end

local Space = {}
Space.__index = Space

-- Returns the dimensions of grids, a table of lists of values by field, of pipeline schedules and
-- of dispatchers. Their first choice is what the search itself gives.
local function mesh(of)
  local all = {}
  local function add(name, values, choice_of)
    local choices = { OUT }
    for _, value in ipairs(values) do
      local label, what = choice_of(value)
      choices[#choices + 1] = schema.merged(what, { technique = name, label = label, passes = {},
        set = {} })
    end
    all[#all + 1] = { name = name, choices = choices }
  end
  for _, key in ipairs(schema.keys_of(of.grids)) do
    local name = "grid." .. key
    add(name, of.grids[key], function(value)
      return ("%s=%s"):format(name, value_text(value)), { grid = { [key] = value } }
    end)
  end
  add("pipeline", of.pipelines, function(one) return pipeline.label(one), { pipeline = one } end)
  add("dispatcher", of.dispatchers, function(one)
    return label_of(one, dispatcher.known[one.name].fields), { dispatcher = one }
  end)
  return all
end

--- Makes the space of these techniques (a set of names), of the values in `grid`, of the passes in
--- the list `with`, each of which a mix has or has not, and of the fields of grids, the pipeline
--- schedules and the dispatchers in `of_mesh`, { grids, pipelines, dispatchers } or nil. Dimensions
--- without a choice are left out.
function M.new(techniques, grid, with, of_mesh)
  local space = setmetatable({ dimensions = {}, size = 1 }, Space)
  local own = { placement = {} }
  for _, pass in ipairs(with) do
    if pass.stage == "placement" then
      table.insert(own.placement, choice_with(pass))
    else
      own[#own + 1] = { name = pass.name, choices = { OUT, choice_with(pass) } }
    end
  end
  local function add(dimension)
    if #dimension.choices == 1 then return end
    space.dimensions[#space.dimensions + 1] = dimension
    space.size = space.size * #dimension.choices
  end
  for _, given in ipairs(DIMENSIONS) do
    local choices = { OUT }
    for i = 2, #given do
      if techniques[given[i][1]] then
        for _, choice in ipairs(choices_of(given[i], grid)) do choices[#choices + 1] = choice end
      end
    end
    for _, choice in ipairs(own[given[1]] or {}) do choices[#choices + 1] = choice end
    add { name = given[1], choices = choices }
  end
  for _, dimension in ipairs(own) do add(dimension) end
  for _, dimension in ipairs(of_mesh and mesh(of_mesh) or {}) do
    add(dimension)
  end
  return space
end

function Space:plain()
  local mix = {}
  for i in ipairs(self.dimensions) do mix[i] = 1 end
  return mix
end

--- Returns a text that differs for every mix.
function Space:key(mix) return table.concat(mix, ".") end

--- Returns the key of all mixes that have the same ops and differ only in their schedule.
function Space:family(mix)
  local parts = {}
  for i, dimension in ipairs(self.dimensions) do
    parts[i] = dimension.choices[mix[i]].schedules and 0 or mix[i]
  end
  return table.concat(parts, ".")
end

--- Returns the choices of the mix that are not left out.
function Space:chosen(mix)
  local list = {}
  for i, dimension in ipairs(self.dimensions) do
    if mix[i] > 1 then
      list[#list + 1] = schema.merged(dimension.choices[mix[i]], { dimension = i, choice = mix[i] })
    end
  end
  return list
end

--- Returns the choices of the passes that the recipe gives in `with`: { dimension, choice, label }.
function Space:given()
  local list = {}
  for i, dimension in ipairs(self.dimensions) do
    for j, choice in ipairs(dimension.choices) do
      if choice.given then
        list[#list + 1] = { dimension = i, choice = j, label = choice.label }
      end
    end
  end
  return list
end

--- Returns the mix as text, "partition max_parts=8 + dw_schedule".
function Space:label(mix)
  local labels = {}
  for i, choice in ipairs(self:chosen(mix)) do labels[i] = choice.label end
  return #labels > 0 and table.concat(labels, " + ") or "plain"
end

--- Returns the fields of the grid that the mix changes.
function Space:grid(mix)
  local changes = {}
  for _, choice in ipairs(self:chosen(mix)) do
    for key, value in pairs(choice.grid or {}) do changes[key] = value end
  end
  return changes
end

--- Returns the system `name` of the mix, whose errors are raised at `at`.
function Space:system(mix, name, at)
  local passes, fields, schedule, sends = {}, {}, nil, nil
  for _, choice in ipairs(self:chosen(mix)) do
    schedule, sends = choice.pipeline or schedule, choice.dispatcher or sends
    for _, pass in ipairs(choice.passes) do passes[#passes + 1] = pass end
    for key, value in pairs(choice.set) do fields[key] = value end
  end
  return system_lib.of_passes(name, passes, schema.merged({ all_reduce = NONE }, fields), at,
    schedule, sends)
end

-- Returns whether all passes of a choice are among the stages, with these options.
local function is_in(choice, stages)
  for _, pass in ipairs(choice.passes) do
    local stage = stages[pass.name]
    for name, value in pairs(pass.options) do
      if not stage or stage.options[name] ~= value then return false end
    end
    if not stage then return false end
  end
  return #choice.passes > 0
end

--- Returns the mix that is most like a system. candidate: { stages, all_reduce } as a record has
--- them.
function Space:nearest(candidate)
  local stages, mix = {}, self:plain()
  for _, stage in ipairs(candidate.stages) do stages[stage.name] = stage end
  for i, dimension in ipairs(self.dimensions) do
    local most = 0
    for j, choice in ipairs(dimension.choices) do
      for field, value in pairs(choice.set) do
        if core.json_encode { candidate[field] } == core.json_encode { value } then mix[i] = j end
      end
      if is_in(choice, stages) and #choice.passes > most then mix[i], most = j, #choice.passes end
    end
  end
  return mix
end

return M
