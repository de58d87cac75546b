-- Runs the recipe that MOE_RECIPE names, with --trust, and writes the hash of every plan that it
-- makes to a line of index.txt in the folder MOE_PLANS. If MOE_TEXTS is set, that folder also gets
-- a file per plan, named by the plan's hash, with its text and the order of each lane. Used by
-- oracle.py.
local core = require "moe.core"
local recipe, folder = os.getenv "MOE_RECIPE", os.getenv "MOE_PLANS"
local texts = os.getenv "MOE_TEXTS"

local function write(name, mode, text)
  local file = assert(io.open(folder .. "/" .. name, mode))
  assert(file:write(text))
  assert(file:close())
end

local known = {}

local function keep(plan)
  local info = plan:info()
  write("index.txt", "a", info.hash .. "\n")
  if not texts or known[info.hash] then return end
  known[info.hash] = true
  local parts = { plan:text() }
  for _, lane in ipairs(info.lanes) do
    parts[#parts + 1] = ("\nlane %s\n%s\n"):format(lane, table.concat(plan:order(lane), "\n"))
  end
  for _, d in ipairs(info.log) do
    parts[#parts + 1] = ("log %s [%s] %s\n"):format(d.op, d.stage, d.why)
  end
  write(info.hash .. ".txt", "w", table.concat(parts))
end

local make = core.plan
function core.plan(...)
  local plan = make(...)
  keep(plan)
  return plan
end

-- A module of the recipe's folder, which is not this file's.
package.preload.shared = function() return dofile((recipe:gsub("[^/]+$", "shared.lua"))) end

return dofile(recipe)
