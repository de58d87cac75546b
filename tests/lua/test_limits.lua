-- The page of limits names what is there, and what is not.
local core = require "moe.core"
local list = require "moe.list"
local schema = require "moe.base.schema"
local test = require "test"

local file = assert(io.open(core.scripts_dir .. "/../engine/limits.md"))
local page = file:read "*a"
file:close()

test("the page of limits has the names of each table, and no others", function()
  local kinds = 0
  for kind, cell in page:gmatch "\n| (%l+) | ([^|]+) |" do
    local named, have = {}, {}
    for name in cell:gmatch "`([^`]+)`" do named[name] = true end
    for _, row in ipairs(list.rows(kind)) do have[row.name] = true end
    local a, b = schema.keys_of(named), schema.keys_of(have)
    assert(table.concat(a, " ") == table.concat(b, " "), kind .. ": " .. table.concat(b, " "))
    kinds = kinds + 1
  end
  assert(kinds == 7)
end)

test("the page of limits names every feature that recipes are told is not built", function()
  for feature in pairs(schema.UNBUILT) do
    assert(page:find("\n| " .. feature .. " |", 1, true), feature)
  end
end)
