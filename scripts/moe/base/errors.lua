-- Errors of the user's making: one table {kind="user", message=...} that the core makes (a table of
-- the recipe's own has no kind, whatever it says), at the recipe's own line; or
-- kind="command", where the command line is wrong. kind="run": a run failed.
local core = require "moe.core"
local locate = require "moe.base.locate"

local M = {}

local function text_of(source)
  local ok, text = pcall(core.read_file, source)
  return ok and text or ""
end

--- The recipe's line that called into the library: { source, name, line }, or nil without a recipe.
--- Take it before anything else: it is a place on the stack.
function M.here()
  local source, line = core.caller()
  if not source and core.recipe then  -- "return moe.experiment {...}" is a tail call
    source = core.recipe.name
    line = locate.last_return(text_of(source)) or 1
  end
  return source and { source = source, name = core.display_name(source), line = line }
end

--- Raises a user error. A message starts with the path of the field at fault, which is looked up in
--- the call at the place `at` (from M.here(); now, unless given); `where` is the path to look up
--- where it is another.
function M.user(message, at, where)
  local place = at or M.here()
  if place then
    local path = where or message:match("^([%w_.%[%]]+): ") or ""
    local line = locate.line(text_of(place.source), place.line, path)
    message = ("%s:%d: %s"):format(place.name, line, message)
  end
  error(core.failure("user", message), 0)
end

--- Raises an error of the command line.
function M.command(message)
  error(core.failure("command", message), 0)
end

--- Raises the error of a run that failed; result: what was complete before, or nil.
function M.run(message, result)
  local failure = core.failure("run", message)
  failure.result = result
  error(failure, 0)
end

--- Calls a function of the core and gives its UserError the recipe's line.
function M.call(at, f, ...)
  local results = { pcall(f, ...) }
  if results[1] then return unpack(results, 2, table.maxn(results)) end
  local e = results[2]
  if type(e) == "table" then error(e, 0) end
  M.user(tostring(e), at)
end

--- A handler for xpcall: a Lua error keeps its traceback when it is raised again.
function M.with_traceback(err)
  if type(err) == "table" then return err end
  return core.failure("lua", tostring(err), debug.traceback("", 2):sub(2))
end

--- In this mode the evaluation of the recipe ends here. "policies": a rank's state, which wants the
--- policies that are defined before anything runs; "check": nothing is run.
function M.stop_in(mode)
  if core.mode == mode then error(core.failure("stop", "the recipe runs something here"), 0) end
end

return M
