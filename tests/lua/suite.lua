-- Runs all tests, or those of a part, and ends the program.
local core = require "moe.core"

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

local set = core.args.set
local part, parts = (set.part or "1/1"):match "^(%d+)/(%d+)$"
for i, name in ipairs { "places", "fields", "policies", "experiments", "choices", "results",
  "effects", "scripts", "lists", "limits", "machine", "collectives", "configs", "op_time",
  "routing", "wrong",
  "engine/edits", "engine/disciplines", "engine/micro_batches", "engine/weights",
  "engine/dispatchers", "engine/mesh", "engine/mtp", "engine/pairs", "engine/pipelines",
  "engine/pipeline_ranks", "engine/turns", "engine/timelines", "engine/stand_ins",
  "formats/formats", "formats/loads", "formats/logs", "run/bundle", "run/infer", "run/runs",
  "run/journal", "figures/page", "figures/charts", "figures/sensitivity", "search/explore",
  "search/gap", "search/real", "search/search", "search/space", "papers/claims", "papers/lina",
  "papers/constants", "papers/pipemoe", "papers/prophet", "papers/balance", "command/settings",
  "command/diff" } do
  local asked = i % parts == part % parts
  if set.file then asked = name:match "[^/]+$" == set.file end
  if asked then require((name:gsub("[^/]+$", "test_%0"))) end
end

print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
