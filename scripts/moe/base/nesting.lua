-- Functions of C in Lua's libraries that call Lua, held to the C stack: `check` raises an error
-- where little of it is left. Run once by the host for each state, before recipes get the
-- libraries. The calls are tail calls, so that errors name the caller's line.
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
