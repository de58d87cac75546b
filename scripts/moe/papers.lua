-- Published figures of all papers, by id: papers/*.lua.
local figures = {}

for _, paper in ipairs { "lancet", "lina", "pipemoe", "proprophet" } do
  for id, figure in pairs(require("moe.papers." .. paper)) do figures[id] = figure end
end

return figures
