-- luajit run.lua [PART PARTS]: tests of the Lua library, without the program; PART of PARTS: those
-- of every PARTS-th file. Status 1 when one fails.
local here = arg[0]:match("^(.*)/[^/]*$") or "."
local root = here .. "/../.."
package.path = ("%s/?.lua;%s/scripts/?.lua;%s/scripts/?/init.lua"):format(here, root, root)

local world = require "world"
world.scripts_dir = root .. "/scripts"
pairs = world.sorted_pairs  -- luacheck: ignore

local failed, passed = 0, 0

-- One test: a sentence and a function that raises an error when it is not true.
function package.loaded.test(sentence, body)
  local ok, why = xpcall(body, function(e)
    return type(e) == "table" and (e.message or "a table") or debug.traceback(e, 2)
  end)
  if ok then
    passed = passed + 1
  else
    failed = failed + 1
    print(("FAILED: %s\n  %s"):format(sentence, why))
  end
end

local part, parts = tonumber(arg[1]) or 1, tonumber(arg[2]) or 1
for i, name in ipairs { "places", "fields", "policies", "experiments", "choices", "results",
  "effects", "scripts", "lists", "machine", "collectives", "configs", "op_time",
  "routing", "formats/formats", "run/inference", "run/infer", "run/runs", "run/journal",
  "figures/page", "figures/charts", "figures/sensitivity", "search/explore", "search/real",
  "search/search",
  "search/space", "papers/claims", "papers/lina", "papers/pipemoe", "papers/prophet",
  "papers/balance", "command/settings", "command/diff" } do
  if i % parts == part % parts then require((name:gsub("[^/]+$", "test_%0"))) end
end

print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
