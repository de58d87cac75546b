-- The lines above tables of simulated runs: bytes of numbers; batch, capacity, and stacks if any.
local format = require "moe.results.report.format"
local number_bytes = require "moe.results.number_bytes"
local schema = require "moe.base.schema"

local M = {}

-- With several micro-batches, the batch per device is that of one.
local PARTS = {
  { "batch %s per device", function(p) return p.batch_per_device end },
  { "%s micro-batches", function(p) return p.micro_batches end, several = true },
  { "%s pipeline ranks", function(p) return p.pp ~= 1 and p.pp or nil end },
  { "tp %s", function(p) return p.tp ~= 1 and p.tp or nil end },
  { "cp %s", function(p)
    return p.cp ~= 1 and p.cp and (p.cp_comm == "p2p" and p.cp .. " in a ring" or p.cp) or nil
  end },
  { "etp %s", function(p) return p.etp ~= 1 and p.etp or nil end },
  { "routed over each %s", function(p) return p.route_over ~= "" and p.route_over or nil end },
  { "%s tokens per step", function(p, run)
    return run.devices and p.micro_batches
      and run.devices / ((p.pp or 1) * (p.tp or 1) * (p.cp or 1)) * p.micro_batches
        * p.batch_per_device * p.seq
  end, several = true },
  { "capacity factor %s",
    function(p) return (p.capacity_factor or 0) > 0 and p.capacity_factor or "none" end },
  { "composed of the turns of %s micro-batches", function(_, run) return run.composed_of end },
  { "stack %s", function(_, run) return run.stack end },
  { "host-bound for %s%% of the step", function(_, run)
    local share = (run.host_bound_ms or 0) / math.max(run.iteration_ms or 0, 1e-9)
    return share >= 0.005 and math.floor(100 * share + 0.5) or nil
  end },
}

-- Returns the values of the runs as text: numbers as "8" or "8..48", then texts, of several each
-- with its systems; nil without any.
local function range(runs, value)
  local lo, hi, texts = math.huge, -math.huge, {}
  for _, run in ipairs(runs) do
    local p = run.parameters
    local x = type(p) == "table" and value(p, run)
    if type(x) == "number" then
      lo, hi = math.min(lo, x), math.max(hi, x)
    elseif x then
      texts[x] = texts[x] or {}
      texts[x][run.system or "-"] = true
    end
  end
  local all = schema.keys_of(texts)
  for i, text in ipairs(all[2] and all or {}) do
    all[i] = ("%s (%s)"):format(text, table.concat(schema.keys_of(texts[text]), ", "))
  end
  if lo <= hi then table.insert(all, 1, (lo < hi and "%g..%g" or "%g"):format(lo, hi)) end
  return all[1] and table.concat(all, ", ")
end

--- Returns the lines for runs, or for anything with the same fields.
function M.lines(runs)
  local lines, parts, several = number_bytes.lines(runs), {}, false
  for _, run in ipairs(runs) do
    local p = run.parameters
    several = several or type(p) == "table" and (p.micro_batches or 1) > 1
  end
  for _, part in ipairs(PARTS) do
    local text = (several or not part.several) and range(runs, part[2])
    if text then parts[#parts + 1] = part[1]:format(text) end
  end
  if #parts > 0 then lines[#lines + 1] = "Set-up: " .. table.concat(parts, ", ") end
  return format.append(lines, number_bytes.wire_lines(runs))
end

return M
