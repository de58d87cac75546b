local expect = require "expect"
local test = require "test"

local RECIPE = expect.HEAD .. [[
return moe.experiment { name = "x", model = m, cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf" {} } }
]]

test("a pass that no dimension lists is searched, unless it is for inference", function()
  expect.runs(RECIPE, {}, "run", function(_, core)
    local given = core.table
    function core.table(kind)
      if kind ~= "passes" then return given(kind) end
      local rows = { unpack(given(kind)) }
      for _, new in ipairs { { "settle", "placement" }, { "shuffle", "schedule" },
        { "serve", "placement", true } } do
        rows[#rows + 1] = { name = new[1], kind = new[2], inference = new[3] or false, doc = "",
          reads = "nothing", needs = {}, gives = {}, options = {} }
      end
      return rows
    end
  end)
  local space_lib = require "moe.search.space"  -- that of the recipe
  local all, choices = {}, {}
  for _, name in ipairs(space_lib.TECHNIQUES) do all[name] = true end
  for _, dimension in ipairs(space_lib.new(all, {}, {}).dimensions) do
    local names = {}
    for i = 2, #dimension.choices do names[i - 1] = dimension.choices[i].technique end
    choices[dimension.name] = names
  end
  expect.equal(choices.shuffle, { "shuffle" })
  local placements = " " .. table.concat(choices.placement, " ") .. " "
  for _, name in ipairs { "prophet", "eplb", "laer", "settle" } do
    assert(placements:find(" " .. name .. " ", 1, true), name)
  end
  for _, name in ipairs { "serve", "lina_inference", "placed" } do expect.equal(all[name], nil) end
end)
