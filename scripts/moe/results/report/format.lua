-- Texts that the tables of runs share: times, names of systems, and the coordinates of points.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local values = require "moe.base.values"

local M = {}

--- Returns a time in ms as text; "-" for nil.
function M.ms(v)
  if not v then return "-" end
  return ("%." .. (v >= 100 and 0 or v >= 10 and 1 or 2) .. "f"):format(v)
end

-- Returns "4", or "4,2,4" if layers have different degrees.
local function degrees_text(degrees)
  local same = true
  for _, degree in ipairs(degrees) do same = same and degree == degrees[1] end
  return same and tostring(degrees[1]) or table.concat(degrees, ",")
end

--- Returns the system's name with what was chosen for it: option or system, degrees, packing, and
--- the passes that have fields of a system.
function M.system_text(run)
  local chosen = { run.choice }
  if run.degrees then chosen[#chosen + 1] = "degree=" .. degrees_text(run.degrees) end
  if run.packing then chosen[#chosen + 1] = ("packing=%d"):format(run.packing.n) end
  for _, stage in ipairs(run.stages or {}) do
    local field = system_lib.FOR_PASS[stage.name]
    local value = field and stage.options[field[1]]
    if value then chosen[#chosen + 1] = ("%s=%s"):format(stage.name, value) end
  end
  return #chosen > 0 and ("%s (%s)"):format(run.system, table.concat(chosen, " ")) or run.system
end

--- Name of the coordinate that holds the number of the entry in the experiment's `run`; it is shown
--- if several entries simulate.
M.ENTRY = "run[]"

function M.coordinate(run, name)
  if name == M.ENTRY then return tostring(run.entry) end
  return tostring(run.point[name])
end

--- Returns the names of the coordinates of the runs' points. "nodes" is omitted if it follows from
--- the number of devices, unless `all` is true.
function M.coordinates(R, all)
  local names, nodes, entry = {}, {}, R.runs[1] and R.runs[1].entry
  for run in R:each() do
    for name in pairs(run.point) do names[name] = names[name] or all or name ~= "nodes" or nil end
    local seen = nodes[run.devices] or run.point.nodes
    nodes[run.devices] = seen
    if seen ~= run.point.nodes then names.nodes = true end
    if run.entry ~= entry then names[M.ENTRY] = true end
  end
  return schema.keys_of(names)
end

--- Returns the first cells of a row, which name the point of a run. They are empty if `said` is
--- true, which means that the row above has the same point.
function M.point_cells(run, names, said)
  local cells = {}
  for i, name in ipairs(names) do cells[i] = said and "" or M.coordinate(run, name) end
  cells[#cells + 1] = said and "" or run.devices or "-"
  return cells
end

--- step_text returns the time of a step as text, "OOM" for a plan that does not fit in memory;
--- part_text returns the time of a part of the step, then "-".
function M.step_text(run) return run.oom and "OOM" or M.ms(run.iteration_ms) end
function M.part_text(run, key) return M.ms(not run.oom and run[key] or nil) end

--- Returns the part of a step, in ms, in which a rank has posted transfers, but none of them runs
--- and it computes nothing: a part of the exposed communication. What waits beside compute or
--- another transfer does not count.
function M.exposed_wait_ms(times)
  local in_transfer = times.comm_ms - times.hidden_comm_ms
  return math.min(math.max(times.exposed_comm_ms - in_transfer, 0), times.exposed_comm_ms)
end

function M.speedup_text(base, run)
  if not run then return "-" end
  if run.oom then return "OOM" end
  if run.iteration_ms == 0 then return "-" end
  return base and not base.oom and ("%.2fx"):format(base.iteration_ms / run.iteration_ms) or "-"
end

function M.append(row, cells)
  for _, cell in ipairs(cells) do row[#row + 1] = cell end
  return row
end

--- Returns the times of the steps after the first, of which the time of an executed run is made.
function M.later(run)
  local out = values.new {}
  for i = 2, #run.samples_ms do out[i - 1] = run.samples_ms[i] end
  return out
end

--- Returns whether the simulated steps of a run take different times, as under a routing.
function M.steps_differ(run)
  local samples = values.new(run.samples_ms)
  return run.provenance == "simulated" and samples:min() ~= samples:max()
end

--- Returns the median and the range of the steps' times as text: "17.5 (17.1..25.0)".
function M.spread_text(run)
  if run.oom then return "-" end
  local samples = values.new(run.samples_ms)
  return ("%s (%s..%s)"):format(M.ms(samples:median()), M.ms(samples:min()), M.ms(samples:max()))
end

--- Returns a line that says of which statistic the times of simulated runs are, in a list that is
--- empty where all steps of each run take the same time.
function M.statistic_lines(runs)
  local most = 0
  for _, run in ipairs(runs) do
    local is_mean = run.statistic == "mean" and M.steps_differ(run)
    most = math.max(most, is_mean and #run.samples_ms or 0)
  end
  return { most > 0 and ("Times are means over %d steps, which differ; moves of experts count in "
    .. "the steps that make them"):format(most) or nil }
end

function M.say_all(lines)
  for _, line in ipairs(lines) do core.say(line) end
end

local MAX_REASONS = 12  -- further refused runs are counted

function M.refused_lines(refused)
  local lines, more = {}, #refused - MAX_REASONS
  for i = 1, math.min(#refused, MAX_REASONS) do lines[i] = "Refused: " .. refused[i].reason end
  if more > 0 then lines[#lines + 1] = ("Refused: %d more; see results.json"):format(more) end
  return lines
end

local MAX_ROWS = 200  -- of a table on the terminal, where an output folder has them all

--- Prints a table; of a long one the first rows, and how to see the others.
function M.say_table(rows)
  local shown, n = {}, -1  -- n: without the header and empty lines
  for _, row in ipairs(rows) do
    n = n + (#row > 0 and 1 or 0)
    if n <= MAX_ROWS or not core.out_dir then shown[#shown + 1] = row end
  end
  core.say(aligned.text(shown))
  if #shown < #rows then
    core.say(("... and %d more rows; `moebench report %s` writes a page with all"):format(
      n - MAX_ROWS, core.out_dir))
  end
end

return M
