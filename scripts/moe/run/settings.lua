-- The settings of the command line: --set path=value[,value..], where a value may be a factor, x2.
-- A path is a name of an experiment's `over` or `params` (moe.run.points), or leads from one of
-- HEADS to a field of models, clusters, systems or entries of `run`, which are then made anew and
-- checked as the recipe's own. A setting that reaches nothing that runs is an error (M.check); the
-- recipe's own value, such as the factor x1, is not.
local choice = require "moe.base.choice"
local cluster_lib = require "moe.spec.cluster"
local core = require "moe.core"
local errors = require "moe.base.errors"
local grid_lib = require "moe.spec.grid"
local model_lib = require "moe.spec.model"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"

local M = {}

local HEADS = { "cluster", "grid", "model", "run", "system" }
local FORMS = { "cluster.<field>", "grid.<field>", "model.<field>", "run.<executor>.<field>",
  "system[.<name>].<field>", "system[.<name>].<pass>.<option>" }

--- The topic of `moebench doc` on settings.
M.TOPIC = { name = "set", as = "--set", doc = "settings of the command line, --set path=value: a "
    .. "value may be a factor (x2) of the recipe's own, and several values (1,2,4) are a sweep, "
    .. "whose coordinate has the path as its name",
  members = {
    { name = "<name>", type = "--set nodes=4", doc = "values of a list of `over`, of which only "
      .. "these are run (a list of numbers takes other numbers too), or of `params`" },
    { name = FORMS[3], type = "--set model.layers=6", doc = "a field of all models (model)" },
    { name = FORMS[2], type = "--set grid.micro_batches=4", doc = "a field of all grids (grid), "
      .. "also where a recipe gives none" },
    { name = FORMS[1], type = "--set cluster.nic.bytes_per_s=x2",
      doc = "a field of all clusters (cluster)" },
    { name = FORMS[4], type = "--set run.cpu.steps=5",
      doc = "a field of the entries of `run` with this executor (simulate_entry, cpu_run, "
        .. "cuda_run); run.cpu.model.<field> is one of the models that they run" },
    { name = FORMS[6], type = "--set system.lancet.partition.max_parts=4",
      doc = "an option of a pass of the system with this name, or of all systems that have the "
        .. "pass; one value of a moe.best or moe.fallback takes the place of its list" },
    { name = FORMS[5], type = "--set system.zero=1",
      doc = "a field of a system (system), or of all" },
  } }

local executors = {}
for _, row in ipairs(core.table "executors") do executors[row.name] = true end

local list  -- see M.all

local function parsed(name, text)
  local s = { name = name, text = ("--set %s=%s"):format(name, text), values = {}, labels = {},
    parts = {} }
  for part in name:gmatch "[^.]+" do s.parts[#s.parts + 1] = part end
  for _, head in ipairs(HEADS) do
    if s.parts[1] == head and #s.parts > 1 then s.head = head end
  end
  for value in (text .. ","):gmatch "([^,]*)," do
    local label = tonumber(value) or value
    if label ~= label then
      errors.command(("%s: '%s' is no number that a field can have"):format(s.text, value))
    end
    if s.values[label] or value == "" and text ~= "" then
      errors.command(("%s: %s; give values that differ, as 1,2,4"):format(s.text,
        value == "" and "a value is empty" or "'" .. value .. "' is given twice"))
    end
    s.labels[#s.labels + 1], s.values[label] = label, value
  end
  if s.head == "run" and not executors[s.parts[2]] then
    errors.command(schema.unknown_text(s.text, "executor", s.parts[2], schema.keys_of(executors)))
  end
  if core.args.ranks and s.head == "run" and s.parts[3] == "ranks" then
    errors.command(("%s: --ranks %d gives the number of ranks too; omit one of the two"):format(
      s.text, core.args.ranks))
  end
  return s
end

--- Returns all settings, in the order of their names, as { name, text, labels = the values as
--- results show them: numbers or texts, values = label -> text, head = one of HEADS or nil for a
--- name of `over` or `params`, parts = those of the path }.
function M.all()
  if list then return list end
  list = {}
  for name, text in pairs(core.args.set or {}) do list[#list + 1] = parsed(name, text) end
  return list
end

--- Returns the factor that the text "x2" states, or nil for another text.
function M.factor(text) return tonumber(text:match "^x(%d[%w.+-]*)$" or "") end

function M.gives(path)
  for _, s in ipairs(M.all()) do
    if s.name == path then return true end
  end
  return false
end

--- Marks a setting as one that has an effect, or is the recipe's own value.
function M.found(s) s.found = true end

local function refuse(s, why) error(core.failure("user", ("%s: %s"):format(s.text, why)), 0) end

-- Notes why a setting has no effect here. sure: it will have none in other experiments either.
local function miss(s, why, sure)
  s.why, s.sure = why, sure
end

--- Notes that an experiment, made at the recipe's line `at`, has no such name, only `names`.
function M.unknown(s, names, at)
  local nested = #s.parts > 1
  local near = nested and core.nearest(s.parts[1], HEADS) ~= ""
  for _, form in ipairs(FORMS) do names[#names + 1] = form end
  s.at = at
  miss(s, schema.unknown_text("", "name", near and s.parts[1] or s.name, near and HEADS or names)
    :sub(3), nested or not errors.mentions(s.name))
end

local SIMPLE = { number = true, string = true, boolean = true }

local function boolean(text) return ({ ["true"] = true, ["false"] = false })[text] end
local function same(text) return text end

-- Types of fields that a setting can give -> the function that reads the value, or nil if the text
-- is none.
M.READ = { number = tonumber, integer = tonumber, boolean = boolean, string = same, any = same }

-- Returns the one value of a setting in the type of `default`.
local function value_like(s, default)
  local of = type(default)
  local value = M.READ[of](s.values[s.labels[1]])
  if #s.labels > 1 or value == nil then
    refuse(s, ("give one %s; the script's own value is %s"):format(of, tostring(default)))
  end
  return value
end

--- moe.options{...}: the settings of a script, a table of names and default values (numbers, texts,
--- booleans), each in place of which --set NAME=VALUE gives another. Returns the table.
--- check(name, value): called with every setting of the command line, the value nil where the name
--- is not in the table; returns why the script refuses the setting, or nothing.
function M.options(t, check)
  local at, out = errors.here(), {}
  schema.field({ type = "table", required = true }, t, "moe.options", at)
  schema.field({ type = "function" }, check, "moe.options.check", at)
  for name, default in pairs(t) do
    if type(name) ~= "string" or not SIMPLE[type(default)] then
      errors.user(("moe.options.%s: give a name and a number, a text or a boolean"):format(
        tostring(name)), at)
    end
    out[name] = default
  end
  for _, s in ipairs(M.all()) do
    if out[s.name] ~= nil and not s.head then
      out[s.name] = value_like(s, t[s.name])
      M.found(s)
    end
    local why = check and check(s.name, out[s.name])
    if why then refuse(s, tostring(why)) end
  end
  return out
end

local UNUSED = {
  cluster = "no run here is simulated, and only simulations have a cluster",
  grid = "nothing here trains",
  model = "the entries of run that are run have their own value of it; give run.<executor>.%s",
  system = "no entry of run has this system", run = "no entry of run has this executor",
}

local function why_not(s)
  if s.changed or s.head == "run" and not s.why then
    return "changes nothing: " .. UNUSED[s.head]:format(s.name)
  end
  return s.why or "reaches nothing: nothing here has such a field"
end

local in_use = {}  -- names of options of the command line that something here depends on

--- Notes that something depends on the option --executor, --ranks or --sensitivity.
function M.reach(option) in_use[option] = true end

--- Returns the number of ranks of an executed run: that of --ranks, by default `given`.
function M.ranks(given)
  M.reach "ranks"
  return core.args.ranks or given
end

-- Returns whether the recipe has no experiment so far and can make none later: neither its text nor
-- a module, of which it requires but `moe`, has one.
local function without_experiments()
  if in_use.executor or core.args.trust or not core.recipe then return false end
  local _, required = errors.recipe_text():gsub("%f[%w_]require%f[^%w_]", "")
  return required <= 1 and not errors.mentions "experiment"
end

local other  -- what a function runs on that is not the executor of --executor

local WITHOUT_EFFECT = {
  ranks = "nothing here is executed on ranks",
  sensitivity = "no experiment here simulates anything that could move",
  executor = "it selects entries of an experiment's `run`, and here is no experiment; %s",
}

-- Raises a user error for the first option that nothing depends on.
local function check_options(which)
  local sure = which == "sure" and without_experiments()
  for _, name in ipairs { "ranks", "executor", "sensitivity" } do
    local value = core.args[name]
    local asked = not which or sure and name ~= "ranks"
    if asked and value and not in_use[name] and (name ~= "executor" or other) then
      error(core.failure("user", ("--%s %s: changes nothing: %s"):format(name, value,
        WITHOUT_EFFECT[name]:format(other))), 0)
    end
  end
end

--- Raises a user error for the first setting that has had no effect so far. which: "sure", only
--- if it cannot have one later in the recipe either; "names", only if it is a name of `over` or
--- `params`; nil: all. The same for --ranks, --executor and --sensitivity.
function M.check(which)
  check_options(which)
  for _, s in ipairs(M.all()) do
    local asked = not which or s.sure or which == "names" and not s.head
    if asked and not (s.found or s.changed and s.used) then
      if s.at then errors.user(("%s: %s"):format(s.text, why_not(s)), s.at) end
      refuse(s, why_not(s))
    end
  end
end

--- Notes that something runs that has what settings with this head change. own(key): whether it has
--- a value of its own for the field `key` of settings.
function M.used(head, own)
  for _, s in ipairs(M.all()) do
    if s.head == head and not (own and own(s.parts[2])) then s.used = true end
  end
end

-- Returns an iterator over the settings whose paths begin with `prefix`, each with its value at the
-- point as text.
local function settings_of(prefix, point)
  local i = 0
  return function()
    while true do
      i = i + 1
      local s = M.all()[i]
      if not s then return nil end
      if s.head and s.name:sub(1, #prefix + 1) == prefix .. "." then
        local label = s.labels[1]
        if #s.labels > 1 then label = point[s.name] end
        if label == nil then
          refuse(s, "several values are a sweep, which only an experiment has; give one value")
        end
        return s, s.values[label]
      end
    end
  end
end

local function scaled(own, factor)
  if type(own) == "number" then return own * factor end
  if not schema.is_a("assumed", own) then  -- numbers by name
    local out = {}
    for key, one in pairs(own) do out[key] = scaled(one, factor) end
    return out
  end
  return schema.assumed { value = own.value * factor, lo = own.lo * factor, hi = own.hi * factor,
    why = own.why, source = own.source }
end

-- Returns the value that a setting gives a field of this type, whose value was `own`. A text that
-- does not fit is returned as it is, so that the check of the field refuses it.
local function value_of(s, text, kind, own, path)
  local factor = (kind == "number" or kind == "integer") and M.factor(text)
  local number = type(own) == "number" and own
  if type(own) == "table" then number = schema.is_a("assumed", own) and own.value or own end
  if factor and not number then
    refuse(s, ("the recipe gives %s no value to multiply; give a number"):format(path))
  end
  local value = factor and scaled(own, factor) or nil
  if not factor then value = M.READ[kind](text) end
  if value == nil then value = text end
  if s.own ~= nil and s.own ~= own and not factor then s.replaces = true end
  s.own = own
  local now = value
  if factor and type(number) == "number" then now = number * factor end
  if factor == 1 then now = number end
  if now == (number or own) then M.found(s) else s.changed = true end
  return value
end

-- Returns why a setting cannot give the field, or nil if it can.
local function no_value(field, path)
  if type(field.type) == "table" then
    return ("%s: has fields of its own; give one of: %s"):format(path,
      table.concat(schema.keys_of(field.type), ", "))
  end
  return not M.READ[field.type] and path .. ": is no number, text or boolean, which --set can give"
end

-- Returns a copy of the table `given` with the value of the setting, or nil if the table has no
-- such field. i: index of the part of the path that is a key of the table; fields: its fields;
-- full: the table with values for what `given` leaves out.
local function with_value(s, text, i, fields, given, full)
  local where, key = table.concat(s.parts, ".", 1, i - 1), s.parts[i]
  local field, path = fields[key], where .. "." .. s.parts[i]
  if not field then
    local names = schema.keys_of(fields)
    local sure = s.head == "cluster" or s.head == "run" or core.nearest(key, names) ~= ""
    return miss(s, schema.unknown_text(where, "key", key, names), sure)
  end
  local out, own, kind = schema.merged(given, {}), given[key], field.type
  if own == nil then own = full[key] end
  if i < #s.parts then
    local inner = field.by or kind
    if type(inner) ~= "table" then return miss(s, path .. ": has no fields", true) end
    local function in_table(t) return type(t) == "table" and t or {} end
    out[key] = with_value(s, text, i + 1, inner, in_table(own), in_table(full[key]))
    return out[key] and out
  end
  local why = no_value(field, path)
  if why then return miss(s, why, true) end
  local peak, share = cluster_lib.peak_of(key)
  if peak and given[peak] and M.factor(text) then key, own = peak, given[peak] end
  if own == nil then own = field.default end
  out[key] = value_of(s, text, kind, own, path)
  if peak and key ~= peak then out[peak], out[share] = nil, nil end
  return out
end

-- Returns the table `given` with the values of the settings whose paths begin with `prefix`, the
-- keys that they change, and the settings' text; nothing if there are none. skip: a key to leave.
local function with_settings(prefix, point, fields, given, full, skip)
  local _, dots = prefix:gsub("%.", "")
  local keys, texts = {}, {}
  for s, text in settings_of(prefix, point) do
    local key = s.parts[dots + 2]
    local made = key ~= skip and with_value(s, text, dots + 2, fields, given, full)
    if made then given, keys[key], texts[#texts + 1] = made, true, s.text end
  end
  if #texts > 0 then return given, keys, table.concat(texts, " ") end
end

--- Returns the model with the settings whose paths begin with `prefix`.
function M.model(model, point, prefix)
  local given, keys, text = with_settings(prefix, point, model.architecture.all, model.given, model)
  if not given then return model end
  if prefix ~= "model" then M.used "run" end
  for key in pairs(keys) do keys[key] = given[key] end
  return model_lib.override(model, keys, model.root, errors.changed(model.at, text))
end

local function grid_with(grid, point, at)
  local own = grid or {}
  local made, changed, text = with_settings("grid", point, grid_lib.FIELDS, own, own)
  if not made then return grid end
  for key in pairs(changed) do changed[key] = made[key] end
  return grid_lib.with(grid, changed, errors.changed(own.at or at, text))
end

local function cluster_with(cluster, point)
  local fields, given = cluster_lib.FIELDS, cluster.given
  local made, changed, text = with_settings("cluster", point, fields, given, cluster)
  return made and cluster_lib.with(cluster, made, changed, errors.changed(cluster.at, text))
    or cluster
end

-- Returns the system with the value of the setting. i: index of the part of the path that is the
-- name of a pass or field; others: names that may be in this place too.
local function system_with(s, text, i, system, others)
  local key, option, at = s.parts[i], s.parts[i + 1], errors.changed(system.at, s.text)
  local path = s.name:match "^(.*)%."
  if system_lib.FIELDS[key] and key ~= "of" and (key ~= "packing" or system.packing) then
    local own = system_lib.fields_of(system)
    local made = with_value(s, text, i, system_lib.FIELDS, own, own)
    return made and system_lib.with_fields(system, schema.check(system_lib.FIELDS, made,
      ("system '%s'"):format(system.name), at)) or system
  end
  local passes, names, reached, near = {}, { "all_reduce", "stack" }, false, nil
  for name in pairs(system_lib.FOR_PASS) do names[#names + 1] = name end
  for j, pass in ipairs(system.passes) do
    local first = choice.first(pass)
    names[#names + 1], passes[j] = first.name, pass
    local options = policy.options_of(first)
    if options and options[key] then near = first.name .. "." .. key end
    local fields = first.name == key and options
    if fields and #s.parts == i + 1 and fields[option] then
      reached = true
      passes[j] = choice.changed(pass, option, function(one)
        local value = value_of(s, text, fields[option].type, one.options[option], s.name)
        return policy.with_option(one, option, value, path, at)
      end)
    elseif fields then
      miss(s, schema.unknown_text(path, "option", s.parts[#s.parts], schema.keys_of(fields)), true)
      return system
    end
  end
  if reached then return system_lib.with(system, { passes = passes }) end
  for _, name in ipairs(others) do names[#names + 1] = name end
  local where = table.concat(s.parts, ".", 1, i - 1)
  local what = #others > 0 and "system, pass or field" or "pass or field"
  miss(s, near and ("%s: unknown %s '%s'. Did you mean '%s'?"):format(where, what, key, near)
    or schema.unknown_text(where, what, key, names), near or core.nearest(key, names) ~= "")
  return system
end

-- Calls f with the system, or, if it has members, with each of these; name: only with those of this
-- name. Returns the system that has f's results in place of these, and whether there were any.
local function mapped(system, name, f)
  if not system.members then
    local fits = not name or system.name == name
    return fits and f(system) or system, fits
  end
  local members, any = {}, false
  for i, member in ipairs(system.members) do
    local fits
    members[i], fits = mapped(member, system.name ~= name and name or nil, f)
    any = any or fits
  end
  return any and system_lib.with(system, { members = members }) or system, any
end

local function systems_with(s, text, systems)
  local out, any, name, names = {}, false, s.parts[2], {}
  for i, system in ipairs(systems) do
    names[i] = system.name
    local fits
    out[i], fits = mapped(system, name, function(one)
      return #s.parts > 2 and system_with(s, text, 3, one, {}) or one
    end)
    any = any or fits
  end
  if any and #s.parts > 2 then return out end
  for i, system in ipairs(systems) do
    out[i] = mapped(system, nil, function(one) return system_with(s, text, 2, one, names) end)
  end
  return out
end

--- Changes the model, the cluster and the systems (or `system`) of a checked case, or of the fields
--- of a function, as the settings say. point: the case's coordinates; trains: whether the model
--- has a grid.
function M.case(case, point, trains)
  case.model = M.model(case.model, point, "model")
  if trains then
    case.grid = grid_with(case.grid, point, case.model.at)
    case.model = model_lib.on(case.model, case.grid)
  end
  case.cluster = case.cluster and cluster_with(case.cluster, point)
  local systems = case.systems or { case.system }
  for s, text in settings_of("system", point) do systems = systems_with(s, text, systems) end
  if case.systems then case.systems = systems else case.system = systems[1] end
end

--- Returns a checked table of fields for runs on the executor entry.kind with the settings of
--- run.<executor>. entry: also has `fields`, its field list, and `path`, of errors; full: values
--- that stand for those that it leaves out.
function M.entry(entry, point, full, at)
  local path = "run." .. entry.kind
  if M.gives(path .. ".optimizer.name") then
    local own = { optimizer = target.given_optimizer(full.optimizer) }
    entry, full = schema.merged(entry, own), schema.merged(full, own)
  end
  local made, _, text = with_settings(path, point, entry.fields, entry, full,
    entry.fields.model and "model")
  if not made then return entry end
  M.used "run"
  local own = {}
  for key in pairs(entry.fields) do own[key] = made[key] end
  return schema.merged(entry, schema.check(entry.fields, own, entry.path,
    errors.changed(at, text)))
end

--- Returns the checked fields `c` of a function that runs something, changed as the settings say.
--- fields: its field list; path: that of the fields in errors. Raises a user error for a setting
--- that can have no effect, before anything runs.
function M.call(c, fields, path, at)
  for _, s in ipairs(M.all()) do
    if not (s.head or s.found) then M.unknown(s, {}, at) end
    if s.head == "grid" and not fields.grid then miss(s, path .. " has no grid", true) end
  end
  if c.executor and c.executor ~= core.args.executor then
    other = ("the field executor of %s says '%s'"):format(path, c.executor)
  end
  M.check "sure"
  M.case(c, {}, fields.grid ~= nil)
  local own = ("run.%s.model"):format(c.executor or "")
  M.used("model", function(key) return M.gives(own .. "." .. key) end)
  for _, head in ipairs { "cluster", "grid", "system" } do
    if c[head] then M.used(head) end
  end
  if not c.executor then return c end
  c.model = M.model(c.model, {}, own)
  c = M.entry(schema.merged(c, { kind = c.executor, fields = fields, path = path }), {}, c, at)
  M.check "sure"
  return c
end

--- Returns the settings since the last call that replaced values which differed, as text.
function M.replacing()
  local texts = {}
  for _, s in ipairs(M.all()) do
    if s.replaces then texts[#texts + 1] = s.text end
    s.own, s.replaces = nil, nil
  end
  return table.concat(texts, " ")
end

--- Returns the coordinates of a point that are settings with this head.
function M.labels(head, point)
  local labels = {}
  for _, s in ipairs(M.all()) do
    if s.head == head then labels[s.name] = point[s.name] end
  end
  return labels
end

--- Returns the settings of fields and of `params` as text, or nil if there are none.
function M.said(params)
  local texts = {}
  for _, s in ipairs(M.all()) do
    if s.head or params[s.name] ~= nil then texts[#texts + 1] = s.text end
  end
  return #texts > 0 and "With " .. table.concat(texts, " ") or nil
end

return M
