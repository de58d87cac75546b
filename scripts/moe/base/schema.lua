-- Checks tables of the recipe against field lists: unknown keys, wrong types, numbers out of range,
-- at any depth. The type stubs (moe.stubs) are made from the same lists.
--
-- A field list maps names to fields. A field is { type =, default =, required =, lo =, hi =,
--   enum = { ... }, doc = "meaning, unit",
--   as = "its type for documents and stubs, if `type` is too coarse for them",
--   code = "a word at the end of errors about the range of a number",
--   instead = function(value) that returns what to give in place of a value of another type,
--   complete = function(value, path, at) that checks how the entries of a table fit together and
--     returns the table,
--   by = the field list of a table that may be given in place of one number }.
-- type is "integer", "number", "string", "boolean", "table", "function" or "any"; "list", where
-- `of` is the field of an entry and `least` what a list that may not be empty has; a field list; or
-- the name of a class of objects that the library makes (M.class). A number may be
-- moe.assumed{...} if the caller passes a collector (M.collector).
local core = require "moe.core"
local errors = require "moe.base.errors"

local M = {}

--- Indexed by class name: { mt = metatable, what = "a model, as moe.model.gpt2_moe {...}" }, where
--- `what` is for error messages.
M.classes = {}

--- Defines a class of objects; returns their metatable.
function M.class(name, what)
  local mt = { __name = name, __tostring = function() return "moe." .. name end }
  M.classes[name] = { mt = mt, what = what }
  return mt
end

--- The functions that recipes call and the types of the values that these return, for `moebench
--- doc` and the type stubs. calls: a list of { name, takes = a field list or a signature, gives =
--- the type of the result, doc, ... }; types: a list in the form of core.table "types".
M.calls, M.types = {}, {}

--- Documents a type of values that recipes get, and returns its description. as: the name of such
--- a value in examples; rows: a list of { name, type, doc }, one per member, and of such lists; the
--- type of a method is its signature, for example "(lane: string): string[]"; fields: nil, or a
--- field list with further members. The caller may set `also` in the description: another topic
--- name of `moebench doc` under which the type is shown.
function M.record(name, as, doc, rows, fields)
  local made = { name = name, as = as, doc = doc, fields = fields or {}, members = {} }
  local function add(row)
    if type(row[1]) == "table" then
      for _, inner in ipairs(row) do add(inner) end
    elseif not (row[2] and row[3]) then
      error(("the member '%s' of the type %s has no type or no doc"):format(tostring(row[1]), name),
        0)
    else
      made.members[#made.members + 1] = { name = row[1], type = row[2], doc = row[3] }
    end
  end
  for _, row in ipairs(rows) do add(row) end
  M.types[#M.types + 1] = made
  return made
end

local as_made = setmetatable({}, { __mode = "k" })  -- object -> a copy of its fields

-- Returns a deep copy; objects (tables with a metatable) in it are not copied.
local function copy_of(value)
  if type(value) ~= "table" or getmetatable(value) then return value end
  local out = {}
  for k, v in pairs(value) do out[k] = type(v) == "table" and copy_of(v) or v end
  return out
end

--- Makes the table of checked fields an object of the class whose metatable is mt, and returns it.
--- An object must not be changed afterwards: M.field refuses an object with a field that was
--- assigned later, since the new value has passed no check.
function M.object(fields, mt)
  as_made[fields] = copy_of(fields)
  return setmetatable(fields, mt)
end

-- Returns the path of a field that was assigned after the objects in `value` were made (of several,
-- the first by its text), and the class of the object that holds the field; nil if there is none.
-- made: the value at that time; class: the class of the object that contains `value`.
local function assigned_in(value, made, class)
  if type(value) == "table" and as_made[value] and made == value then
    made, class = as_made[value], getmetatable(value).__name
  end
  if value == made or value ~= value and made ~= made then return nil end
  if type(value) ~= "table" or type(made) ~= "table" then return "", class end
  local path, of
  for _, t in ipairs { value, made } do
    for k in next, t do
      local now, before = rawget(value, k), rawget(made, k)
      local seen = t == made and now ~= nil
      if not seen and (now ~= before or type(now) == "table") then
        local inner, holder = assigned_in(now, before, class)
        inner = inner and (type(k) == "number" and "[%d]" or ".%s"):format(k) .. inner
        if inner and (not path or inner < path) then path, of = inner, holder end
      end
    end
  end
  return path, of
end

-- Only M.object makes objects: a recipe that finds the metatable of one may set it, too.
local function is_a(name, value)
  return type(value) == "table" and as_made[value] ~= nil
    and getmetatable(value) == M.classes[name].mt
end

local function keys_of(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = tostring(k) end
  table.sort(keys)
  return keys
end
M.keys_of = keys_of

function M.merged(a, b)
  local out = {}
  for k, v in next, a do out[k] = v end
  for k, v in next, b do out[k] = v end
  return out
end

--- Sorts a list by the numbers or texts that key_of(entry, its place) returns, of equal ones by the
--- next; returns the list.
function M.sorted(list, key_of)
  local keys = {}
  for i, one in ipairs(list) do keys[one] = { key_of(one, i) } end
  table.sort(list, function(a, b)
    for i, key in ipairs(keys[a]) do
      if key ~= keys[b][i] then return key < keys[b][i] end
    end
    return false
  end)
  return list
end

--- Returns the entries of a list in lists of those with equal key_of(entry), in order of first
--- appearance; entries without a key are left out.
function M.grouped(list, key_of)
  local groups, by_key = {}, {}
  for _, one in ipairs(list) do
    local key = key_of(one)
    if key and not by_key[key] then
      by_key[key] = {}
      groups[#groups + 1] = by_key[key]
    end
    if key then table.insert(by_key[key], one) end
  end
  return groups
end

--- Returns all combinations of the values of `lists`, name -> list, each as name -> value; the last
--- of `names`, by default in alphabetical order, changes fastest.
function M.product(lists, names)
  local all = { {} }
  for _, name in ipairs(names or keys_of(lists)) do
    local more = {}
    for _, one in ipairs(all) do
      for _, v in ipairs(lists[name]) do more[#more + 1] = M.merged(one, { [name] = v }) end
    end
    all = more
  end
  return all
end

local MOST_SHOWN = 200  -- bytes of a text

--- Returns a value as errors show it: the beginning of a long text, NUL as \0 (messages end at
--- NUL), and no address.
local function show(v)
  if type(v) == "string" then
    local text = v:sub(1, MOST_SHOWN):gsub("%z", "\\0")
    return ("'%s'%s"):format(text, #v > MOST_SHOWN and ".." or "")
  end
  if type(v) == "table" then
    local class = (getmetatable(v) or {}).__name
    return as_made[v] and M.classes[class] and ("a moe.%s object"):format(class) or "a table"
  end
  if type(v) == "function" or type(v) == "thread" then return "a " .. type(v) end
  local short = type(v) == "number" and ("%g"):format(v)
  return short and tonumber(short) == v and short or tostring(v)
end

M.show = show

local function name_text(name) return type(name) == "string" and name or show(name) end

local LEAST_BEGIN = 4  -- letters that say which name begins with them

-- Returns the name that is most like this one, or the shortest that begins with it; or nil.
local function nearest(name, names)
  local near, text = core.nearest(name_text(name), names), name_text(name)
  for _, one in ipairs((near or "") == "" and #text >= LEAST_BEGIN and names or {}) do
    local longer = near and near ~= "" and #one >= #near
    if not longer and one:sub(1, #text) == text then near = one end
  end
  return near ~= "" and near or nil
end

local function guess(name, names)
  local near = nearest(name, names)
  return near and (". Did you mean '%s'?"):format(near)
end

local field_list

-- Returns the field that an entry of the engine's field tables describes (engine/base/field.h).
local function field_of(row)
  local field = M.merged(row, {})
  field.name, field.fields = nil, nil
  if row.doc == "" then field.doc = nil end
  if row.fields then field.type = field_list(row.fields) end
  if row.of then field.of = field_of(row.of) end
  return field
end

function field_list(rows)
  local fields = {}
  for _, row in ipairs(rows) do fields[row.name] = field_of(row) end
  return fields
end

local declared = {}
for _, row in ipairs(core.table "fields") do declared[row.name] = field_list(row.fields) end
declared.metrics = field_list(core.table "metrics")

--- Returns the engine's field table of this name, for example "cluster", as a field list.
function M.declared(name)
  return assert(declared[name], name .. ": the engine has no table of fields with this name")
end

--- Returns a copy of the field list with changes: changes[name] holds entries that replace entries
--- of the field `name`, or is a whole field if `fields` has none of that name.
function M.changed(fields, changes)
  local out = M.merged(fields, {})
  for name, change in pairs(changes) do out[name] = M.merged(fields[name] or {}, change) end
  return out
end

--- Returns a copy of the field that may be omitted and has no default: its value is then nil.
function M.optional(field)
  local out = M.merged(field, {})
  out.default, out.required = nil, nil
  return out
end

--- Returns the fields of a field list that have these names; each name must be in the list.
function M.picked(fields, names)
  local out = {}
  for _, name in ipairs(names) do
    out[name] = assert(fields[name], name .. ": the field list has no field of this name")
  end
  return out
end

--- Raises the user error "path: value is not allowed; give ...".
local function refuse(path, value, give, at)
  errors.user(("%s: %s is not allowed; give %s"):format(path, show(value), give), at)
end
M.refuse = refuse

--- Features that are not built -> the keys that other frameworks have for them.
M.UNBUILT = {
  ["sequence parallelism by heads"] = { "ulysses" },
  ["sharding of parameters (ZeRO stage 3)"] = { "fsdp" },
  ["decoding with a cache of keys and values"] = { "kv_cache", "decode", "max_new_tokens" },
}
-- Key of another framework -> what its error adds: that the feature is not built, or what it is
-- called here.
local NOT_BUILT = {}
for feature, keys in pairs(M.UNBUILT) do
  for _, key in ipairs(keys) do NOT_BUILT[key] = feature .. " is not implemented" end
end
for text, keys in pairs {
  ["optimizer states are sharded by `zero = 1` of moe.system; gradients and parameters (stages 2 "
    .. "and 3) are not"] = "zero zero_stage distributed_optimizer",
  ["activations are made again by `recompute = 'blocks'` of moe.system"] =
    "recompute activation_checkpointing gradient_checkpointing checkpoint_activations",
  ["the batch is spread over all ranks, `dp` of moe.grid, and each group of `ep` ranks (a field of "
    .. "the model or the grid) holds every expert once"] =
    "dp dp_size data_parallel data_parallel_size",
  ["blocks are spread over pipeline ranks by `grid = moe.grid { pp = N }`"] =
    "pp pp_size pipeline pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",
  ["products, and the rows between them, are split over ranks by `grid = moe.grid { tp = N }`"] =
    "tp tp_size tensor_parallel tensor_parallel_size tensor_model_parallel_size sp "
    .. "sequence_parallel",
  ["sequences are split over ranks by `grid = moe.grid { cp = N }`"] =
    "cp cp_size context_parallel context_parallel_size",
  ["products of experts are split over ranks by `grid = moe.grid { etp = N }`"] =
    "etp expert_tensor_parallel_size",
  ["a pipeline rank has several stages by a schedule in moe.system, such as "
    .. "`moe.pipeline.interleaved { chunks = 2 }`"] = "vpp",
  ["gradients are added up over the micro-batches of `grid = moe.grid { micro_batches = N }`; "
    .. "batch_per_device of the model is one micro-batch's"] = "gradient_accumulation "
    .. "gradient_accumulation_steps micro_batch micro_batches micro_batch_size num_microbatches "
    .. "microbatches",
} do
  for key in keys:gmatch "%S+" do NOT_BUILT[key] = text end
end

--- Returns "path: unknown key 'capcity'. Did you mean 'capacity'?" or, without a similar name, a
--- message that lists the valid names. For a key in NOT_BUILT, that text takes the place of both.
function M.unknown_text(path, what, name, names)
  local text = ("%s: unknown %s '%s'"):format(path, what, name_text(name))
  if what == "key" and NOT_BUILT[name] then return text .. "; " .. NOT_BUILT[name] end
  if #names == 0 then return text .. ", there are none" end
  return text .. (guess(name, names) or ", have: " .. table.concat(names, ", "))
end

--- Raises the user error with the message of M.unknown_text.
function M.unknown(path, what, name, names, at)
  errors.user(M.unknown_text(path, what, name, names), at,
    what == "key" and path .. "." .. tostring(name) or nil)
end

-- Raises the user error for keys that a table may not have, all at once.
local function unknown_keys(path, keys, names, at)
  table.sort(keys, function(a, b) return name_text(a) < name_text(b) end)
  if #keys == 1 then M.unknown(path, "key", keys[1], names, at) end
  local parts, have = {}, ""
  for i, key in ipairs(keys) do
    local near = nearest(key, names)
    local hint = NOT_BUILT[key] or near and ("did you mean '%s'?"):format(near)
    if not hint then have = "; have: " .. table.concat(names, ", ") end
    parts[i] = ("'%s'%s"):format(name_text(key), hint and (" (%s)"):format(hint) or "")
  end
  errors.user(("%s: unknown keys %s%s"):format(path, table.concat(parts, ", "), have), at,
    path .. "." .. name_text(keys[1]))
end

--- Makes `members` a table of the library's interface: reading another name is a user error.
function M.namespace(path, what, members)
  return setmetatable(members, { __tostring = function() return path end,
    __index = function(_, name)
      M.unknown(path, what, name, keys_of(members), errors.here())
    end })
end

local MOST_NESTED = 16

-- Raises a user error for the first string in `value` that is not UTF-8, since results are written
-- as JSON, and for tables in tables that have no end. Objects of the library are skipped: they were
-- checked when they were made.
local function check_texts(value, path, at, depth)
  if type(value) == "string" then
    local byte = core.invalid_byte(value)
    if byte then
      errors.user(("%s: is not UTF-8 from byte %d on; give UTF-8 text"):format(path, byte), at)
    end
  elseif type(value) == "table" and not getmetatable(value) then
    if depth > MOST_NESTED then
      errors.user(("%s: is a table in %d others, or in itself; at most %d are allowed"):format(path,
        depth, MOST_NESTED), at)
    end
    for k, v in pairs(value) do
      check_texts(k, path, at, depth + 1)
      check_texts(v, path .. "." .. tostring(k), at, depth + 1)
    end
  end
end

--- Makes a table of functions of the library's interface and documents them. rows: name = {
--- function, takes, gives, doc, ... }, where takes is a field list or a signature. If the function
--- returns a function that takes a table of fields, `fields` is their field list; `class` is the
--- name of the type of the table of fields; `assumed` means that numbers in it may be moe.assumed;
--- `example` is text in Lua.
--- others: members of the table that are not functions of this kind.
function M.functions(path, what, rows, others)
  local members = M.merged(others or {}, {})
  for name, row in pairs(rows) do
    local f, takes, gives, doc = unpack(row)
    if not (f and takes and gives and doc) then
      error(("%s.%s: give the function, what it takes, what it gives and a doc"):format(path, name),
        0)
    end
    M.calls[#M.calls + 1] = { name = (path .. "." .. name):gsub("^moe%.", ""), takes = takes,
      gives = gives, doc = doc, fields = row.fields, class = row.class, assumed = row.assumed,
      example = row.example }
    members[name] = f
  end
  return M.namespace(path, what, members)
end

--- Documents a type as M.record does, and returns the metatable of its objects. The caller defines
--- all methods of `rows` afterwards, and no others. Reading a name that is neither a method nor a
--- field of the type is a user error, except for numbers, since objects may be lists.
function M.methods(name, as, doc, rows)
  local class, made, known, names = {}, M.record(name, as, doc, rows), {}, {}
  made.class = class
  for _, m in ipairs(made.members) do
    known[m.name] = m.type:sub(1, 1) == "(" and "method" or "field"
    if known[m.name] == "method" then names[#names + 1] = m.name end
  end
  table.sort(names)
  class.__index, class.__tostring = class, function() return name end
  return setmetatable(class, { __index = function(_, key)
    if type(key) ~= "string" or known[key] == "field" or key:sub(1, 2) == "__" then return nil end
    M.unknown(name, "method", key, names, errors.here())
  end,
  -- Defines a method of the class; raises an error for a name that is not documented as a method. A
  -- method called with anything but an object of the class raises an error that suggests the ':'.
  __newindex = function(_, key, f)
    if known[key] ~= "method" then
      error(("the method %s:%s has no doc"):format(name, tostring(key)), 0)
    end
    rawset(class, key, function(self, ...)
      if getmetatable(self) ~= class then
        errors.user(("%s: is a ':' missing? Write x:%s(...), not x.%s(...)"):format(name, key, key),
          errors.here())
      end
      return f(self, ...)
    end)
  end })
end

--- Raises an error that names the first method that is documented but not defined, if any.
function M.check_methods()
  for _, made in ipairs(M.types) do
    for _, m in ipairs(made.class and made.members or {}) do
      if m.type:sub(1, 1) == "(" and not rawget(made.class, m.name) then
        error(("the method %s:%s is documented but not defined"):format(made.name, m.name), 0)
      end
    end
  end
end

local function range_text(field)
  if field.lo and field.hi then return (" from %s to %s"):format(show(field.lo), show(field.hi)) end
  if field.lo then return (" of at least %s"):format(show(field.lo)) end
  return ""
end

--- Makes a collector of the moe.assumed constants in a table that is checked under the path `root`.
--- Afterwards .found maps the path of each constant to { name, value, lo, hi, why }. The name is
--- the path with `as` in place of the root, so the same field has one name in all clusters. `ends`
--- maps names to "lo" or "hi": such a constant takes that end of its band as its value.
function M.collector(root, as, ends)
  return { root = root, as = as, ends = ends or {}, found = {} }
end

-- Raises a user error for an object with a field that was assigned after it was made.
local function check_as_made(value, path, at)
  local assigned, class = assigned_in(value, value)
  if not assigned then return end
  errors.user(("%s%s: was assigned after the %s was made, so its value is not checked; make a new "
    .. "%s instead"):format(path, assigned, class, class), at)
end

--- Returns whether the value is an object of the class of this name. path, at: as in M.field; with
--- them, a field of the object that was assigned after it was made is a user error.
function M.is_a(name, value, path, at)
  local is = is_a(name, value)
  if is and path then check_as_made(value, path, at) end
  return is
end

local function check_number(field, value, path, at, assumed)
  if assumed and is_a("assumed", value) then
    check_as_made(value, path, at)
    local name = assumed.as .. path:sub(#assumed.root + 1)
    assumed.found[path] = { name = name, value = value.value, lo = value.lo, hi = value.hi,
      why = value.why, source = value.source }
    for _, part in ipairs { "lo", "hi" } do
      check_number(field, value[part], path .. "." .. part, at)
    end
    value = value[assumed.ends[name] or "value"]
  end
  local fits = type(value) == "number" and value == value and math.abs(value) ~= math.huge
    and (field.type == "number" or value == math.floor(value))
    and not (field.lo and value < field.lo) and not (field.hi and value > field.hi)
  if fits then return value end
  refuse(path, value, (field.type == "integer" and "an integer" or "a number")
    .. range_text(field) .. (field.code and (" (%s)"):format(field.code) or ""), at)
end

-- Raises a user error if two values of the list are the same, or are objects of the same name.
local function check_distinct(list, path, at)
  local seen = {}
  for i, value in ipairs(list) do
    local name = type(value) == "table" and value.name or value
    if seen[name] then
      errors.user(("%s[%d]: '%s' is in the list twice; %s must differ"):format(path, i,
        tostring(name), type(value) == "table" and "names" or "values"), at,
        ("%s[%d]"):format(path, i))
    end
    if name == name then seen[name] = true end  -- NaN is refused where the value is used
  end
end

local array_mt = getmetatable(core.array {})  -- of lists that moe.read_json reads

local function check_list(field, value, path, at, assumed)
  local mt = getmetatable(value)
  if type(value) ~= "table" or mt and mt ~= array_mt then refuse(path, value, "a list", at) end
  local last = 0
  for key in pairs(value) do
    if type(key) ~= "number" or key < 1 or key ~= math.floor(key) then
      errors.user(("%s: must be a list; the key '%s' is not allowed"):format(path, tostring(key)),
        at, path .. "." .. tostring(key))
    end
    last = math.max(last, key)
  end
  for i = 1, last do
    if value[i] == nil then
      errors.user(("%s[%d]: is nil, though value number %.0f follows; does a function return "
        .. "nothing, or is a name misspelled?"):format(path, i, last), at,
        ("%s[%d]"):format(path, i))
    end
  end
  if last == 0 and field.least then
    errors.user(("%s: the list is empty; give at least one %s"):format(path, field.least), at)
  end
  local out = {}
  for i, entry in ipairs(value) do
    out[i] = M.field(field.of, entry, ("%s[%d]"):format(path, i), at, assumed)
  end
  if field.distinct then check_distinct(out, path, at) end
  return out
end

local function check_enum(field, value, path, at)
  for _, allowed in ipairs(field.enum) do
    if value == allowed then return value end
  end
  refuse(path, value, "one of: " .. table.concat(field.enum, ", ")
    .. (guess(value, field.enum) or ""), at)
end

--- Checks the value of one field and returns it; returns the field's default if the value is nil.
--- Raises a user error if it is not allowed, or is missing and required.
function M.field(field, value, path, at, assumed)
  if value == nil then
    if field.required then
      errors.user(path .. ": is missing" .. (field.doc and "; " .. field.doc or ""), at,
        path:match("^(.*)%."))
    end
    value = field.default
    if value == nil then return nil end
  end
  local kind = field.type
  if type(kind) == "table" then
    local out = M.check(kind, value, path, at, assumed)
    return field.complete and field.complete(out, path, at) or out
  end
  if kind == "list" then return check_list(field, value, path, at, assumed) end
  if field.by and type(value) == "table" and not getmetatable(value) then
    return M.check(field.by, value, path, at, assumed)
  end
  if kind == "integer" or kind == "number" then
    return check_number(field, value, path, at, assumed)
  end
  if M.classes[kind] then
    if not is_a(kind, value) then refuse(path, value, M.classes[kind].what, at) end
    check_as_made(value, path, at)
  elseif kind ~= "any" and type(value) ~= kind then
    refuse(path, value, field.instead and field.instead(value) or field.enum and "one of: "
      .. table.concat(field.enum, ", ") or "a " .. kind, at)
  end
  check_texts(value, path, at, 0)
  return field.enum and check_enum(field, value, path, at) or value
end

--- Checks a table against a field list; returns a new table with the values and defaults. `assumed`
--- is a collector (M.collector); without it moe.assumed constants are refused.
function M.check(fields, value, path, at, assumed)
  if type(value) ~= "table" or getmetatable(value) then refuse(path, value, "a table", at) end
  local unknown = {}
  for key in pairs(value) do
    if type(key) == "number" then
      errors.user(("%s: value number %g has no name; write name = value, with one of the names: %s")
        :format(path, key, table.concat(keys_of(fields), ", ")), at)
    end
    if fields[key] == nil then unknown[#unknown + 1] = key end
  end
  if #unknown > 0 then unknown_keys(path, unknown, keys_of(fields), at) end
  local out = {}
  for key, field in pairs(fields) do
    out[key] = M.field(field, value[key], path .. "." .. key, at, assumed)
  end
  return out
end

--- Returns a function that recipes call with a table: f(c, at, t) gets the checked table, the line
--- of the recipe and the table as given. path: the function's name.
function M.taking(fields, path, f)
  return function(t)
    local at = errors.here()
    return f(M.check(fields, t, path, at), at, t)
  end
end

--- Raises a user error for a key of a recipe's table that another key replaces (the field's
--- `replaces`, a list of names). given: the table as the recipe gives it, after check().
function M.check_replaced(fields, given, path, at)
  for key, value in pairs(given) do
    for _, name in ipairs(value ~= fields[key].default and fields[key].replaces or {}) do
      if given[name] ~= nil then
        errors.user(("%s.%s: has no effect beside %s; give one of the two"):format(path, name, key),
          at)
      end
    end
  end
end

--- Raises a user error unless exactly one of the fields a and b of t is given; maybe: at most one.
function M.one_of(t, a, b, path, at, maybe)
  local both = t[a] ~= nil and t[b] ~= nil
  if both or not maybe and t[a] == nil and t[b] == nil then
    errors.user(("%s: give either %s or %s, %s"):format(path, a, b,
      both and "not both" or "neither is given"), at, both and path .. "." .. b or nil)
  end
end

--- Returns the params of a policy or architecture (name -> default) as a field list; the type of an
--- option is that of its default.
function M.options(params, path, at)
  local out = {}
  for name, default in pairs(params) do
    local kind = type(default)
    if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
      refuse(path .. "." .. tostring(name), default, "a number, a string or a boolean", at)
    end
    out[name] = { type = kind, default = default }
  end
  return out
end

local assumed_mt = M.class("assumed", "moe.assumed {...}")

M.ASSUMED = {
  value = { type = "number", required = true, doc = "the value that is used" },
  lo = { type = "number", required = true, doc = "lower end of the band" },
  hi = { type = "number", required = true, doc = "upper end of the band" },
  why = { type = "string", required = true, doc = "the reason for this value and band" },
  source = { type = "string", doc = "where the value or its band comes from; 'none: ' and how "
    .. "it was chosen; or 'fitted: ' and to what" },
}

--- moe.assumed{ value =, lo =, hi =, why =, source = }: a constant that no data sheet or paper
--- gives, with the band [lo, hi] in which it is assumed to be.
function M.assumed(t)
  local at = errors.here()
  local a = M.check(M.ASSUMED, t, "moe.assumed", at)
  if not (a.lo <= a.value and a.value <= a.hi) then
    errors.user(("moe.assumed.value: %s is not between lo = %s and hi = %s"):format(a.value, a.lo,
      a.hi), at)
  end
  return M.object(a, assumed_mt)
end

return M
