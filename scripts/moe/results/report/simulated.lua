-- Tables and lines on simulated runs.
local assumed_routing = require "moe.results.assumed_routing"
local core = require "moe.core"
local effects = require "moe.results.effects"
local format = require "moe.results.report.format"
local head = require "moe.results.head"
local memory = require "moe.base.memory"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

local SKEWED = 1.005  -- an imbalance above this is shown

local function any(groups, f)
  for _, group in ipairs(groups) do
    for _, run in ipairs(group) do
      if f(run) then return true end
    end
  end
  return false
end

--- Returns the table of steps of groups of runs; the runs of a group differ only in the system.
--- Where steps differ it has their median and range, and under a skewed routing the imbalance: the
--- rows of each layer's busiest device over the mean. refused: as results.json has it; it has no
--- row here for what was to be executed.
function M.rows(groups, names, refused)
  local differ = any(groups, format.steps_differ)
  local skewed = any(groups, function(run) return (run.load_imbalance or 1) > SKEWED end)
  local function row_of(point, cells, median, rest, imbalance)
    local row = format.append(format.append({ unpack(point) }, cells), { differ and median or nil })
    return format.append(format.append(row, rest), { skewed and imbalance or nil })
  end
  local rows = { row_of(format.append({ unpack(names) }, { "GPUs" }), { "system", "iteration ms" },
    "median (range)", { "vs first", "exposed comm ms", "hidden comm ms", "bound ms", "peak GiB" },
    "imbalance") }
  for g, group in ipairs(groups) do
    if g > 1 then rows[#rows + 1] = {} end
    for i, run in ipairs(group) do
      local function part(key) return format.part_text(run, key) end
      rows[#rows + 1] = row_of(format.point_cells(run, names, i > 1), { format.system_text(run),
        format.step_text(run) }, format.spread_text(run), {
        format.speedup_text(group[1], run), part "exposed_comm_ms", part "hidden_comm_ms",
        part "lower_bound_ms", ("%.1f"):format(run.peak_bytes / 2 ^ 30) },
        run.load_imbalance and ("%.2f"):format(run.load_imbalance) or "-")
    end
  end
  local last = #rows
  for _, r in ipairs(refused) do
    if (r.executor or "simulate") == "simulate" then
      if #rows == last then rows[#rows + 1] = {} end
      local row = format.append(format.point_cells(r, names), { r.system, "refused" })
      while #row < #rows[1] do row[#row + 1] = "-" end
      rows[#rows + 1] = row
    end
  end
  return rows
end

--- Returns a table of speed-ups over the first system, with one row per point and one column per
--- other system, and the name of the first system.
function M.speedup_rows(groups, names, R)
  local systems = R:groups(function(run) return { run.system } end)
  local rows = { format.append({ unpack(names) }, { "GPUs" }) }
  for i = 2, #systems do table.insert(rows[1], systems[i][1].system) end
  for _, group in ipairs(groups) do
    local by_system, cells = {}, {}
    for _, run in ipairs(group) do by_system[run.system] = run end
    local base = by_system[systems[1][1].system]
    for i = 2, #systems do
      cells[i - 1] = format.speedup_text(base, by_system[systems[i][1].system])
    end
    rows[#rows + 1] = format.append(format.point_cells(group[1], names), cells)
  end
  return rows, systems[1][1].system
end

--- Returns one line for each model, cluster and system that does not fit in a device's memory: the
--- largest number of bytes and what they are for, or which device has no room for its rows;
--- and why rows are padded if the model has no capacity.
function M.out_of_memory_lines(R)
  local lines = {}
  local function kind(run) return { run.model, run.cluster, run.system } end
  for _, runs in ipairs(R:where { oom = true }:groups(kind)) do
    local worst = runs[1]
    for _, run in ipairs(runs) do
      if run.peak_bytes > worst.peak_bytes then worst = run end
    end
    local at = {}
    for _, name in ipairs(schema.keys_of(worst.point)) do
      at[#at + 1] = ("%s = %s"):format(name, worst.point[name])
    end
    local of = #runs == 1 and "" or (" in %d runs, the largest with %s"):format(#runs,
      table.concat(at, ", "))
    lines[#lines + 1] = ("OOM: %s, %s on %s%s: %s"):format(worst.model, worst.system,
      worst.cluster, of, memory.misfit(worst))
    for _, decision in ipairs(worst.log or {}) do
      local why = decision:match "^rows %[rows%] (.*)"
      if why then lines[#lines + 1] = "     " .. why end
    end
  end
  return lines
end

local function print_tables(R, refused)
  local groups, names = R:groups(results.case_of), format.coordinates(R, #refused > 0)
  format.say_table(M.rows(groups, names, refused))
  if #groups > 1 and #groups[1] > 1 then
    local rows, base = M.speedup_rows(groups, names, R)
    core.say(("\nSpeed-up over %s, simulated"):format(base))
    format.say_table(rows)
  end
end

-- Says how much of the ops' time measurements give, where a cluster has measured op times.
local function measured_line(R)
  local gpus, measured, other = {}, values.new {}, values.new {}
  for run in R:each() do
    local c = run.cluster_parameters
    local files = c and { c.device.op_times or false, c.device.step_times or false,
      c.collective_times or false } or {}
    for _, name in ipairs(files) do
      if name then gpus[name] = true end
    end
    if c and (c.device.op_times or c.device.step_times or c.collective_times)
      and run.measured_share then
      table.insert(measured, 100 * run.measured_share)
      table.insert(other, 100 * run.extrapolated_share)
    end
  end
  if #measured == 0 then return end
  local function percent(shares) return assumed_routing.range(shares, "%.0f") .. "%" end
  core.say(("Of the ops' time %s is measured on %s, %s follows from other measured sizes, the rest "
    .. "from rates\nand links; whole steps have run on one H200 alone"):format(percent(measured),
    table.concat(schema.keys_of(gpus), ", "), percent(other)))
end

--- Prints the tables of simulated runs. e: the experiment; complete: whether all of its runs are
--- there; refused: as in M.rows. A recipe's `show` that fails where runs are missing is said, and
--- the usual tables take its place: the error for which they are missing is the one that is raised.
function M.print(e, R, complete, refused)
  local constants = {}
  for run in R:each() do
    for path in pairs(run.assumed or {}) do constants[path] = true end
  end
  local num = #schema.keys_of(constants)
  core.say("\nSimulated by a cost model that rests on " .. (num == 0 and "no assumed constant"
    or ("%d assumed constants (results.json has their bands)"):format(num)))
  format.say_all(head.lines(R.runs))
  measured_line(R)
  format.say_all(format.statistic_lines(R.runs))
  format.say_all(assumed_routing.lines(R.runs))
  if e.show and complete then
    e.show(R)
  else
    local shown, why = pcall(e.show or print_tables, R, refused)
    if not shown then
      core.say("The recipe's show fails on these runs, which are not all: " .. tostring(
        type(why) == "table" and why.message or why))
      print_tables(R, refused)
    end
  end
  format.say_all(M.out_of_memory_lines(R))
  format.say_all(effects.lines(R.runs))
end

return M
