-- The lines above tables of simulated runs that say of what they are: the bytes of numbers, the
-- batch, the capacity, and the stack of kernels if the cluster has one.
local number_bytes = require "moe.spec.number_bytes"
local schema = require "moe.base.schema"

local M = {}

local PARTS = {
  { "batch %s per device", function(run) return run.parameters.batch_per_device end },
  { "capacity factor %s", function(run)
    local factor = run.parameters.capacity_factor
    return factor and factor > 0 and factor or "none"
  end },
  { "stack %s", function(run) return (run.cluster_parameters or {}).stack end },
}

-- Returns the values of the runs as text: numbers as "8" or "8..48", then texts; nil without any.
local function range(runs, value)
  local lo, hi, texts = math.huge, -math.huge, {}
  for _, run in ipairs(runs) do
    local x = type(run.parameters) == "table" and value(run)
    if type(x) == "number" then
      lo, hi = math.min(lo, x), math.max(hi, x)
    elseif x then
      texts[x] = true
    end
  end
  local all = schema.keys_of(texts)
  if lo <= hi then table.insert(all, 1, (lo < hi and "%g..%g" or "%g"):format(lo, hi)) end
  return all[1] and table.concat(all, ", ")
end

--- Returns the lines for runs, or for anything with the same fields.
function M.lines(runs)
  local lines, parts = number_bytes.lines(runs), {}
  for _, part in ipairs(PARTS) do
    local text = range(runs, part[2])
    if text then parts[#parts + 1] = part[1]:format(text) end
  end
  if #parts > 0 then lines[#lines + 1] = "Set-up: " .. table.concat(parts, ", ") end
  return lines
end

return M
