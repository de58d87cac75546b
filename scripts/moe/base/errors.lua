-- Errors as tables { kind =, message = }, which only core.failure makes: a table that a recipe
-- raises has no kind, whatever fields it has. kind is "user" for a mistake in the recipe (the
-- message then begins with the recipe's file and line), "command" for a wrong command line, "run"
-- for a run that failed, "lua" for an error of Lua code with its traceback, and "stop" for the end
-- of an evaluation that was to go no further (M.stop_in).
local core = require "moe.core"
local locate = require "moe.base.locate"

local M = {}

-- Texts of a session, or of a recipe that is no file, by name.
local texts = core.recipe_text and { [core.recipe.name] = core.recipe_text } or {}

local function text_of(source)
  if texts[source] then return texts[source] end
  local ok, text = pcall(core.read_file, source)
  return ok and text or ""
end

local tail_line  -- of the recipe's last return

--- Returns the recipe's line that called into the library, { source, name, line }, or nil without a
--- recipe. Functions of the library call M.here first, since it looks for the line on the stack.
function M.here()
  local source, line = core.caller()
  if not source and core.recipe then  -- "return moe.experiment {...}" is a tail call
    source = core.recipe.name
    tail_line = tail_line or locate.last_return(text_of(source)) or 1
    line = tail_line
  end
  return source and { source = source, name = core.display_name(source), line = line }
end

--- Keeps the text of the recipe of this name, which begins anew and is no file.
function M.keep_text(name, text) texts[name], tail_line = text, nil end

--- Returns the text of the recipe; "" if there is none.
function M.recipe_text() return core.recipe and text_of(core.recipe.name) or "" end

--- Returns whether the recipe's text has this word.
function M.mentions(word)
  return M.recipe_text():find("%f[%w_]" .. word:gsub("%W", "%%%0") .. "%f[^%w_]") ~= nil
end

--- Returns the place `at`, where something was made that settings of the command line have changed.
--- settings: their text, which errors name.
function M.changed(at, settings)
  return { source = at.source, name = at.name, line = at.line, settings = settings }
end

-- The failure that M.user raises.
local function of_user(message, at, where)
  local place = at or M.here()
  if place then
    local path = where or message:match("^([%w_.%[%]]+): ") or ""
    local line = locate.line(text_of(place.source), place.line, path)
    message = (place.settings and "%s (%s:%d): %s" or "%s%s:%d: %s"):format(place.settings or "",
      place.name, line, message)
  end
  return core.failure("user", message)
end

--- Raises a user error at the line of the recipe that sets the field at fault. That field's path is
--- `where`, or by default the beginning of the message; it is searched in the call that starts at
--- `at`, a place from M.here() (by default, M.here() is called now) or M.changed().
function M.user(message, at, where)
  error(of_user(message, at, where), 0)
end

function M.command(message)
  error(core.failure("command", message), 0)
end

function M.run(message)
  error(core.failure("run", message), 0)
end

--- Raises the error of a run that failed after at least one step. The error has the field `result`,
--- the run's result of the steps before. at: the place of a user error.
function M.failed(result, at)
  local failure = result.wrong_input and of_user(result.stop_reason, at)
    or core.failure("run", result.stop_reason)
  failure.result = result
  error(failure, 0)
end

--- Returns whether an error says that the command was interrupted: in the engine, which then plans
--- and simulates nothing any more, at a line of the recipe or in a policy ("recipe.lua:6:
--- interrupted (in schedule 'mine')").
function M.is_interrupt(err)
  return core.kind_of(err) == "run" and (": " .. err.message):find(": interrupted", 1, true) ~= nil
end

--- Returns what f(...) returns. f is a function of moe.core; an error that f raises as a string (a
--- UserError in C++) is raised by M.user(error, at); any other error is raised unchanged, but a
--- deadline that passed while no line of the recipe ran gets the line `at`.
function M.call(at, f, ...)
  local results = { pcall(f, ...) }
  if results[1] then return unpack(results, 2, table.maxn(results)) end
  local e = results[2]
  if type(e) ~= "table" then M.user(tostring(e), at) end
  if at and core.kind_of(e) == "run" and e.message:find "^a call passed the deadline" then
    e.message = ("%s:%d: %s%s"):format(at.name, at.line, e.message, e.message:find "%(in model"
      and "; the model is too large to be built in that time: give fewer layers" or "")
  end
  error(e, 0)
end

--- A handler for xpcall that adds the traceback to a Lua error, so that the error
--- has the traceback also when it is raised again.
function M.with_traceback(err)
  if type(err) == "table" then return err end
  return core.failure("lua", tostring(err), debug.traceback("", 2):sub(2))
end

--- Returns true and what f(...) returns, or false and the user error that it raises. Other errors
--- are raised again.
function M.try(f, ...)
  local ok, made = xpcall(f, M.with_traceback, ...)
  if not ok and core.kind_of(made) ~= "user" then error(made, 0) end
  return ok, made
end

-- Returns whether a message has the text, and not only as the beginning of a longer word or number.
local function says(message, text)
  local _, last = message:find(text, 1, true)
  return last and not message:find("^%.?%w", last + 1)
end

--- Returns what f(...) returns. Of the texts `where`, such as "system 'tutel'" and "E = 8", those
--- that the message of an error of f does not have are added to it.
function M.within(where, f, ...)
  local results = { xpcall(f, M.with_traceback, ...) }
  if results[1] then return unpack(results, 2, table.maxn(results)) end
  local e, missing = results[2], {}
  if core.kind_of(e) == "" or M.is_interrupt(e) then error(e, 0) end
  local message = tostring(e.message)
  for _, text in ipairs(where) do
    if not says(message, text) then missing[#missing + 1] = text end
  end
  if #missing > 0 then
    e.message = ("%s (%s)"):format(message, table.concat(missing, ", "))
  end
  error(e, 0)
end

--- Ends the evaluation of the recipe here if the Lua state is in this mode. In mode "policies" a
--- rank thread evaluates the recipe only for the policies that are defined before anything runs; in
--- mode "check" (`moebench check`) nothing is run.
function M.stop_in(mode)
  if core.mode == mode then
    error(core.failure("stop", "the recipe starts a run or makes a plan here"), 0)
  end
end

return M
