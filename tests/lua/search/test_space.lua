local expect = require "expect"
local test = require "test"
local world = require "world"

test("a pass that no dimension lists is searched, unless it is for inference", function()
  local rows, all, choices = {}, {}, {}
  for i, new in ipairs { { "settle", "placement" }, { "shuffle", "schedule" },
    { "serve", "placement", true } } do
    rows[i] = { name = new[1], kind = new[2], inference = new[3] or false, doc = "",
      reads = "nothing", needs = {}, gives = {}, options = {} }
  end
  world.with_rows("passes", rows, function()
    local space_lib = require "moe.search.space"
    for _, name in ipairs(space_lib.TECHNIQUES) do all[name] = true end
    for _, dimension in ipairs(space_lib.new(all, {}, {}).dimensions) do
      local names = {}
      for i = 2, #dimension.choices do names[i - 1] = dimension.choices[i].technique end
      choices[dimension.name] = names
    end
  end)
  expect.equal(choices.shuffle, { "shuffle" })
  local placements = " " .. table.concat(choices.placement, " ") .. " "
  for _, name in ipairs { "prophet", "eplb", "laer", "settle" } do
    assert(placements:find(" " .. name .. " ", 1, true), name)
  end
  for _, name in ipairs { "serve", "lina_inference", "placed" } do expect.equal(all[name], nil) end
end)
