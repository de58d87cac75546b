-- The published figures of all papers (papers/*.lua), indexed by id.
local figures = {}

for _, paper in ipairs { "lancet", "lina", "pipemoe", "proprophet" } do
  for id, figure in pairs(require("moe.papers." .. paper)) do figures[id] = figure end
end

return figures
