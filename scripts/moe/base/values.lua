-- Lists of numbers, as moe.values, R:get, R:map and R:ratio return them.
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local Values = schema.methods("values", "values", "a list of numbers, each of a run", {
  { "runs", "moe.Run[]?", "the run of each number" },
  { "mean", "(): number?", "mean of the numbers; nil if the list is empty" },
  { "max", "(): number?", "largest number; nil if the list is empty" },
  { "min", "(): number?", "smallest number; nil if the list is empty" },
  { "median", "(): number?", "median of the numbers; nil if the list is empty" },
  { "quantile", "(share: number): number?",
    "smallest number that this share of the numbers does not exceed; nil if the list is empty" },
  { "middle", "(): number?", "mean between the quartiles; nil if the list is empty" },
  { "each", "(): (fun(): number, moe.Run?)",
    "returns an iterator over the numbers, each with its run" },
})

--- Gives the table `list` of numbers the methods of a Values object, and returns it. runs[i] is the
--- run of list[i]; runs may be nil.
function M.new(list, runs)
  list.runs = runs
  return setmetatable(list, Values)
end

function M.values(list)
  if type(list) ~= "table" then schema.refuse("moe.values", list, "a list", errors.here()) end
  return M.new(schema.merged(list, {}))
end

-- Returns the numbers of the list. Raises a user error that names `method` if one is none.
local function numbers(list, method)
  local out = {}
  for i, v in ipairs(list) do
    if type(v) ~= "number" or v ~= v then
      schema.refuse(("%s: value %d of the list"):format(method, i), v,
        "a field or a function whose values are numbers", errors.here())
    end
    out[i] = v
  end
  return out
end

local function sorted(list, method)
  local out = numbers(list, method)
  table.sort(out)
  return out
end

function Values:mean()
  local sum = 0
  for _, v in ipairs(numbers(self, "mean")) do sum = sum + v end
  return #self > 0 and sum / #self or nil
end

function Values:max() return sorted(self, "max")[#self] end
function Values:min() return sorted(self, "min")[1] end

function Values:median()
  local s, n = sorted(self, "median"), #self
  if n == 0 then return nil end
  return (s[math.floor((n + 1) / 2)] + s[math.floor(n / 2) + 1]) / 2
end

function Values:quantile(share)
  local s = sorted(self, "quantile")
  schema.field({ type = "number", lo = 0, hi = 1, required = true }, share, "quantile",
    errors.here())
  return s[math.max(1, math.ceil(share * #s - 1e-9))]  -- 0.1 * 30 may be a little above 3
end

function Values:middle()
  local s, n = sorted(self, "middle"), #self
  local cut = n < 3 and 0 or math.max(1, math.floor(n / 4))
  local sum = 0
  for i = cut + 1, n - cut do sum = sum + s[i] end
  return n > 0 and sum / (n - 2 * cut) or nil
end

function Values:each()
  local i = 0
  return function()
    i = i + 1
    return self[i], self.runs and self.runs[i]
  end
end

return M
