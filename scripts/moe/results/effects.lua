-- Makes the lines under a table of runs that name the systems that send or compute padded rows,
-- those that are not what their names say, and the stages without effect: stages that changed
-- nothing, or less than their options request.
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"

local M = {}

local MOST_REASONS = 3  -- lines on one stage of one system

-- Returns { { stage, text }, ... } in the order of the run's stages; text joins a stage's reasons.
local function by_stage(run)
  local out = {}
  for i, same in ipairs(schema.grouped(run.without_effect or {}, function(e) return e.stage end)) do
    local reasons = {}
    for k, e in ipairs(same) do reasons[k] = e.reason end
    out[i] = { stage = same[1].stage, text = table.concat(reasons, "; ") }
  end
  return out
end

-- Returns a line on the run's system if it has the name of a known system and other passes.
local function other_passes(run)
  local known, own = system_lib.pass_names(run.system), {}
  if not known or not run.stages then return end
  for i, stage in ipairs(run.stages) do own[i] = stage.name end
  local function text(names) return #names > 0 and table.concat(names, ", ") or "none" end
  if text(own) == text(known) then return end
  return ("System %s has passes of the recipe: %s; the known system of this name has: %s"):format(
    run.system, text(own), text(known))
end

-- Returns a line on the run's system if it is software whose kernels and host time are not counted.
local function no_stack(run)
  local stack = system_lib.software(run.system)
  if not stack or run.stack or run.executor ~= "simulate" then return end
  return ("System %s has no stack: one kernel per op and no host time are counted; stack = '%s' in "
    .. "the cluster or the system counts that software's"):format(run.system, stack)
end

local function append_padded(lines, runs)
  local kinds = {}
  for _, run in ipairs(runs) do
    if run.padded_rows and run.fill > 0 and run.fill < 0.995 then
      local kind = kinds[run.padded_rows] or { lo = math.huge, hi = 0, systems = {} }
      kinds[run.padded_rows], kind.systems[run.system] = kind, true
      kind.lo, kind.hi = math.min(kind.lo, 1 / run.fill), math.max(kind.hi, 1 / run.fill)
    end
  end
  for what, kind in pairs(kinds) do
    local lo, hi = ("%.3g"):format(kind.lo), ("%.3g"):format(kind.hi)
    lines[#lines + 1] = ("Padded rows: %s: %s a slot for every token at every expert, as the model "
      .. "has no capacity: %s times the rows in use; irregular_a2a and used_rows avoid it"):format(
      table.concat(schema.keys_of(kind.systems), ", "), what, lo == hi and lo or lo .. " to " .. hi)
  end
end

--- Returns lines on padded rows, then one line for each system with other passes than the known
--- system of its name and for software without its stack, and one for each stage without effect of
--- each system and each reason, of up to MOST_REASONS, with the number of runs, unless it is all.
function M.lines(runs)
  local all, total, lines, said = {}, {}, {}, {}
  append_padded(lines, runs)
  local function say(line)
    if line and not said[line] then lines[#lines + 1], said[line] = line, true end
  end
  for _, run in ipairs(runs) do
    say(other_passes(run))
    say(no_stack(run))
    total[run.system] = (total[run.system] or 0) + 1
    for _, e in ipairs(by_stage(run)) do
      all[#all + 1] = { system = run.system, stage = e.stage, text = e.text }
    end
  end
  for _, same in ipairs(schema.grouped(all, function(e) return e.system .. "\n" .. e.stage end)) do
    local reasons = schema.grouped(same, function(e) return e.text end)
    for i = 1, math.min(#reasons, MOST_REASONS) do
      local e, n = reasons[i][1], total[same[1].system]
      lines[#lines + 1] = ("Without effect in %s: stage '%s': %s%s%s"):format(e.system, e.stage,
        e.text, #reasons[i] < n and (" (in %d of %d runs)"):format(#reasons[i], n) or "",
        i == MOST_REASONS and #reasons > i
          and ("; %d more reasons are in results.json"):format(#reasons - i) or "")
    end
  end
  return lines
end

return M
