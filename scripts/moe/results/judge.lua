-- moe.judge{...}: evaluates claims about numbers that a recipe computes itself, without an
-- experiment.
local assumed_routing = require "moe.results.assumed_routing"
local claims = require "moe.results.claims"
local core = require "moe.core"
local errors = require "moe.base.errors"
local format = require "moe.results.report.format"
local head = require "moe.results.head"
local plan_lib = require "moe.run.plan"
local report = require "moe.results.report"
local session = require "moe.run.session"
local schema = require "moe.base.schema"

local M = {}

M.FIELDS = {
  name = { type = "string", required = true, doc = "the name of the judgement in results" },
  title = { type = "string", default = "", doc = "title above its claims" },
  claims = { type = "list", of = { type = "claim" }, required = true,
    doc = "list of moe.claim; a claim's `value` is called with the measured value of a reading" },
  readings = { type = "list", of = { type = "any" }, required = true, least = "reading",
    doc = "list of readings: the first gives our numbers, all together give the band" },
  measure = { type = "function",
    doc = "function(reading) returning its measured value; default: the reading itself. `moebench "
      .. "check` calls it only for the first reading, up to the first :simulate {...}" },
  head = { type = "string",
    doc = "a line above the tables on numbers that come from no moe.plan: dtype, batch, capacity, "
      .. "routing; those of plans that `measure` makes are stated anyway" },
  show = { type = "function",
    doc = "function(values) that prints tables before the claims; values are the measured values "
      .. "of all readings, in order" },
}

-- Returns how a reading is called: by its name, or by the fields in which it is not as the first.
local function name_of(reading, first)
  if type(reading) ~= "table" then return "reading " .. tostring(reading) end
  local parts = {}
  for key, value in pairs(reading) do
    if type(value) ~= "table" and first[key] ~= value then
      parts[#parts + 1] = ("%s = %s"):format(key, tostring(value))
    end
  end
  return reading.name or table.concat(parts, ", ")
end

-- Returns an object like a band of moe.results.band: its range is that over all values, and
-- `reading` the one that moves ours most.
local function band_over(values, readings)
  return { of = function(_, value)
    local ours = value(values[1])
    local lo, hi, reading, most = ours, ours, nil, 0
    for i = 2, #values do
      local other = value(values[i])
      lo, hi = math.min(lo, other), math.max(hi, other)
      if math.abs(other - ours) > most then
        most = math.abs(other - ours)
        reading = { name = name_of(readings[i], readings[1]), ours = other }
      end
    end
    return { ours = ours, lo = lo, hi = hi, reading = reading, sensitivity = core.array {} }
  end }
end

--- Measures all readings, evaluates the claims, prints them and writes them to results.json.
--- Returns the verdicts.
M.judge = schema.taking(M.FIELDS, "moe.judge", function(j)
  errors.stop_in "policies"
  local values, measure = {}, j.measure or function(reading) return reading end
  plan_lib.heads = {}
  for i, reading in ipairs(j.readings) do
    values[i] = measure(reading)
    errors.stop_in "check"
  end
  local heads
  heads, plan_lib.heads = plan_lib.heads, nil
  format.say_all(head.lines(heads))
  format.say_all(assumed_routing.lines(heads))
  if j.head then core.say(j.head) end
  if j.show then j.show(values) end
  session.add("experiment", { name = j.name, title = j.title, over = core.array {}, params = {},
    set = core.args.set })
  local verdicts, band = {}, band_over(values, j.readings)
  for i, claim in ipairs(j.claims) do
    verdicts[i] = claims.evaluate(claim, band)
    session.add("claim", verdicts[i])
  end
  session.flush()
  report.print_claims(verdicts)
  return verdicts
end)

return M
