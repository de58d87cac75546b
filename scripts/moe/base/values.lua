-- Lists of numbers as R:get, R:map and R:ratio return them.
local schema = require "moe.base.schema"

local M = {}

local Values = schema.methods("values", "values", "numbers of runs, a list", {
  { "runs", "moe.Run[]?", "the runs that the numbers are of, in order" },
  { "mean", "(): number?", "their mean; nil of an empty list, as the next three" },
  { "max", "(): number?", "the largest" },
  { "min", "(): number?", "the smallest" },
  { "median", "(): number?", "the one in the middle, or the mean of the two there" },
  { "each", "(): (fun(): number, moe.Run?)", "iterates over each number and its run" },
})

--- runs: those that the numbers are of, in their order; may be nil.
function M.new(list, runs)
  list.runs = runs
  return setmetatable(list, Values)
end

function Values:mean()
  local sum = 0
  for _, v in ipairs(self) do sum = sum + v end
  return #self > 0 and sum / #self or nil
end

local function sorted(list)
  local out = schema.merged(list, {})
  table.sort(out)
  return out
end

function Values:max() return sorted(self)[#self] end
function Values:min() return sorted(self)[1] end

function Values:median()
  local s, n = sorted(self), #self
  if n == 0 then return nil end
  return (s[math.floor((n + 1) / 2)] + s[math.floor(n / 2) + 1]) / 2
end

function Values:each()
  local i = 0
  return function()
    i = i + 1
    return self[i], self.runs and self.runs[i]
  end
end

return M
