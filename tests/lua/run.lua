-- moebench run tests/lua/run.lua --trust [--set part=1/2 | --set file=places]: tests of the Lua
-- library. Each runs recipes on a library loaded anew. The status is 1 when one fails.
local core = require "moe.core"

-- Lua's own require, which also finds the files of tests. Their chunks have names without '@', so
-- that no line of theirs counts as one of a recipe.
local require = getfenv(0).require
table.insert(package.loaders, 2, function(name)
  local path = ("%s/%s.lua"):format(core.recipe_dir, name)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return assert(loadstring(text, "=" .. path))
end)

return require "suite"  -- a tail call, which leaves no frame of this file
