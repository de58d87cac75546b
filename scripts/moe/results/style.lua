-- The rules of the charts' classes. On the page, page.css gives the variables of chart.css the
-- colours of the theme; in a file they have those of the light theme, since SVG programs other than
-- browsers read no variables.
local core = require "moe.core"

local M = {}

function M.resource(name)
  return core.read_file(("%s/moe/page/%s"):format(core.scripts_dir, name))
end

M.OPTIONS = {
  width = { type = "number", lo = 36, hi = 5000, doc = "width of a picture, in points" },
  font = { type = "string", doc = "the font of texts, such as Times" },
  names = { type = "table", default = {},
    doc = "names of systems and coordinates -> what pictures and tables show in their place" },
}

--- Returns the rules for a file that stands alone, with texts in a font, or in that of the page.
function M.alone(font)
  local colours = {}
  for name, value in M.resource("page.css"):gmatch "(%-%-[%w-]+): ([^;]+);" do
    colours[name] = colours[name] or value  -- the light theme is the first one
  end
  local rules = M.resource("chart.css"):gsub("var%((%-%-[%w-]+)%)", colours)
  if font then
    rules = rules:gsub("(12px )[^;]*", function(size) return ("%s%q"):format(size, font) end, 1)
  end
  return rules
end

return M
