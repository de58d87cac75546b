-- `moebench diff A B`: what differs between the results in two folders. Runs are matched by their
-- experiment, entry of `run`, executor, point and system.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local paired = require "moe.results.paired"
local plan_diff = require "moe.results.plan_diff"
local format = require "moe.results.report.format"
local leaves = require("moe.results.report.differences").leaves
local number_bytes = require "moe.results.number_bytes"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

local MOST = 12  -- lines of a list

local function points_of(run) return run.points or { run.point } end

-- Returns the texts by which runs of two folders are matched, one per point.
local function keys_of(run, named)
  local keys = {}
  for i, point in ipairs(points_of(run)) do
    keys[i] = core.json_encode { named and run.experiment or "", run.entry or 1, run.executor,
      run.system, point }
  end
  return keys
end

-- Returns the run of those with one of these keys that has no other yet, and takes it.
local function taken(by_key, keys, used)
  for _, key in ipairs(keys) do
    for _, run in ipairs(by_key[key] or {}) do
      if not used[run] then
        used[run] = true
        return run
      end
    end
  end
end

-- Returns the pairs { run of the first, run of the second }, and of each the runs without another.
-- Names of experiments count where a folder has several.
local function matched(all)
  local named, by_key, used = false, {}, {}
  for _, data in ipairs(all) do
    for _, e in ipairs(data.experiments) do
      named = named or e.name ~= data.experiments[1].name
    end
  end
  for _, run in ipairs(all[2].R.runs) do
    for _, key in ipairs(keys_of(run, named)) do
      by_key[key] = by_key[key] or {}
      table.insert(by_key[key], run)
    end
  end
  local pairs_of, alone = {}, { {}, {} }
  for _, run in ipairs(all[1].R.runs) do
    local other = taken(by_key, keys_of(run, named), used)
    if other then pairs_of[#pairs_of + 1] = { run, other } else table.insert(alone[1], run) end
  end
  for _, run in ipairs(all[2].R.runs) do
    if not used[run] then table.insert(alone[2], run) end
  end
  return pairs_of, alone
end

local function point_text(run)
  local parts = {}
  for name, value in pairs(#points_of(run) == 1 and points_of(run)[1] or {}) do
    parts[#parts + 1] = ("%s = %s"):format(name, tostring(value))
  end
  if run.executor ~= "simulate" then table.insert(parts, 1, run.executor) end
  return #parts > 0 and table.concat(parts, ", ") or run.cluster
end

local function run_text(run)
  return ("%s, %d %s, %s"):format(point_text(run), run.devices,
    run.provenance == "simulated" and "devices" or "ranks", run.system)
end

-- Returns the time of a run with its interval as text, and the time and the interval's ends.
local function time_of(run)
  if run.provenance == "simulated" then
    return run.oom and "OOM" or ("%.4g"):format(run.iteration_ms), run.iteration_ms
  end
  local samples = format.later(run)
  if #samples == 0 then return ("%.4g"):format(run.iteration_ms), run.iteration_ms end
  local ones = {}
  for i in ipairs(samples) do ones[i] = 1 end
  local ms, lo, hi = paired[run.statistic or "median"](samples, ones)
  return lo and ("%.4g (%.4g..%.4g)"):format(ms, lo, hi) or ("%.4g"):format(ms), ms, lo, hi
end

local function time_cells(pair)
  local a, b = pair[1], pair[2]
  local a_text, a_ms, a_lo, a_hi = time_of(a)
  local b_text, b_ms, b_lo, b_hi = time_of(b)
  if a.oom or b.oom then return { a_text, b_text, "-", a.oom and b.oom and "equal" or "" } end
  local verdict = a_ms == b_ms and "equal" or b_ms < a_ms and "faster" or "slower"
  if a.provenance ~= "simulated" then
    local apart = a_lo and b_lo and (b_hi < a_lo or a_hi < b_lo)
    if not apart then verdict = a_lo and b_lo and "not resolved" or "too few steps" end
    if a.disturbed or b.disturbed then verdict = verdict .. " ?" end
  end
  return { a_text, b_text, ("%.3f"):format(b_ms / a_ms), verdict }
end

local function mib(run)
  return ("%.1f"):format((run.executed_peak_bytes or run.peak_bytes) / 2 ^ 20)
end

local function table_of(pairs_of)
  local rows = { { "point", "GPUs", "system", "ms before", "ms after", "after/before", "",
    "peak MiB before", "after", "plan" } }
  local said
  for _, pair in ipairs(pairs_of) do
    local run, point = pair[2], point_text(pair[2])
    local before, after = format.system_text(pair[1]), format.system_text(run)
    local row = { point == said and "" or point, run.devices,
      before == after and after or ("%s -> %s"):format(before, after) }
    for _, cell in ipairs(time_cells(pair)) do row[#row + 1] = cell end
    row[#row + 1] = mib(pair[1])
    row[#row + 1] = mib(run)
    row[#row + 1] = pair[1].plan_hash == run.plan_hash and "same" or "differs"
    rows[#rows + 1], said = row, point
  end
  return rows
end

-- Returns what a run was of, as path -> text.
local function setting_of(run)
  local out = leaves(results.case_of(run), nil, {})
  for _, name in ipairs { "all_reduce", "stack", "choice" } do
    if run[name] ~= nil then leaves(run[name], name, out) end
  end
  if format.steps_differ(run) then leaves(run.statistic or "median", "statistic", out) end
  local stages = {}
  for _, stage in ipairs(run.stages or {}) do stages[stage.name] = stage.options end
  return leaves(stages, "passes", out)
end

-- Returns the lines on fields that differ within pairs, with the number of pairs.
local function field_lines(pairs_of)
  local texts, lines = {}, {}
  for _, pair in ipairs(pairs_of) do
    local a, b = setting_of(pair[1]), setting_of(pair[2])
    for _, path in ipairs(schema.keys_of(schema.merged(a, b))) do
      if a[path] ~= b[path] and path ~= "experiment" then
        texts[#texts + 1] = ("%s: %s -> %s"):format(path, a[path] or "none", b[path] or "none")
      end
    end
  end
  local groups = schema.grouped(texts, tostring)
  for i, g in ipairs(groups) do
    if i <= MOST then lines[i] = ("  %s (%d of %d runs)"):format(g[1], #g, #pairs_of) end
  end
  if #groups > MOST then lines[#lines + 1] = ("  and %d more"):format(#groups - MOST) end
  return lines
end

local function say_all(title, lines)
  if #lines == 0 then return end
  core.say("\n" .. title)
  for _, line in ipairs(lines) do core.say(line) end
end

local function say_alone(which, runs)
  local lines = {}
  for i, run in ipairs(runs) do
    if i <= MOST then lines[i] = "  " .. run_text(run) end
  end
  if #runs > MOST then lines[#lines + 1] = ("  and %d more"):format(#runs - MOST) end
  say_all(("Only %s, %d runs:"):format(which, #runs), lines)
end

local function differs(pair)
  return pair[1].plan_hash ~= pair[2].plan_hash or pair[1].iteration_ms ~= pair[2].iteration_ms
end

local function say_plans(pairs_of, dirs)
  local untraced = 0
  for _, pair in ipairs(pairs_of) do
    if differs(pair) then
      if pair[1].trace and pair[2].trace then
        say_all("Plan of " .. run_text(pair[2]), plan_diff.lines(dirs, pair))
      elseif pair[1].plan_hash ~= pair[2].plan_hash then
        untraced = untraced + 1
      end
    end
  end
  if untraced > 0 then
    core.say(("\n%d other plans differ, of which no trace was written; traces are of the first "
      .. "runs, so choose points by --set to see more"):format(untraced))
  end
end

local function say_speed(pairs_of)
  local ratios = values.new {}
  for _, pair in ipairs(pairs_of) do
    local a, b = pair[1].reference_ms, pair[2].reference_ms
    if a and b then ratios[#ratios + 1] = b / a end
  end
  if #ratios > 0 then
    core.say(("A fixed piece of work took %.3f times as long after as before; intervals are of the "
      .. "runs' times and do not contain this"):format(ratios:median()))
  end
end

local function load(dir)
  local data = results.load(dir)
  data.R = results.ended(data.runs)
  local set = {}
  for name, text in pairs(data.experiments[1] and data.experiments[1].set or {}) do
    set[#set + 1] = ("--set %s=%s"):format(name, text)
  end
  data.text = ("%s: %s, %s, %d runs %s"):format(dir, data.recipe and data.recipe.name or "-",
    data.date or "no date", #data.R.runs, table.concat(set, " "))
  for _, line in ipairs(number_bytes.lines(data.R.runs)) do
    data.text = data.text .. "\n        " .. line
  end
  return data
end

function M.diff()
  local dirs = core.args.folders
  local all = { load(dirs[1]), load(dirs[2]) }
  core.say(("before  %s\nafter   %s"):format(all[1].text, all[2].text))
  local pairs_of, alone = matched(all)
  local fields, equal = field_lines(pairs_of), #alone[1] + #alone[2] == 0
  for _, pair in ipairs(pairs_of) do
    equal = equal and not differs(pair) and mib(pair[1]) == mib(pair[2])
  end
  if equal and #fields == 0 then
    return core.say(("\nThe results are equal: times, memory and plans of %d runs"):format(
      #pairs_of))
  end
  if #pairs_of > 0 then
    core.say("\n" .. aligned.text(table_of(pairs_of)))
    say_speed(pairs_of)
  end
  say_all("What was run differs in", fields)
  say_alone("before", alone[1])
  say_alone("after", alone[2])
  say_plans(pairs_of, dirs)
end

return M
