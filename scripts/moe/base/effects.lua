-- What stages of systems were told and has no effect, as lines under a table.
local M = {}

-- The reasons that a run's stages have, by stage in their order: { { stage, text }, ... }.
local function by_stage(run)
  local out, at = {}, {}
  for _, e in ipairs(run.without_effect or {}) do
    local known = at[e.stage]
    if known then
      known.text = known.text .. "; " .. e.reason
    else
      at[e.stage] = { stage = e.stage, text = e.reason }
      out[#out + 1] = at[e.stage]
    end
  end
  return out
end

--- One line for each stage of each system, with the reason of the first run and how many runs of
--- the system have one.
function M.lines(runs)
  local order, by_key, total = {}, {}, {}
  for _, run in ipairs(runs) do
    total[run.system] = (total[run.system] or 0) + 1
    for _, e in ipairs(by_stage(run)) do
      local key = run.system .. "\n" .. e.stage
      if not by_key[key] then
        by_key[key] = { system = run.system, stage = e.stage, text = e.text, runs = 0 }
        order[#order + 1] = by_key[key]
      end
      by_key[key].runs = by_key[key].runs + 1
    end
  end
  local lines = {}
  for i, e in ipairs(order) do
    local part = e.runs < total[e.system]
      and (" (in %d of %d runs, the first is shown)"):format(e.runs, total[e.system]) or ""
    lines[i] = ("Without effect in %s: stage '%s': %s%s"):format(e.system, e.stage, e.text, part)
  end
  return lines
end

return M
