-- How far an experiment's results move when the assumed constants go to the ends of their bands
-- (moe.results.band): the field `sensitivity` of an experiment, or the option --sensitivity of the
-- command line. The claims of an experiment have this without being asked.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local MOST = 5  -- constants in a line of the table

M.FIELDS = {
  name = { type = "string", required = true, doc = "what the number is, for table and chart" },
  unit = { type = "string", default = "", doc = "the number's unit" },
  value = { type = "function", required = true, as = "fun(R: moe.Results): number?",
    doc = "returns the number; called again for each end of a constant's band" },
}

schema.record("sensitivity", "sensitivity",
  "how a number moves with the assumed constants, as in results.json", {
    { "experiment", "string", "name of the experiment" },
    { "name", "string", "what the number is" }, { "unit", "string", "its unit" },
    { "ours", "number", "the number at the constants' values" },
    { "lo", "number", "its smallest value over the bands" },
    { "hi", "number", "its largest value over the bands" },
    { "sensitivity",
      "{ constant: string, lo: number, hi: number, at_lo?: number, at_hi?: number }[]",
      "the number at both ends of each constant that moves it, most first" },
  })

-- Names of the fields of a run that a cost model gives, with their units.
local UNITS = { lower_bound_ms = "ms", busiest_lane_ms = "ms", critical_path_ms = "ms" }
for _, row in ipairs(core.table "metrics") do
  UNITS[row.name] = row.name:match "_ms$" and "ms" or ""
end

-- Returns an entry of the field as its numbers are asked for: { field = } or { name, unit, value }.
local function checked(entry, path, at)
  if type(entry) == "table" then return schema.check(M.FIELDS, entry, path, at) end
  if not UNITS[entry] then
    schema.unknown(path, "field of a simulated run", tostring(entry), schema.keys_of(UNITS), at)
  end
  return { field = entry }
end

--- Checks the field `sensitivity` of the experiment e, to which --sensitivity adds; returns a list
--- of what is asked for.
function M.asked(e)
  local list = {}
  for i, entry in ipairs(e.sensitivity) do
    list[i] = checked(entry, ("experiment.sensitivity[%d]"):format(i), e.at)
  end
  local field = core.args.sensitivity
  if field then list[#list + 1] = checked(field, "--sensitivity", e.at) end
  if #list > 0 and e.band == "none" then
    errors.user("experiment.band: 'none' varies no constant, but experiment.sensitivity or "
      .. "--sensitivity asks for it; give 'each'", e.at)
  end
  return list
end

-- Returns the numbers of a field: its median over the points, for each system; of the step's time
-- also the speed-up of each system over the first.
local function numbers_of(field, R)
  local list, first = {}, nil
  for system in R:where { provenance = "simulated" }:by "system" do
    local function of(results)
      return results:where { provenance = "simulated", system = system }:get(field)
    end
    local points = #of(R) > 1 and (", median of %d points"):format(#of(R)) or ""
    list[#list + 1] = { name = ("%s of %s%s"):format(field, system, points), unit = UNITS[field],
      value = function(results) return of(results):median() end }
    if field == "iteration_ms" and first then
      local base = first
      list[#list + 1] = { name = ("speed-up of %s over %s%s"):format(system, base, points),
        unit = "x", value = function(results)
          return results:where { provenance = "simulated" }:ratio({ "iteration_ms", of = system,
            to = base }):median()
        end }
    end
    first = first or system
  end
  return list
end

--- Returns the numbers { name, unit, value } that are asked for of the results R.
function M.numbers(asked, R)
  local list = {}
  for _, entry in ipairs(asked) do
    for _, number in ipairs(entry.field and numbers_of(entry.field, R) or { entry }) do
      list[#list + 1] = number
    end
  end
  return list
end

--- Returns the record "sensitivity" of a number of the experiment e over the band. If no run gives
--- the number, says so and returns nil.
function M.evaluate(e, number, band)
  local b = band:of(function(R)
    local v = number.value(R)
    if v ~= nil and (type(v) ~= "number" or v ~= v) then
      errors.user(("experiment.sensitivity: the value of '%s' is %s; return a number, or nil if "
        .. "there is no run"):format(number.name, type(v) == "string" and ("'%s'"):format(v)
        or tostring(v)), e.at)
    end
    return v
  end)
  if b.ours == nil then
    core.say(("Sensitivity of '%s': there is no run that gives the number"):format(number.name))
    return nil
  end
  return { experiment = e.name, name = number.name, unit = number.unit, ours = b.ours, lo = b.lo,
    hi = b.hi, sensitivity = b.sensitivity }
end

local function moved_text(s)
  local function text(v) return v and ("%.3g"):format(v) or "none" end
  return ("%s (%s..%s)"):format(s.constant, text(s.at_lo), text(s.at_hi))
end

--- Returns a table of such records: each number, its range, and the constants that move it most.
function M.rows(list)
  local rows = { { "number", "ours", "range over the bands", "moved most by (at both ends)" } }
  for i, record in ipairs(list) do
    local moved = {}
    for k = 1, math.min(MOST, #record.sensitivity) do
      moved[k] = moved_text(record.sensitivity[k])
    end
    rows[i + 1] = { record.name, ("%.3g %s"):format(record.ours, record.unit),
      ("%.3g..%.3g"):format(record.lo, record.hi),
      #moved > 0 and table.concat(moved, ", ") or "no assumed constant" }
  end
  return rows
end

function M.print(list)
  if #list == 0 then return end
  core.say "\nSensitivity to the assumed constants"
  core.say(aligned.text(M.rows(list)))
end

return M
