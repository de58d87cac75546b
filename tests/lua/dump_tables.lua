-- Prints the engine's tables, of which tables.lua is a copy:
--   moebench run tests/lua/dump_tables.lua --trust > tests/lua/tables.lua
local core = require "moe.core"

local function text_of(value)
  if type(value) ~= "table" then
    return type(value) == "string" and ("%q"):format(value) or tostring(value)
  end
  local parts, keys = {}, {}
  for _, v in ipairs(value) do parts[#parts + 1] = text_of(v) end
  for k in pairs(value) do
    if type(k) == "string" then keys[#keys + 1] = k end
  end
  table.sort(keys)
  for _, k in ipairs(keys) do parts[#parts + 1] = k .. " = " .. text_of(value[k]) end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

print "-- The engine's tables as core.table(kind) gives them, made by dump_tables.lua."
print "-- luacheck: no max line length"
print "return {"
for _, kind in ipairs { "executors", "fields", "gates", "metrics", "numbers", "ops", "passes",
  "placements", "types", "workloads" } do
  print(("  %s = {"):format(kind))
  for _, row in ipairs(core.table(kind)) do print(("    %s,"):format(text_of(row))) end
  print "  },"
end
print(("  clusters = %s,"):format(text_of(core.library_files("clusters", ".lua"))))
print(("  stacks = %s,"):format(text_of(core.library_files("stacks", ".lua"))))
print(("  gpus = %s,"):format(text_of(core.library_files("gpus", ".times"))))
print "}"
