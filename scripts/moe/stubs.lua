-- Type stubs for lua-language-server, made from the same field lists as the checks and `moebench
-- doc`. Write them with `moebench list stubs > moe.lua` to a folder that is listed in the editor's
-- setting workspace.library.
local schema = require "moe.base.schema"
local topics = require "moe.topics"

local M = {}

-- Appends the class of a topic to the lines `out`, with one line per member.
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

-- Returns the type of the function of a topic.
local function signature(t)
  return ("fun%s: %s"):format(t.takes or ("(t: %s)"):format(t.class), t.call.gives)
end

--- Returns the text of the stub file.
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
  for _, name in ipairs(schema.keys_of(tables)) do  -- a name may also be that of a function
    out[#out + 1] = "---@class moe." .. name
    if calls[name] then out[#out + 1] = "---@overload " .. signature(calls[name]) end
    out[#out + 1] = ("moe.%s = {}\n"):format(name)
  end
  for _, name in ipairs(schema.keys_of(calls)) do
    if not tables[name] then
      local member = ("moe." .. name):gsub("%.(%d[%w_]*)$", '["%1"]')  -- a name such as 1f1b
      out[#out + 1] = ("---%s\n---@type %s\n%s = function() end\n"):format(calls[name].doc,
        signature(calls[name]), member)
    end
  end
  out[#out + 1] = "return moe"
  return table.concat(out, "\n")
end

return M
