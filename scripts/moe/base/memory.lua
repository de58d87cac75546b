-- Whether a plan fits in a device's memory, and of what its peak consists, as text.
local M = {}

local LEAST = 0.05 * 2 ^ 30  -- bytes: smaller parts are said together

local function gib(bytes) return ("%.1f GiB"):format(bytes / 2 ^ 30) end

-- Returns the parts of a peak, largest first, as text: "parameters 91.3 GiB, activations 20.1 GiB".
local function parts_text(parts)
  local list, rest = {}, 0
  for _, part in ipairs(parts) do
    local large = part.bytes >= LEAST or #list == 0
    if large then list[#list + 1] = part.what .. " " .. gib(part.bytes) end
    rest = rest + (large and 0 or part.bytes)
  end
  if rest >= LEAST then list[#list + 1] = "others " .. gib(rest) end
  return table.concat(list, ", ")
end

--- Returns why a plan does not fit, or nil. of: { peak_bytes, memory_bytes = of a device, both nil
--- or the latter 0 if not known, no_room = as plan:simulate() of the core returns it, or nil,
--- peak_parts = as plan:info() of the core has them, or nil }.
function M.misfit(of)
  local memory = of.memory_bytes or 0
  if memory == 0 or (of.peak_bytes or 0) <= memory then return of.no_room end
  return ("%s do not fit in %s%s"):format(gib(of.peak_bytes), gib(memory),
    of.peak_parts and ": " .. parts_text(of.peak_parts) or "")
end

return M
