-- In what groups of executed runs differ.
local core = require "moe.core"
local results = require "moe.results.results"
local schema = require "moe.base.schema"

local M = {}

-- Returns name -> value of the coordinates that are equal in all points of a run.
local function shared_point(run)
  local out = {}
  for name, value in pairs(run.points[1]) do
    out[name] = value
    for _, point in ipairs(run.points) do
      if point[name] ~= value then out[name] = nil end
    end
  end
  return out
end

-- Returns of each of the tables name -> value a text of those in which they differ: "gate = top2".
local function differing(tables)
  local texts = {}
  for i, one in ipairs(tables) do
    local parts = {}
    for _, name in ipairs(schema.keys_of(one)) do
      local differs = false
      for _, other in ipairs(tables) do differs = differs or other[name] ~= one[name] end
      if differs then parts[#parts + 1] = ("%s = %s"):format(name, tostring(one[name])) end
    end
    texts[i] = table.concat(parts, ", ")
  end
  return texts
end

-- Returns for each group of runs a text of the coordinates in which the groups differ.
local function point_differences(groups)
  local shared = {}
  for g, runs in ipairs(groups) do shared[g] = shared_point(runs[1]) end
  return differing(shared)
end

-- Paths of the fields of a run that every heading of executed runs shows.
local SAID = { device_name = true, devices = true, routing = true, ["link.bytes_per_s"] = true,
  ["link.latency_us"] = true, pace = true }
for _, name in ipairs { "layers", "hidden", "seq", "batch_per_device", "experts", "gate",
  "capacity_factor" } do
  SAID["parameters." .. name] = true
end

--- Returns a value as text; different numbers give different texts.
function M.exact(value)
  return type(value) == "number" and core.json_encode(value) or tostring(value)
end

--- Adds path -> text to `out` for each plain value that `value` contains; returns out. path: where
--- `value` is, or nil.
function M.leaves(value, path, out)
  if type(value) ~= "table" then
    out[path] = M.exact(value)
    return out
  end
  for key, inner in pairs(value) do
    M.leaves(inner, path and ("%s.%s"):format(path, tostring(key)) or key, out)
  end
  return out
end

-- Returns for each group of runs a text of the fields in which the groups differ and that the
-- headings do not show: "optimizer.lr = 0.1".
local function case_differences(groups)
  local cases, all, shown = {}, {}, {}
  for g, runs in ipairs(groups) do
    local case = results.case_of(runs[1])
    case.cluster_parameters = nil  -- of an executed run they are those of the link
    cases[g] = M.leaves(case, nil, {})
    for path in pairs(cases[g]) do all[path] = not SAID[path] or nil end
  end
  -- The name of the architecture stands for the fields that only some architectures have.
  for _, case in ipairs(cases) do
    for path in pairs(all) do
      if path:find("^parameters%.") and not case[path] then all[path] = nil end
    end
  end
  for g, case in ipairs(cases) do
    shown[g] = {}
    for path in pairs(all) do
      shown[g][path:gsub("^parameters%.", "")] = case[path] or "none"
    end
  end
  return differing(shown)
end

--- Returns for each group of executed runs the lines that state in what it differs from the others.
function M.of(groups)
  local points, cases, lines = point_differences(groups), case_differences(groups), {}
  for g in ipairs(groups) do
    lines[g] = {}
    if points[g] ~= "" then lines[g][1] = "Points: " .. points[g] end
    if cases[g] ~= "" then lines[g][#lines[g] + 1] = "Here: " .. cases[g] end
  end
  return lines
end

return M
