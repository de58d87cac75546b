-- Whether values have the types that the library documents: the types of schema.record, as the type
-- stubs have them ("number[]?", '"blocks"|"none"', "table<string, number>", "{ n: integer, label?:
-- string }", "moe.Overlap").
local core = require "moe.core"
local schema = require "moe.base.schema"

local M = {}

local BASIC = { any = true, boolean = true, number = true, string = true, table = true,
  ["nil"] = true }

local function is_list(value, of)
  if type(value) ~= "table" then return false end
  for key, entry in pairs(value) do
    if type(key) ~= "number" or key > #value or not of(entry) then return false end
  end
  return true
end

local function is_map(value, of)
  if type(value) ~= "table" then return false end
  for _, entry in pairs(value) do
    if not of(entry) then return false end
  end
  return true
end

-- Returns whether each member has its type. members: name -> function.
local function has_members(value, members)
  if type(value) ~= "table" then return false end
  for name, of in pairs(members) do
    if not of(value[name]) then return false end
  end
  return true
end

local checks = {}  -- functions that check a value, indexed by the text of the type
local reader = {}
local is_of_class

-- Reads a type from s.text at s.at on; returns the function that checks a value.
function reader.type(s)
  local one = reader.single(s)
  while s:take "^|" do
    local first, second = one, reader.single(s)
    one = function(value) return first(value) or second(value) end
  end
  return one
end

function reader.single(s)
  local of = reader.plain(s)
  while true do
    local inner = of
    if s:take "^%[%]" then
      of = function(value) return is_list(value, inner) end
    elseif s:take "^%?" then
      of = function(value) return value == nil or inner(value) end
    else
      return of
    end
  end
end

function reader.plain(s)
  local literal = s:take '^"([^"]*)"'
  if literal then return function(value) return value == literal end end
  if s:take "^{" then
    local members = {}
    repeat
      local name, optional = s:take "^([%w_]+)(%??):"
      local of = reader.type(s)
      members[name] = optional == "" and of or function(value) return value == nil or of(value) end
    until not s:take "^,"
    s:take "^}"
    return function(value) return has_members(value, members) end
  end
  if s:take "^table<" then
    reader.type(s)
    s:take "^,"
    local of = reader.type(s)
    s:take "^>"
    return function(value) return is_map(value, of) end
  end
  local name = s:take "^[%w_.]+"
  if name == "integer" then
    return function(value) return type(value) == "number" and value % 1 == 0 end
  elseif name == "true" then
    return function(value) return value == true end
  elseif BASIC[name] then
    return function(value) return name == "any" or type(value) == name end
  elseif not (name and name:find "^moe%.") then
    error(("'%s' is no type at byte %d"):format(s.text, s.at), 0)
  end
  return function(value) return is_of_class(value, name) end
end

-- Takes what the pattern matches, with the spaces after it; returns its captures.
local function take(s, pattern)
  local _, last, first, second = s.text:find(pattern, s.at)
  if not last then return nil end
  local taken = first or s.text:sub(s.at, last)
  s.at = s.text:find("%S", last + 1) or #s.text + 1
  return taken, second
end

local function check_of(text)
  if not checks[text] then
    local s = { text = text, at = 1, take = take }
    checks[text] = reader.type(s)
    if s.at <= #text then error(("'%s' is no type from byte %d on"):format(text, s.at), 0) end
  end
  return checks[text]
end

local types  -- of schema.record, indexed by class

local function record_of(class)
  if not types then
    types = {}
    for _, list in ipairs { core.table "types", schema.types } do
      for _, made in ipairs(list) do
        types["moe." .. made.name:gsub("^%l", string.upper):gsub(" (%l)", string.upper)] = made
      end
    end
  end
  return types[class]
end

local partial = false  -- may_lack of the outermost call of M.wrong

local function wrong(value, class, skip)
  local record = record_of(class)
  local function looked_at(name) return not (skip[name] or partial and value[name] == nil) end
  for _, m in ipairs(record.members) do
    if looked_at(m.name) and not check_of(m.type)(value[m.name]) then return m.name, m.type end
  end
  for name, field in pairs(record.fields or {}) do
    local given, wanted = value[name], field.type == "integer" and "number" or field.type
    local good = given == nil and field.maybe
      or type(given) == (BASIC[wanted] and wanted or "table")
    if looked_at(name) and not good then return name, field.as or field.type end
  end
end

--- Returns the name of the first member of `value` that does not have the type that the record's
--- class ("moe.Run") documents, and that type; nil if all have it. skip: names of members that are
--- not looked at. may_lack: whether members of it, and of members with a class, may be absent.
function M.wrong(value, class, skip, may_lack)
  partial = may_lack or false
  return wrong(value, class, skip)
end

-- Returns whether a value is of the class: of a record all members are checked; a value of another
-- class is a table.
function is_of_class(value, class)
  return type(value) == "table" and not (record_of(class) and wrong(value, class, {}))
end

return M
