-- Which charts show the simulated runs of a sweep: lines over each numeric axis, distributions over
-- all points, and the shares of the step. With few points there is also a chart of bars per point.
local bars = require "moe.results.charts.bars"
local format = require "moe.results.report.format"
local lines = require "moe.results.charts.lines"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

local LEAST = 3            -- different values that make a numeric axis
local MAX_AXES = 3         -- axes that get a chart of medians
local MAX_POINTS = 12      -- with more points, and a numeric axis, there are no bars per point
local FOR_SPREAD = 8       -- points that make a distribution

local GIB = 2 ^ 30
local GPUS = "GPUs"  -- the name of the axis of device counts, which is the first

-- The quantities that are drawn over an axis: the value of a run, or nil; base: the run of the
-- first system at the same point.
local SPEEDUP = { name = "speedup", label = "speed-up", unit = "x", skip_first = true,
  of = function(run, base)
    return not run.oom and not base.oom and base.iteration_ms / run.iteration_ms or nil
  end }
local STEP = { name = "step", label = "time of a step", unit = "ms", from = 0,
  of = function(run) return not run.oom and run.iteration_ms or nil end }
local EXPOSED = { name = "exposed", label = "exposed communication", unit = "ms", from = 0,
  of = function(run) return not run.oom and run.exposed_comm_ms or nil end }
local MEMORY = { name = "memory", label = "peak memory", unit = "GiB", from = 0,
  of = function(run) return run.peak_bytes / GIB end }

local function distinct(groups, of)
  local seen, list = {}, {}
  for _, group in ipairs(groups) do
    local v = of(group[1])
    if v ~= nil and not seen[v] then seen[v], list[#list + 1] = true, v end
  end
  table.sort(list, function(a, b)
    if type(a) == type(b) and type(a) ~= "boolean" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return list
end

-- Whether two coordinates tell the same points apart: each value of one goes with one of the other.
local function same(groups, a, b)
  local there, back = {}, {}
  for _, group in ipairs(groups) do
    local x, y = a.of(group[1]), b.of(group[1])
    if x == nil or y == nil then return false end
    if there[x] == nil and back[y] == nil then there[x], back[y] = y, x end
    if there[x] ~= y or back[y] ~= x then return false end
  end
  return true
end

-- Returns the coordinates { name, of = function(run), values, numeric } in which points differ.
-- Of several that tell the same points apart only the first is kept; that of GPUs comes first.
local function dimensions(groups, R)
  local all = { { name = GPUS, of = function(run) return run.devices end } }
  for _, name in ipairs(format.coordinates(R, true)) do
    all[#all + 1] = { name = name, of = function(run)
      if run.point[name] ~= nil then return run.point[name] end
      return name == format.ENTRY and run.entry or nil
    end }
  end
  local kept = {}
  for _, d in ipairs(all) do
    d.values = distinct(groups, d.of)
    local new = #d.values > 1
    for _, other in ipairs(kept) do new = new and not same(groups, d, other) end
    d.numeric = #d.values >= LEAST
    for _, v in ipairs(d.values) do d.numeric = d.numeric and type(v) == "number" end
    if new then kept[#kept + 1] = d end
  end
  return kept
end

-- A sweep: { groups = runs of a point each, systems = names in order of appearance, number = the
-- place of a name there, dims, axes = the numeric ones, GPUs first, then those with most values }.
local function sweep_of(groups, R)
  local s = { groups = groups, systems = {}, number = {}, axes = {}, dims = dimensions(groups, R) }
  for run in R:each() do
    if not s.number[run.system] then
      s.systems[#s.systems + 1] = run.system
      s.number[run.system] = #s.systems
    end
  end
  for _, d in ipairs(s.dims) do
    if d.numeric then s.axes[#s.axes + 1] = d end
  end
  schema.sorted(s.axes, function(a, i) return a.name == GPUS and 0 or 1, -#a.values, i end)
  return s
end

-- Returns the values of a quantity by system and by key(run): by[system][key] = a list of numbers,
-- for each value one of a point.
local function collect(groups, quantity, first, key)
  local by = {}
  for _, group in ipairs(groups) do
    local base
    for _, run in ipairs(group) do
      if run.system == first then base = run end
    end
    for _, run in ipairs(group) do
      local v = base and quantity.of(run, base)
      local k = key(run)
      if v and k ~= nil then
        by[run.system] = by[run.system] or {}
        by[run.system][k] = by[run.system][k] or values.new {}
        table.insert(by[run.system][k], v)
      end
    end
  end
  return by
end

-- Returns the title of a quantity: "speed-up over raf".
local function said(s, quantity)
  return quantity.label .. (quantity.skip_first and " over " .. s.systems[1] or "")
end

-- Returns in what the groups differ beside the axis, behind the words: " over batch, gate", or "".
local function mixed(words, groups, s, axis)
  local names = {}
  for _, d in ipairs(s.dims) do
    local differ = false
    for _, group in ipairs(groups) do differ = differ or d.of(group[1]) ~= d.of(groups[1][1]) end
    if differ and d ~= axis then names[#names + 1] = d.name end
  end
  return #names > 0 and words .. table.concat(names, ", ") or ""
end

-- Returns what a title says if at one of the keys systems have unlike numbers of values in `by`
-- (collect): some fit in memory at fewer points.
local function unlike(by, s, keys)
  for _, key in ipairs(keys) do
    local least, most = math.huge, 0
    for _, system in ipairs(s.systems) do
      local n = #(by[system] and by[system][key] or {})
      least, most = math.min(least, n), math.max(most, n)
    end
    if least < most then return "; not every system at every point" end
  end
  return ""
end

-- Returns a chart of a quantity over an axis, a line per system: medians over the groups, of ratios
-- with whiskers from the smallest to the largest value; nil if there is nothing to draw.
local function over_axis(s, groups, axis, quantity, name, title)
  local by, series, several = collect(groups, quantity, s.systems[1], axis.of), {}, false
  for i, system in ipairs(s.systems) do
    if by[system] and not (quantity.skip_first and i == 1) then
      local one = { label = system, number = i, xs = {}, ys = {}, lo = {}, hi = {} }
      for _, x in ipairs(axis.values) do
        local list = by[system][x]
        if list then
          local k = #one.xs + 1
          one.xs[k], one.ys[k] = x, list:median()
          one.lo[k], one.hi[k] = list:min(), list:max()
          several = several or #list > 1
        end
      end
      if not quantity.skip_first then one.lo, one.hi = nil, nil end
      series[#series + 1] = one
    end
  end
  if #series == 0 then return nil end
  local what = mixed("; points differ in ", groups, s, axis)
  if several then
    what = (quantity.skip_first and ": median and range" or ": median")
      .. mixed(" over ", groups, s, axis)
  end
  return lines.lines { name = name, series = series,
    title = title .. what .. unlike(by, s, axis.values), x_label = axis.name,
    y_label = ("%s, %s"):format(quantity.label, quantity.unit), from = quantity.from or 1 }
end

local function median_charts(s, out)
  for i = 1, math.min(MAX_AXES, #s.axes) do
    local axis = s.axes[i]
    for _, quantity in ipairs(i == 1 and { SPEEDUP, STEP, EXPOSED, MEMORY } or { SPEEDUP }) do
      out[#out + 1] = over_axis(s, s.groups, axis, quantity, ("%s-by-%s"):format(quantity.name,
        axis.name), ("%s by %s"):format(said(s, quantity):gsub("^%l", string.upper), axis.name))
    end
  end
end

local function distribution(s, out)
  local by, series = collect(s.groups, SPEEDUP, s.systems[1], function() return "all" end), {}
  for i = 2, #s.systems do
    local list = by[s.systems[i]] and by[s.systems[i]].all
    if list then
      series[#series + 1] = { label = s.systems[i], number = i, values = list }
    end
  end
  if #s.groups < FOR_SPREAD or #series == 0 then return end
  out[#out + 1] = lines.distribution { name = "speedup-distribution", series = series,
    title = ("Speed-up over %s over %d points, cumulative%s"):format(s.systems[1], #s.groups,
      unlike(by, s, { "all" })),
    x_label = "speed-up, x" }
end

local function shares_of(s, axis)
  local list = {}
  for _, system in ipairs(s.systems) do
    for _, x in ipairs(axis and axis.values or { false }) do
      local runs = {}
      for _, group in ipairs(s.groups) do
        for _, run in ipairs(group) do
          local fits = run.system == system and not run.oom
          if fits and (not axis or axis.of(run) == x) then runs[#runs + 1] = run end
        end
      end
      local label = axis and ("%s, %s %s"):format(system, axis.name, tostring(x)) or system
      if #runs > 0 then list[#list + 1] = { label = label, runs = runs } end
    end
  end
  return list
end

local function shares(s, out)
  local function unlike_by(key, keys)
    return unlike(collect(s.groups, STEP, s.systems[1], key), s, keys)
  end
  out[#out + 1] = bars.shares("shares", ("Shares of the step by system, sums over %d points%s")
    :format(#s.groups, unlike_by(function() return "all" end, { "all" })), shares_of(s))
  local axis = s.axes[1]
  if axis and #s.systems * #axis.values <= 60 then
    out[#out + 1] = bars.shares("shares-by-" .. axis.name, ("Shares of the step by system and %s")
      :format(axis.name) .. mixed(", sums over ", s.groups, s, axis)
      .. unlike_by(axis.of, axis.values), shares_of(s, axis))
  end
end

-- Returns a chart of the step's time over the first axis for each combination of the other
-- coordinates, if there are several.
local function panels(s)
  local axis, out = s.axes[1], {}
  if not axis then return out end
  local function rest_of(group)
    local parts = {}
    for _, d in ipairs(s.dims) do
      local v = d ~= axis and d.of(group[1])
      if d ~= axis and v ~= nil then parts[#parts + 1] = ("%s %s"):format(d.name, tostring(v)) end
    end
    return table.concat(parts, ", ")
  end
  local lists = schema.grouped(s.groups, rest_of)
  for i, groups in ipairs(#lists > 1 and lists or {}) do
    out[i] = over_axis(s, groups, axis, STEP, ("step-%d"):format(i), rest_of(groups[1]))
  end
  return out
end

local function point_bars(s, title_of)
  local out = {}
  for i, group in ipairs(s.groups) do
    local list, fits = {}, false
    for k, run in ipairs(group) do
      list[k] = { bound = not run.oom and run.lower_bound_ms or nil,
        bars = { bars.step(format.system_text(run), run, run) } }
      fits = fits or not run.oom
    end
    if fits then out[#out + 1] = bars.steps(("bars-%d"):format(i), title_of(group[1]), list) end
  end
  return out
end

--- Returns the charts of simulated runs: overview, a list for all points together; panels, a list
--- of lines over the first numeric axis, one for each combination of the other coordinates; points,
--- a list of bars, one for each point. groups: the runs of each point; title_of(run): the title of
--- a point.
function M.charts(groups, R, title_of)
  local s, overview = sweep_of(groups, R), {}
  if #s.systems > 1 or #s.axes > 0 then median_charts(s, overview) end
  if #s.systems > 1 then distribution(s, overview) end
  if #groups > 1 then shares(s, overview) end
  local few = #groups <= MAX_POINTS or #s.axes == 0
  return { overview = overview, panels = panels(s), points = few and point_bars(s, title_of) or {} }
end

return M
