-- Guards the functions of Lua's libraries that are written in C and call Lua again: before each
-- call, `check` raises an error when little of the C stack is left. The C++ program runs this file
-- once in each Lua state, before the recipe. The guarded calls are tail calls, so that an error
-- names the caller's line.
local check = ...

local function held(f)
  return function(...)
    check()
    return f(...)
  end
end

local function hold(library, name) library[name] = held(library[name]) end

hold(string, "format")
hold(string, "gsub")
hold(table, "sort")
hold(coroutine, "resume")

local wrap = coroutine.wrap
rawset(coroutine, "wrap", function(f)
  if type(f) ~= "function" then return wrap(f) end
  return held(wrap(f))
end)
