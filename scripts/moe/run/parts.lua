-- --points 3/8: the third of eight parts of a sweep or search, whose points it takes in turn: the
-- third, the eleventh and so on. moe.results.merge puts the results of all parts together.
local core = require "moe.core"
local errors = require "moe.base.errors"
local points = require "moe.run.points"

local M = {}

--- Returns the number of the part and of all parts; nil without --points.
function M.asked()
  local text = core.args.points
  if not text then return nil end
  local part, parts = text:match "^(%d+)/(%d+)$"
  part, parts = tonumber(part), tonumber(parts)
  if not part or part < 1 or part > parts then
    errors.command(("--points %s: give PART/PARTS, as 3/8 for the third of eight"):format(text))
  end
  return part, parts
end

--- Returns the place of a point, by its labels, among all combinations of the values of `over`,
--- lists of labels.
function M.place(over, point)
  local place = 0
  for name, list in pairs(over) do
    local at = 0
    for i, value in ipairs(list) do
      if value == point[name] then at = i end
    end
    place = place * #list + at - 1
  end
  return place + 1
end

--- Returns those of a list that belong to this part of the points of `over`; all without --points.
--- point_of(entry): labels of the point to which an entry belongs.
function M.kept(list, over, point_of)
  local part, parts = M.asked()
  if not part then return list end
  local labels, kept = points.list_labels(over), {}
  for _, entry in ipairs(list) do
    if (M.place(labels, point_of(entry)) - 1) % parts == part - 1 then kept[#kept + 1] = entry end
  end
  return kept
end

return M
