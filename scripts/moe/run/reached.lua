-- A text of all that functions of a recipe can reach: their code, variables and globals, and what
-- these hold. With an equal text they do the same, unless they read a file. Some values have no
-- such text: coroutines, objects of the engine, and C functions that were made while the recipe
-- ran, as those of coroutine.wrap and string.gmatch.
local core = require "moe.core"
local util = require "jit.util"

local M = {}

local MOST_VALUES = 20000  -- of a policy; with more, it has no text

-- What was there before the recipe and stays as it is: function or table -> its name, or true.
local fixed = {}

-- LuaJIT's interpreter replaces two instructions of a loop over pairs() when the loop first runs
-- and `pairs` is not Lua's own: opcode -> the opcode that replaces it.
local replaced = {}

local function opcode(f, pc) return util.funcbc(f, pc) % 256 end

local function learn_replaced()
  local function loop(pairs) for _ in pairs() do end end
  local before, count = {}, util.funcinfo(loop).bytecodes
  for pc = 0, count - 1 do before[pc] = opcode(loop, pc) end
  loop(function() return function() end end)
  for pc = 0, count - 1 do replaced[before[pc]] = opcode(loop, pc) end
end

-- Names the functions in the table t, which a recipe can read and change, and in the tables in it.
-- Adds these tables to the set `open`.
local function name_functions(t, path, open)
  open[t] = true
  for key, value in pairs(t) do
    local name = ("%s.%s"):format(path, tostring(key))
    if type(value) == "function" then
      fixed[value] = fixed[value] or name
    elseif type(value) == "table" and not open[value] then
      name_functions(value, name, open)
    end
  end
end

local function each_upvalue(f, each)
  for i = 1, math.huge do
    local name, value = debug.getupvalue(f, i)
    if not name then break end
    each(value)
  end
end

-- Returns a table that the program keeps for the recipe: its "globals" or its "modules".
local function of_recipe(name) return debug.getregistry()["moe.recipe_" .. name] or {} end

--- Called when the library is loaded and no code of the recipe has run yet. moe: the module.
function M.begin(moe)
  local open, seen, list = {}, {}, {}
  local function add(value)
    local kind = type(value)
    if seen[value] or kind ~= "table" and kind ~= "function" then return end
    seen[value] = true
    if not open[value] then fixed[value] = fixed[value] or true end
    list[#list + 1] = value
  end
  learn_replaced()
  name_functions(of_recipe "globals", "_G", open)
  name_functions(moe, "moe", open)
  for _, f in pairs(core) do
    if type(f) == "function" then fixed[f], seen[f] = true, true end
  end
  seen[core] = true
  add(of_recipe "globals")
  add(moe)
  while #list > 0 do
    local value = table.remove(list)
    add(debug.getmetatable(value))
    if type(value) == "function" then
      each_upvalue(value, add)
    else
      for key, v in next, value do
        add(key)
        add(v)
      end
    end
  end
end

--- Returns whether a value is a function of the recipe, or one that a call of the recipe made.
function M.is_own(value) return type(value) == "function" and not fixed[value] end

--- Returns whether a table is the library's own, in which no value of the recipe is.
function M.is_fixed(value) return fixed[value] ~= nil end

local function name_of(value)
  if fixed[value] ~= true then return fixed[value] end
  if type(value) == "table" then return tostring(rawget(value, "__name")) end
  local info = debug.getinfo(value, "S")
  return ("%s:%d"):format(info.source, info.linedefined)
end

local add

-- Adds a function or an inner function of it: instructions, names of variables, constants.
local function add_code(code, state)
  local info, parts = util.funcinfo(code), {}
  for pc = 0, info.bytecodes - 1 do
    local instruction, op = util.funcbc(code, pc), opcode(code, pc)
    parts[pc + 1] = instruction - op + (replaced[op] or op)
  end
  for i = 0, info.upvalues - 1 do parts[#parts + 1] = util.funcuvname(code, i) end
  state[#state + 1] = table.concat(parts, " ")
  for i = -info.gcconsts, info.nconsts - 1 do
    local constant = util.funck(code, i)
    if type(constant) == "proto" then add_code(constant, state) else add(constant, state) end
  end
end

local function add_function(f, state)
  if not util.funcinfo(f).bytecodes then
    state.refused = true
    return
  end
  add_code(f, state)
  each_upvalue(f, function(value) add(value, state) end)
  add(getfenv(f), state)
end

local function add_table(t, state)
  for key, value in pairs(t) do
    add(key, state)
    add(value, state)
  end
  add(debug.getmetatable(t), state)
end

-- Adds a value to the list of texts `state`, and all that can be reached from it; tables and
-- functions are added once.
function add(value, state)
  local kind = type(value)
  state.refused = state.refused or #state >= MOST_VALUES
  if state.refused then return end
  if fixed[value] then
    state[#state + 1] = kind .. name_of(value)
  elseif kind == "table" or kind == "function" then
    local before = state.seen[value]
    state[#state + 1] = kind .. (before or "")
    if before then return end
    state.n = state.n + 1
    state.seen[value] = state.n
    if kind == "table" then add_table(value, state) else add_function(value, state) end
  elseif kind == "string" then
    state[#state + 1] = ("string%d:%s"):format(#value, value)
  elseif kind == "number" then
    state[#state + 1] = ("number%.17g"):format(value)
  elseif kind == "boolean" or kind == "nil" or value == core.null then
    state[#state + 1] = tostring(value)
  else
    state.refused = true
  end
end

--- Returns the text of all that the functions can reach; nil if there is none. With --trust there
--- is none for any function of a recipe, since it can reach the machine.
function M.text(functions)
  if #functions == 0 then return "" end
  local state = { seen = {}, n = 0, refused = core.args.trust }
  for _, f in ipairs(functions) do add(f, state) end
  add(of_recipe "modules", state)
  return not state.refused and table.concat(state, ",") or nil
end

return M
