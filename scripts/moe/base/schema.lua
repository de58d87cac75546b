-- Checks tables of the recipe against field lists: unknown keys, wrong types, numbers out of range,
-- at any depth. The same lists make the type stubs.
--
-- A field: { type =, default =, required =, lo =, hi =, enum = { ... }, doc = "what, unit",
--   complete = function(value, path, at): the checked value of a table, what hangs together in it }
-- type: "integer", "number", "string", "boolean", "table", "function", "any"; "list", with of = the
-- field of an entry; a table of fields; or a class of objects that the library made (M.class). as =
-- its type where documents say more. A number may be moe.assumed{...} where a collector stands by
-- (M.collector).
local core = require "moe.core"
local errors = require "moe.base.errors"

local M = {}

--- class -> { mt =, what = "a model, as moe.model.gpt2_moe {...}" }
M.classes = {}

--- Makes a class of objects; returns their metatable.
function M.class(name, what)
  local mt = { __name = name, __tostring = function() return "moe." .. name end }
  M.classes[name] = { mt = mt, what = what }
  return mt
end

--- What recipes call and what they get, for `moebench doc` and the type stubs. calls: { name,
--- takes = its fields or its signature, gives, doc, ... }; types: as core.table "types" has them.
M.calls, M.types = {}, {}

--- A type of what recipes get; `as`: what examples call it. rows: { name, type, doc } each, a
--- method's type its signature, as "(lane: string): string[]". fields: a field list whose fields
--- it has too, or nil. Returns the type; its `also` is another name that it is asked for by.
function M.record(name, as, doc, rows, fields)
  local made = { name = name, as = as, doc = doc, fields = fields or {}, members = {} }
  for i, row in ipairs(rows) do
    if not (row[2] and row[3]) then
      error(("'%s' of a %s has no type or no doc"):format(tostring(row[1]), name), 0)
    end
    made.members[i] = { name = row[1], type = row[2], doc = row[3] }
  end
  M.types[#M.types + 1] = made
  return made
end

local as_made = setmetatable({}, { __mode = "k" })  -- object -> a copy of its fields

-- Tables are copied, objects are not.
local function copy_of(value)
  if type(value) ~= "table" or getmetatable(value) then return value end
  local out = {}
  for k, v in pairs(value) do out[k] = copy_of(v) end
  return out
end

--- An object of the class whose metatable is mt, of its checked fields. It stays as it is: M.field
--- refuses one whose fields were assigned since, which no check has seen.
function M.object(fields, mt)
  as_made[fields] = copy_of(fields)
  return setmetatable(fields, mt)
end

-- The name of a field that was assigned after the objects in `value` were made, and the class of
-- its object; or nil. made: what `value` was; class: of the object that holds it.
local function assigned_in(value, made, class)
  if type(value) == "table" and as_made[value] and made == value then
    made, class = as_made[value], getmetatable(value).__name
  end
  if value == made or value ~= value and made ~= made then return nil end
  if type(value) ~= "table" or type(made) ~= "table" then return "", class end
  for _, t in ipairs { value, made } do
    for k in pairs(t) do
      local inner, of = assigned_in(rawget(value, k), rawget(made, k), class)
      if inner then
        return (type(k) == "number" and "[%d]" or ".%s"):format(k) .. inner, of
      end
    end
  end
end

local function is_a(name, value)
  return type(value) == "table" and getmetatable(value) == M.classes[name].mt
end
M.is_a = is_a

local function keys_of(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = tostring(k) end
  table.sort(keys)
  return keys
end
M.keys_of = keys_of

function M.merged(a, b)
  local out = {}
  for k, v in pairs(a) do out[k] = v end
  for k, v in pairs(b) do out[k] = v end
  return out
end

local function show(v)
  if type(v) == "string" then return ("'%s'"):format(v) end
  if type(v) == "table" then
    local class = (getmetatable(v) or {}).__name
    return class and M.classes[class] and ("a moe.%s object"):format(class) or "a table"
  end
  if type(v) == "function" then return "a function" end
  local short = type(v) == "number" and ("%g"):format(v)
  return short and tonumber(short) == v and short or tostring(v)
end

local function guess(name, names)
  local near = core.nearest(tostring(name), names)
  return near and near ~= "" and (". Did you mean '%s'?"):format(near)
end

local field_list

-- The entry of a field list of a row of the engine's.
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

--- The fields that the engine declares of what is called so ("cluster"), as a field list.
function M.declared(name) return assert(declared[name], name) end

--- The field list with what differs here: changes[name] are entries that replace the field's own,
--- or a field that stands here alone.
function M.changed(fields, changes)
  local out = M.merged(fields, {})
  for name, change in pairs(changes) do out[name] = M.merged(fields[name] or {}, change) end
  return out
end

--- The field where it may be left out, and nothing stands in for it.
function M.optional(field)
  local out = M.merged(field, {})
  out.default, out.required = nil, nil
  return out
end

--- Those fields of a list; each must be in it.
function M.picked(fields, names)
  local out = {}
  for _, name in ipairs(names) do
    out[name] = assert(fields[name], "no field is declared as " .. name)
  end
  return out
end

--- Raises "path: value is not allowed; give ...".
local function refuse(path, value, give, at)
  errors.user(("%s: %s is not allowed; give %s"):format(path, show(value), give), at)
end
M.refuse = refuse

-- Keys that other frameworks have and this library has not, and what they ask for.
local NOT_BUILT = {}
for feature, keys in pairs {
  ["tensor parallelism"] = { "tp", "tp_size", "tensor_parallel", "tensor_parallel_size",
    "tensor_model_parallel_size", "etp", "expert_tensor_parallel_size" },
  ["pipeline parallelism (stages of layers on different devices)"] = { "pp", "pp_size", "vpp",
    "pipeline_parallel", "pipeline_parallel_size", "pipeline_model_parallel_size" },
  ["context parallelism"] = { "cp", "cp_size", "context_parallel", "context_parallel_size" },
  ["sequence parallelism"] = { "sp", "sequence_parallel", "ulysses" },
  ["sharding of parameters and optimiser states"] = { "zero", "zero_stage", "fsdp",
    "distributed_optimizer" },
  ["accumulation of gradients over micro-batches"] = { "gradient_accumulation",
    "gradient_accumulation_steps", "micro_batch_size", "num_microbatches", "microbatches" },
  ["recomputation of activations"] = { "recompute", "activation_checkpointing",
    "gradient_checkpointing", "checkpoint_activations" },
} do
  for _, key in ipairs(keys) do NOT_BUILT[key] = feature .. " is not built" end
end
for _, key in ipairs { "dp", "dp_size", "data_parallel", "data_parallel_size" } do
  NOT_BUILT[key] = "data parallelism has no key: all ranks share the batch, and the model's ep "
    .. "says how many of them hold an expert once"
end

--- "path: unknown key 'capcity'. Did you mean 'capacity'?", or what there is.
function M.unknown_text(path, what, name, names)
  local text = ("%s: unknown %s '%s'"):format(path, what, tostring(name))
  if what == "key" and NOT_BUILT[name] then return text .. "; " .. NOT_BUILT[name] end
  return text .. (guess(name, names) or ", have: " .. table.concat(names, ", "))
end

--- Raises it.
function M.unknown(path, what, name, names, at)
  errors.user(M.unknown_text(path, what, name, names), at,
    what == "key" and path .. "." .. tostring(name) or nil)
end

--- A table of the library's surface: reading another name is an error.
function M.namespace(path, what, members)
  return setmetatable(members, { __tostring = function() return path end,
    __index = function(_, name)
      M.unknown(path, what, name, keys_of(members), errors.here())
    end })
end

-- Texts go to JSON; the path of the first one that JSON cannot hold. Objects of the library hold
-- texts that were checked when they were made.
local function check_texts(value, path, at, depth)
  if type(value) == "string" then
    local byte = core.invalid_byte(value)
    if byte then errors.user(("%s: is not UTF-8, from byte %d on"):format(path, byte), at) end
  elseif type(value) == "table" and depth < 8 and not getmetatable(value) then
    for k, v in pairs(value) do
      check_texts(k, path, at, depth + 1)
      check_texts(v, path .. "." .. tostring(k), at, depth + 1)
    end
  end
end

--- A table of functions of the library. rows: name = { function, takes, gives, doc } each, where
--- takes is a field list or a signature; fields = those of the table that what it gives takes,
--- class = the name of the fields' type, assumed = whether numbers may be moe.assumed. others: what
--- else is there.
function M.functions(path, what, rows, others)
  local members = M.merged(others or {}, {})
  for name, row in pairs(rows) do
    local f, takes, gives, doc = unpack(row)
    if not (f and takes and gives and doc) then
      error(("%s.%s has no doc, or does not say what it takes and gives"):format(path, name), 0)
    end
    M.calls[#M.calls + 1] = { name = (path .. "." .. name):gsub("^moe%.", ""), takes = takes,
      gives = gives, doc = doc, fields = row.fields, class = row.class, assumed = row.assumed }
    members[name] = f
  end
  return M.namespace(path, what, members)
end

--- The metatable of objects with the methods and fields of a type, as M.record: reading another
--- name is an error, but for numbers (lists). Methods are defined afterwards, those of the rows.
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
  -- A method gets an object of the class, or says what is missing.
  __newindex = function(_, key, f)
    if known[key] ~= "method" then
      error(("the method %s:%s has no doc"):format(name, tostring(key)), 0)
    end
    rawset(class, key, function(self, ...)
      if getmetatable(self) ~= class then
        errors.user(("%s: is a ':' missing? write x:%s(...), not x.%s(...)"):format(name, key, key),
          errors.here())
      end
      return f(self, ...)
    end)
  end })
end

--- Raises an error that names a method which is documented and not defined.
function M.check_methods()
  for _, made in ipairs(M.types) do
    for _, m in ipairs(made.class and made.members or {}) do
      if m.type:sub(1, 1) == "(" and not rawget(made.class, m.name) then
        error(("the method %s:%s is documented and not there"):format(made.name, m.name), 0)
      end
    end
  end
end

local function range_text(field)
  if field.lo and field.hi then return (" from %s to %s"):format(show(field.lo), show(field.hi)) end
  if field.lo then return (" of at least %s"):format(show(field.lo)) end
  return ""
end

--- Collects the moe.assumed constants of a table that is checked as `root`. .found: path -> what
--- the constant is; its name is the path with `as` for the root, the same for all clusters. `ends`:
--- name -> "lo" or "hi", for constants that stand at that end of their band.
function M.collector(root, as, ends)
  return { root = root, as = as, ends = ends or {}, found = {} }
end

local function check_number(field, value, path, at, assumed)
  if assumed and is_a("assumed", value) then
    local name = assumed.as .. path:sub(#assumed.root + 1)
    assumed.found[path] = { name = name, value = value.value, lo = value.lo, hi = value.hi,
      why = value.why }
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
    .. range_text(field), at)
end

local function check_list(field, value, path, at, assumed)
  if type(value) ~= "table" or getmetatable(value) then refuse(path, value, "a list", at) end
  for key in pairs(value) do
    if type(key) ~= "number" or key < 1 or key > #value or key ~= math.floor(key) then
      errors.user(("%s: is a list; '%s' has no place in it"):format(path, tostring(key)), at,
        path .. "." .. tostring(key))
    end
  end
  local out = {}
  for i, entry in ipairs(value) do
    out[i] = M.field(field.of, entry, ("%s[%d]"):format(path, i), at, assumed)
  end
  return out
end

local function check_enum(field, value, path, at)
  for _, allowed in ipairs(field.enum) do
    if value == allowed then return value end
  end
  refuse(path, value, "one of: " .. table.concat(field.enum, ", ")
    .. (guess(value, field.enum) or ""), at)
end

--- The checked value of one field: its default where it is nil.
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
  if kind == "integer" or kind == "number" then
    return check_number(field, value, path, at, assumed)
  end
  if M.classes[kind] then
    if not is_a(kind, value) then refuse(path, value, M.classes[kind].what, at) end
    local assigned, class = assigned_in(value, value)
    if assigned then
      errors.user(("%s%s: was assigned after the %s was made, and is not checked; make another %s")
        :format(path, assigned, class, class), at)
    end
  elseif kind ~= "any" and type(value) ~= kind then
    refuse(path, value, field.enum and "one of: " .. table.concat(field.enum, ", ")
      or "a " .. kind, at)
  end
  check_texts(value, path, at, 0)
  return field.enum and check_enum(field, value, path, at) or value
end

--- A new table with the checked values and defaults. `assumed` is a collector of moe.assumed
--- constants; without it they are refused.
function M.check(fields, value, path, at, assumed)
  if type(value) ~= "table" or getmetatable(value) then refuse(path, value, "a table", at) end
  for key in pairs(value) do
    if type(key) == "number" then
      errors.user(("%s: the value at place %g has no name; write name = value, with one of: %s")
        :format(path, key, table.concat(keys_of(fields), ", ")), at)
    end
    if fields[key] == nil then M.unknown(path, "key", key, keys_of(fields), at) end
  end
  local out = {}
  for key, field in pairs(fields) do
    out[key] = M.field(field, value[key], path .. "." .. key, at, assumed)
  end
  return out
end

local assumed_mt = M.class("assumed", "moe.assumed {...}")

M.ASSUMED = {
  value = { type = "number", required = true, doc = "the value used" },
  lo = { type = "number", required = true, doc = "lower end of the band" },
  hi = { type = "number", required = true, doc = "upper end of the band" },
  why = { type = "string", required = true, doc = "why this value" },
}

--- moe.assumed{ value =, lo =, hi =, why = }: a constant without a source.
function M.assumed(t)
  local at = errors.here()
  local a = M.check(M.ASSUMED, t, "moe.assumed", at)
  if not (a.lo <= a.value and a.value <= a.hi) then
    errors.user(("moe.assumed.value: %s does not lie between lo = %s and hi = %s"):format(a.value,
      a.lo, a.hi), at)
  end
  return setmetatable(a, assumed_mt)
end

return M
