-- Type stubs for lua-language-server, of the same tables as the checks and `moebench doc`:
-- `moebench list stubs > moe.lua`, in a folder that the editor's workspace.library names.
local schema = require "moe.base.schema"
local topics = require "moe.topics"

local M = {}

-- What the table of fields, or the value, is to the editor: a line for each member.
local function class(out, t)
  out[#out + 1] = ("---@class %s %s"):format(t.class, t.doc)
  for _, m in ipairs(t.members) do
    local doc = table.concat({ m.doc, m.range and ("(%s)"):format(m.range) or "",
      m.default and ("[%s]"):format(m.default) or "" }, " "):gsub(" +", " "):gsub(" $", "")
    local self = m.method and m.type:gsub("^%(%)", "(self)"):gsub("^%((%w)", "(self, %1")
    if m.name == "()" then
      out[#out + 1] = ("---@overload fun%s %s"):format(m.type, doc)
    elseif m.name == "#" then
      out[#out + 1] = "---@operator len: " .. m.type
    else
      out[#out + 1] = ("---@field %s%s %s %s"):format(m.name, m.optional and "?" or "",
        m.method and "fun" .. self or m.assumed and m.type .. "|moe.Assumed" or m.type, doc)
    end
  end
  out[#out + 1] = ""
end

local function signature(t)
  return ("fun%s: %s"):format(t.takes or ("(t: %s)"):format(t.class), t.call.gives)
end

--- The text of the stub file.
function M.text()
  local out, classes, calls, tables = { "---@meta moe", "-- Made by `moebench list stubs`.\n" }, {},
    {}, {}
  for _, t in ipairs(topics.all()) do
    if t.call then calls[t.name], tables[t.name:match "^(.*)%." or ""] = t, true end
    if t.class and not classes[t.class] then
      classes[t.class] = true
      class(out, t)
    end
  end
  for _, name in ipairs(schema.keys_of(schema.classes)) do
    local given = "moe." .. topics.camel(name)
    if not classes[given] then out[#out + 1] = "---@class " .. given end
  end
  out[#out + 1] = "\n---@class moe\n---@field version string\nlocal moe = {}\n"
  tables[""] = nil
  for _, name in ipairs(schema.keys_of(tables)) do  -- one of them is a function, too
    out[#out + 1] = "---@class moe." .. name
    if calls[name] then out[#out + 1] = "---@overload " .. signature(calls[name]) end
    out[#out + 1] = ("moe.%s = {}\n"):format(name)
  end
  for _, name in ipairs(schema.keys_of(calls)) do
    if not tables[name] then
      out[#out + 1] = ("---%s\n---@type %s\nmoe.%s = function() end\n"):format(calls[name].doc,
        signature(calls[name]), name)
    end
  end
  out[#out + 1] = "return moe"
  return table.concat(out, "\n")
end

return M
