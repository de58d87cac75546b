-- The rules of the charts' classes. On the page, page.css gives the variables of chart.css the
-- colours of the theme; in a file they have those of the light theme, since SVG programs other than
-- browsers read no variables.
local core = require "moe.core"

local M = {}

--- Returns the text of a file of the page.
function M.resource(name)
  return core.read_file(("%s/moe/page/%s"):format(core.scripts_dir, name))
end

--- Returns the rules for a file that stands alone.
function M.alone()
  local colours = {}
  for name, value in M.resource("page.css"):gmatch "(%-%-[%w-]+): ([^;]+);" do
    colours[name] = colours[name] or value  -- the light theme is the first one
  end
  return (M.resource("chart.css"):gsub("var%((%-%-[%w-]+)%)", colours))
end

return M
