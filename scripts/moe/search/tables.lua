-- The tables and lines that say what a search found, for the terminal and the page. s: a search as
-- moe.search returns it or as results.json has it. A table is a list of rows, the header first.
local format = require "moe.results.report.format"
local number_bytes = require "moe.results.number_bytes"
local prediction_error = require "moe.results.prediction_error"

local M = {}

local function gib(bytes) return ("%.1f"):format(bytes / 2 ^ 30) end

function M.head(s)
  local memory = s.memory_bytes > 0 and (" of %s GiB"):format(gib(s.memory_bytes)) or ""
  local steps = s.steps > 1 and ("mean of %d steps"):format(s.steps) or "one step"
  return ("%s: %s on %s, %d devices%s; simulated, %s"):format(s.name, s.model, s.cluster, s.devices,
    memory, steps)
end

local function seen(s)
  local refused = 0
  for _, one in ipairs(s.refused) do refused = refused + one.n end
  local text = ("%d of %d mixes planned, %d of them refused, and %d known systems in %.0f s")
    :format(s.simulated, s.space, refused, #s.named, s.searched_s)
  local function add(number, form) text = text .. (number and form:format(number) or "") end
  local function count(n, form) add((n or 0) > 0 and n, form) end
  add(s.budget_s and s.searched_s >= s.budget_s + 1 and s.budget_s,
    " (budget_s: %g; a simulation that has begun ends)")
  count(s.not_simulated, "; half of the budget was too short for %d more known systems")
  add(s.took_s >= s.searched_s + 1 and s.took_s - s.searched_s,
    ", then %.0f s for contributions and order")
  count(s.cached, "; %d simulations were in the cache")
  count(s.too_large, "; %d of the mixes do not fit in memory")
  count(s.no_rows, ", %d of them since a device gets more rows than model.rows_bound allows")
  count(s.not_allowed, "; %d are not allowed")
  if s.simulated >= s.space then return text .. "; no mix was left out" end
  if s.exhaustive then
    return text .. "; bounds, refusals or `allowed` exclude the others, so no mix is better"
  end
  text = text .. (", %d left out because of bounds and earlier refusals; a better one may be among "
    .. "the rest"):format(s.excluded)
  if not s.patience then return text end
  return text .. (".\nIt ended before its budget, since %d descents in a row found nothing better; "
    .. "a larger `patience` sees more"):format(s.patience)
end

--- Returns a line on how much of the space was seen, and one that says so if the search was
--- interrupted.
function M.seen(s)
  if s.points then
    return ("%s.\nThis is part %s of the search alone. Merge the caches of all parts by `moebench "
      .. "merge --caches`, and search without --points"):format(seen(s), s.points)
  end
  if not s.interrupted then return seen(s) end
  return seen(s) .. ".\nThe search was interrupted: this is what was seen until then, without "
    .. "contributions and order"
end

function M.bound(s)
  if not s.bound_ms then
    return "No bound on the best mix's time is given: its ops take other times in each step "
      .. "(lower_bound_ms in results.json is the mean of the steps' bounds)."
  end
  return ("No schedule of the best mix's ops takes less than %s ms; of the ops of all mixes with "
    .. "a bound, less than %s ms."):format(format.ms(s.bound_ms), format.ms(s.least_bound_ms))
end

-- A known system that overlaps nothing and sends and computes real rows alone, as frameworks of
-- today do: beside it one sees what the best mix gains apart from padding.
local WITHOUT_PADDING = "raf_rows"

-- Returns whether a run differs from the best one by less than the error of such predictions.
local function ties(s, run)
  local a, b = run.iteration_ms, s.best.iteration_ms
  return not run.oom and run.system ~= s.best.system
    and math.max(a, b) < math.min(a, b) * (1 + prediction_error.simulated.error)
end

-- Returns a line on the runs that tie with the best one, or nil.
local function tie_line(s)
  local mixes, names = 0, {}
  for _, run in ipairs(s.top) do mixes = mixes + (ties(s, run) and 1 or 0) end
  if mixes > 0 then names[1] = ("%d of the mixes above"):format(mixes) end
  for _, run in ipairs { s.plain, s.named[1] } do
    if ties(s, run) then names[#names + 1] = run.system end
  end
  if #names == 0 then return nil end
  return ("Tie: %s with the best. Differences below %.1f%% are within the error of simulated steps "
    .. "(%s). A run decides: this search with execute = %d, on CPU ranks, or %s on the devices "
    .. "themselves."):format(table.concat(names, ", "), 100 * prediction_error.simulated.error,
    prediction_error.simulated.source, math.max(2, mixes + 1), s.recipe or "these systems")
end

--- Returns the table of the plain mix, the known system without padding, the best mixes and the
--- best known system.
function M.top(s)
  local rows = { { "mix", "iteration ms", "plain / mix", "peak GiB", "techniques" } }
  local function add(run, label)
    local both_fit = not run.oom and not s.plain.oom
    rows[#rows + 1] = { run.system, run.oom and "OOM" or format.ms(run.iteration_ms),
      (both_fit and ("%.2fx"):format(s.plain.iteration_ms / run.iteration_ms) or "")
        .. (ties(s, run) and " tie" or ""),
      gib(run.peak_bytes), label or "" }
  end
  add(s.plain)
  for i, run in ipairs(s.named) do
    if i > 1 and run.system == WITHOUT_PADDING then
      add(run, "known system: no padding, no overlap")
    end
  end
  for _, run in ipairs(s.top) do add(run, run.choice) end
  local known = s.named[1]
  if known then add(known, "known system" .. (known.choice and ", " .. known.choice or "")) end
  return rows
end

--- Returns the table of where the time of the plain mix, of the best and of the best known system
--- goes.
function M.times(s)
  local rows = { { "", "compute ms", "busiest device / mean", "communication exposed",
    "of it waiting", "hidden", "step ms" } }
  for _, run in ipairs { s.plain, s.best, s.named[1] } do
    rows[#rows + 1] = { run.system, format.ms(run.compute_ms),
      run.imbalance and ("%.2f"):format(run.imbalance) or "", format.ms(run.exposed_comm_ms),
      format.ms(format.exposed_wait_ms(run)), format.ms(run.hidden_comm_ms),
      run.oom and "OOM" or format.ms(run.iteration_ms) }
  end
  return rows
end

function M.contributions(s)
  local rows = { { "without", "iteration ms", "slower by", "peak GiB" } }
  for _, one in ipairs(s.contributions) do
    local ms = not one.oom and one.without_ms
    rows[#rows + 1] = { one.technique, one.why and "refused" or ms and format.ms(ms) or "OOM",
      ms and ("%+.1f%%"):format(100 * (ms / one.best_ms - 1)) or "",
      one.without_bytes and gib(one.without_bytes) or "" }
  end
  return rows
end

--- Returns the table of the mixes and known systems to which no other is better in both time and
--- memory.
function M.front(s)
  local rows = { { "iteration ms", "peak GiB", "mix or known system" } }
  for _, run in ipairs(s.front) do
    local own = run.system:match "^front_%d+$"
    rows[#rows + 1] = { format.ms(run.iteration_ms), gib(run.peak_bytes),
      own and run.choice or run.system }
  end
  return rows
end

function M.executed(s)
  local rows = { { "a", "b", "predicted a / b", "executed a / b", "executed", "order held" } }
  for _, p in ipairs(s.executed.pairs) do
    rows[#rows + 1] = { p.a, p.b, ("%.3f"):format(p.predicted), ("%.3f"):format(p.executed),
      p.verdict, p.disturbed and "disturbed" or p.held == nil and "-" or p.held and "yes" or "no" }
  end
  return rows
end

--- Returns a line on how many of the executed pairs are in the predicted order.
function M.held(s)
  local e, disturbed = s.executed, 0
  for _, p in ipairs(e.pairs) do disturbed = disturbed + (p.disturbed and 1 or 0) end
  local line = ("Order as predicted in %d of %d resolved pairs"):format(e.held, e.compared)
  if disturbed == 0 then return line end
  return ("%s; %d of %d pairs are left out, since others used the cores during a run"):format(line,
    disturbed, #e.pairs)
end

-- Returns a line on a pass that the recipe gives in `with`.
local function policy_line(s, one)
  local text = ("%s: in %d %s"):format(one.policy, one.n, one.n == 1 and "mix" or "mixes")
  if one.n == 0 then return one.policy .. ": in none of the mixes that were tried" end
  if one.refused > 0 and one.refused == one.n then
    return text .. ", refused in all of them: " .. one.why
  end
  if one.refused > 0 then text = ("%s, %d of them refused"):format(text, one.refused) end
  if not one.best_ms then return text .. "; none of them fits in memory" end
  local slower = one.best_ms / s.best.iteration_ms - 1
  return ("%s; the fastest takes %s ms, %s: %s"):format(text, format.ms(one.best_ms),
    slower > 0 and ("%.1f%% more than the best mix"):format(100 * slower) or "as the best mix",
    one.techniques)
end

--- Returns lines on known systems, on rows that change type on the wire, on the order at the ends
--- of the assumed constants, on the passes in `with`, and on what was refused.
function M.notes(s)
  local lines, known = {}, s.named[1]
  if s.known then
    lines[1] = ("The known system %s is faster than all mixes, so it is the best here. No mix "
      .. "has %s."):format(known.system, s.beyond or "its passes in this order")
  elseif s.beyond and not known.oom and known.iteration_ms < s.best.iteration_ms then
    lines[1] = ("The known system %s is faster than the best mix. No mix here has %s."):format(
      known.system, s.beyond)
  end
  lines[#lines + 1] = tie_line(s)
  local listed = { unpack(s.top) }
  format.append(format.append(listed, s.front), s.named)
  format.append(lines, number_bytes.wire_lines(listed))
  for _, one in ipairs(s.best.without_effect or {}) do
    lines[#lines + 1] = ("Without effect in the best mix: %s: %s"):format(one.stage, one.reason)
  end
  if s.no_room then lines[#lines + 1] = "Rows beyond model.rows_bound: " .. s.no_room end
  for _, one in ipairs(s.contributions) do
    if one.why then
      lines[#lines + 1] = ("Without %s the best mix is refused: %s"):format(one.technique, one.why)
    end
  end
  for _, one in ipairs(s.order) do
    lines[#lines + 1] = one.holds
      and ("The order of best and %s is the same at both ends of every assumed constant%s."):format(
        one.second, one.not_seen and (", without %d for which the time was too short"):format(
        one.not_seen) or "")
      or ("The order of best and %s changes at: %s"):format(one.second,
        table.concat(one.changes, ", "))
  end
  for _, one in ipairs(s.policies) do lines[#lines + 1] = policy_line(s, one) end
  for _, one in ipairs(s.refused) do
    lines[#lines + 1] = ("Refused, %d %s %s: %s"):format(one.n,
      one.n == 1 and "mix," or "mixes, such as", one.techniques, one.why)
  end
  return lines
end

return M
