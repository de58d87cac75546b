-- The tables that are printed to stdout. The page (moe.results.page) uses the same rows, which have
-- the form that aligned.text takes.
local aligned = require "moe.base.aligned"
local assumed_routing = require "moe.results.assumed_routing"
local claims_lib = require "moe.results.claims"
local core = require "moe.core"
local effects = require "moe.base.effects"
local paired = require "moe.results.paired"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

local MAX_LOSSES = 12  -- largest number of steps in the table of losses
local WIDE = 0.1       -- a spread of samples above this share of the median is marked

local function ms(v)
  if not v then return "-" end
  return ("%." .. (v >= 100 and 0 or v >= 10 and 1 or 2) .. "f"):format(v)
end

-- Returns "4", or "4,2,4" if layers have different degrees.
local function degrees_text(degrees)
  local same = true
  for _, degree in ipairs(degrees) do same = same and degree == degrees[1] end
  return same and tostring(degrees[1]) or table.concat(degrees, ",")
end

-- Returns the system's name with what was chosen for it: option or system, degrees, packing, and
-- with what it makes again.
local function system_text(run)
  local chosen = { run.choice }
  if run.degrees then chosen[#chosen + 1] = "degree=" .. degrees_text(run.degrees) end
  if run.packing then chosen[#chosen + 1] = ("packing=%d"):format(run.packing.n) end
  if run.zero then chosen[#chosen + 1] = ("zero=%d"):format(run.zero) end
  if run.recompute then chosen[#chosen + 1] = "recompute=" .. run.recompute end
  return #chosen > 0 and ("%s (%s)"):format(run.system, table.concat(chosen, " ")) or run.system
end

-- Name of the coordinate that holds the number of the entry in the experiment's `run`; it is shown
-- if several entries simulate.
local ENTRY = "run[]"

local function coordinate(run, name)
  if name == ENTRY then return tostring(run.entry) end
  return tostring(run.point[name])
end

-- Returns the names of the coordinates of the runs' points. "nodes" is omitted if it follows from
-- the number of devices, unless `all` is true.
local function coordinates(R, all)
  local names, nodes, entry = {}, {}, R.runs[1] and R.runs[1].entry
  for run in R:each() do
    for name in pairs(run.point) do names[name] = names[name] or all or name ~= "nodes" or nil end
    local seen = nodes[run.devices] or run.point.nodes
    nodes[run.devices] = seen
    if seen ~= run.point.nodes then names.nodes = true end
    if run.entry ~= entry then names[ENTRY] = true end
  end
  return schema.keys_of(names)
end

-- Returns the first cells of a row, which name the point of a run. They are empty if `said` is
-- true, which means that the row above has the same point.
local function point_cells(run, names, said)
  local cells = {}
  for i, name in ipairs(names) do cells[i] = said and "" or coordinate(run, name) end
  cells[#cells + 1] = said and "" or run.devices
  return cells
end

-- step_text returns the time of a step as text, "OOM" for a plan that does not fit in memory;
-- part_text returns the time of a part of the step, then "-".
local function step_text(run) return run.oom and "OOM" or ms(run.iteration_ms) end
local function part_text(run, key) return ms(not run.oom and run[key] or nil) end

local function speedup_text(base, run)
  if not run then return "-" end
  if run.oom then return "OOM" end
  return base and not base.oom and ("%.2fx"):format(base.iteration_ms / run.iteration_ms) or "-"
end

local function append(row, cells)
  for _, cell in ipairs(cells) do row[#row + 1] = cell end
  return row
end

local function simulated_rows(groups, names)
  local rows = { append({ unpack(names) }, { "GPUs", "system", "iteration ms", "vs first",
    "exposed comm ms", "hidden comm ms", "bound ms", "peak GiB" }) }
  for g, group in ipairs(groups) do
    if g > 1 then rows[#rows + 1] = {} end
    for i, run in ipairs(group) do
      rows[#rows + 1] = append(point_cells(run, names, i > 1), { system_text(run),
        step_text(run), speedup_text(group[1], run), part_text(run, "exposed_comm_ms"),
        part_text(run, "hidden_comm_ms"), part_text(run, "lower_bound_ms"),
        ("%.1f"):format(run.peak_bytes / 2 ^ 30) })
    end
  end
  return rows
end

-- Returns a table of speed-ups over the first system, with one row per point and one column per
-- other system, and the name of the first system.
local function speedup_rows(groups, names, R)
  local systems = R:groups(function(run) return { run.system } end)
  local rows = { append({ unpack(names) }, { "GPUs" }) }
  for i = 2, #systems do table.insert(rows[1], systems[i][1].system) end
  for _, group in ipairs(groups) do
    local by_system, cells = {}, {}
    for _, run in ipairs(group) do by_system[run.system] = run end
    local base = by_system[systems[1][1].system]
    for i = 2, #systems do
      cells[i - 1] = speedup_text(base, by_system[systems[i][1].system])
    end
    rows[#rows + 1] = append(point_cells(group[1], names), cells)
  end
  return rows, systems[1][1].system
end

-- Returns one line for each model, cluster and system that does not fit in a device's memory: the
-- largest number of bytes and what holds most of them, or which device has no room for its rows;
-- and why rows are padded if the model has no capacity.
local function out_of_memory_lines(R)
  local lines = {}
  local function kind(run) return { run.model, run.cluster, run.system } end
  for _, runs in ipairs(R:where { oom = true }:groups(kind)) do
    local worst = runs[1]
    for _, run in ipairs(runs) do
      if run.peak_bytes > worst.peak_bytes then worst = run end
    end
    local what = ("OOM: %s, %s on %s: "):format(worst.model, worst.system, worst.cluster)
    lines[#lines + 1] = what .. (worst.no_room
      or ("%.1f GiB do not fit in %.1f GiB; largest: %s"):format(worst.peak_bytes / 2 ^ 30,
        worst.memory_bytes / 2 ^ 30, worst.holders[1] or "-"))
    for _, decision in ipairs(worst.log or {}) do
      local why = decision:match "^rows %[rows%] (.*)"
      if why then lines[#lines + 1] = "     " .. why end
    end
  end
  return lines
end

local function say_all(lines)
  for _, line in ipairs(lines) do core.say(line) end
end

local function print_simulated_tables(R)
  local groups, names = R:groups(results.case_of), coordinates(R)
  core.say(aligned.text(simulated_rows(groups, names)))
  if #groups > 1 and #groups[1] > 1 then
    local rows, base = speedup_rows(groups, names, R)
    core.say(("\nSpeed-up over %s, simulated"):format(base))
    core.say(aligned.text(rows))
  end
end

-- Returns the range of a share over the runs as text: "41%" or "41 to 47%".
local function percents(shares)
  local lo, hi = ("%.0f"):format(100 * shares:min()), ("%.0f"):format(100 * shares:max())
  return (lo == hi and "%s%%" or "%s to %s%%"):format(lo, hi)
end

-- Says how much of the ops' time measurements give, where a cluster has measured op times.
local function measured_line(R)
  local gpus, measured, other = {}, values.new {}, values.new {}
  for run in R:each() do
    local c = run.cluster_parameters
    for _, name in ipairs { c and c.device.op_times or false, c and c.collective_times or false } do
      if name then gpus[name] = true end
    end
    if c and (c.device.op_times or c.collective_times) and run.measured_share then
      measured[#measured + 1], other[#other + 1] = run.measured_share, run.extrapolated_share
    end
  end
  if #measured == 0 then return end
  core.say(("Of the ops' time %s is measured on %s, %s follows from other measured sizes, the rest "
    .. "from rates and links; no whole step has run on a GPU"):format(percents(measured),
    table.concat(schema.keys_of(gpus), ", "), percents(other)))
end

local function print_simulated(e, R)
  local constants = {}
  for run in R:each() do
    for path in pairs(run.assumed or {}) do constants[path] = true end
  end
  local num = #schema.keys_of(constants)
  core.say("\nSimulated by a cost model that rests on " .. (num == 0 and "no assumed constant"
    or ("%d assumed constants (results.json has their bands)"):format(num)))
  measured_line(R)
  say_all(assumed_routing.lines(R.runs))
  if e.show then e.show(R) else print_simulated_tables(R) end
  say_all(out_of_memory_lines(R))
  say_all(effects.lines(R.runs))
end

-- Returns the shortest and longest time of the steps after the first as text, and whether their
-- difference is above the share WIDE of the median.
local function spread(run)
  local samples = values.new {}
  for i = 2, #run.samples_ms do samples[i - 1] = run.samples_ms[i] end
  if #samples == 0 then return "-", false end
  local lo, hi = samples:min(), samples:max()
  local wide = hi - lo > WIDE * samples:median()
  return ("%s..%s%s"):format(ms(lo), ms(hi), wide and " !" or ""), wide
end

-- Returns the difference of a run to the first one of its table as text: "0.93 (0.91..0.95)".
local function difference_text(run, first)
  local d = run ~= first and paired.difference(run, first)
  if not d then return "-" end
  local text = ("%.3f"):format(d.ratio)
  if d.lo then text = ("%s (%.3f..%.3f)"):format(text, d.lo, d.hi) end
  return d.verdict == "not resolved" and text .. " ~" or text
end

-- Returns the predicted time of a step with half its interval: "12.3 +-2.6%".
local function predicted_text(p)
  if not p.hi_ms then return ms(p.iteration_ms) end
  return ("%s +-%.1f%%"):format(ms(p.iteration_ms), 100 * (p.hi_ms / p.iteration_ms - 1))
end

local function times_rows(runs)
  local rows = { { "system", "iteration ms", "spread", "to first", "predicted", "error",
    "exposed ms", "predicted", "hidden ms", "predicted", "peak MiB" } }
  for i, run in ipairs(runs) do
    local p = run.prediction
    rows[i + 1] = { system_text(run), ms(run.iteration_ms), (spread(run)),
      difference_text(run, runs[1]), predicted_text(p),
      ("%+.1f%%%s"):format(100 * p.error, (run.disturbed or p.disturbed_ops) and " ?" or ""),
      ms(run.exposed_comm_ms), ms(p.exposed_comm_ms), ms(run.hidden_comm_ms), ms(p.hidden_comm_ms),
      run.executed_peak_bytes and ("%.1f"):format(run.executed_peak_bytes / 2 ^ 20) or "-" }
  end
  return rows
end

-- Returns lines on how the runs of a table took place: in turns or not, and how the machine's speed
-- changed between prediction and runs.
local function turns_lines(runs)
  local first, lines = runs[1], {}
  if first.turn_steps and #runs > 1 then
    append(lines, {
      ("In turns of %d steps. To first: times of the same steps divided by those of %s,"):format(
        first.turn_steps, first.system),
      "median with its 95% interval; ~: not resolved" })
  elseif first.one_by_one then
    lines[1] = "One after the other, not in turns: " .. first.one_by_one
  end
  local slower = first.prediction.slower
  if slower then
    append(lines, { ("Compute took %.3f times as long during the runs as when they were predicted;")
        :format(slower), "the errors are for equal speed" })
  end
  return lines
end

-- Returns up to MAX_LOSSES steps, evenly spread, including the first and the last.
local function some_steps(count)
  local steps, n = {}, math.min(count, MAX_LOSSES)
  for i = 1, n do
    steps[i] = n == 1 and 1 or math.floor(1 + (i - 1) * (count - 1) / (n - 1) + 0.5)
  end
  return steps
end

-- Returns the number of choices dropped in all steps of a run.
local function dropped(run)
  local sum = 0
  for _, count in ipairs(run.drops) do sum = sum + count end
  return sum
end

-- Returns the table of losses. Systems with equal digests and losses share a row; a run that failed
-- has no digest and gets a row of its own.
local function losses_rows(runs)
  local groups = results.new(runs):groups(function(run)
    return { run.digest or run.system, run.losses }
  end)
  local steps = some_steps(#runs[1].losses)
  local rows = { {} }
  for i, step in ipairs(steps) do rows[1][i] = (i == 1 and "loss at step " or "") .. step end
  append(rows[1], { "dropped", "digest", "systems" })
  for g, group in ipairs(groups) do
    local names, cells = {}, {}
    for i, run in ipairs(group) do names[i] = run.system end
    for i, step in ipairs(steps) do
      local loss = group[1].losses[step]
      cells[i] = loss and ("%.4f"):format(loss) or "-"
    end
    rows[g + 1] = append(cells, { dropped(group[1]), group[1].digest or "-",
      table.concat(names, " = ") })
  end
  return rows
end

-- Returns name -> value of the coordinates that are equal in all points of a run.
local function shared_point(run)
  local out = {}
  for name, value in pairs(run.points[1]) do
    out[name] = value
    for _, point in ipairs(run.points) do
      if point[name] ~= value then out[name] = nil end
    end
  end
  return out
end

-- Returns for each group of runs a text of the coordinates in which the groups differ: "gate =
-- top2".
local function point_differences(groups)
  local shared, texts = {}, {}
  for g, runs in ipairs(groups) do shared[g] = shared_point(runs[1]) end
  for g, point in ipairs(shared) do
    local parts = {}
    for name, value in pairs(point) do
      local differs = false
      for _, other in ipairs(shared) do differs = differs or other[name] ~= value end
      if differs then parts[#parts + 1] = ("%s = %s"):format(name, tostring(value)) end
    end
    texts[g] = table.concat(parts, ", ")
  end
  return texts
end

-- Paths of the fields of a run that every heading of executed runs shows.
local SAID = { device_name = true, devices = true, routing = true, ["link.bytes_per_s"] = true,
  ["link.latency_us"] = true, pace = true }
for _, name in ipairs { "layers", "hidden", "seq", "batch_per_device", "experts", "gate",
  "capacity_factor" } do
  SAID["parameters." .. name] = true
end

-- Returns a value as text; different numbers give different texts.
local function exact(value)
  return type(value) == "number" and core.json_encode(value) or tostring(value)
end

-- Adds path -> text to `out` for each plain value that `value` contains; returns out.
local function leaves(value, path, out)
  if type(value) ~= "table" then
    out[path] = exact(value)
    return out
  end
  for key, inner in pairs(value) do
    leaves(inner, path and ("%s.%s"):format(path, tostring(key)) or key, out)
  end
  return out
end

-- Returns for each group of runs a text of the fields in which the groups differ and that the
-- headings do not show: "optimizer.lr = 0.1".
local function case_differences(groups)
  local cases, all, texts = {}, {}, {}
  for g, runs in ipairs(groups) do
    local case = results.case_of(runs[1])
    case.cluster_parameters = nil  -- of an executed run they are those of the link
    cases[g] = leaves(case, nil, {})
    for path in pairs(cases[g]) do all[path] = not SAID[path] or nil end
  end
  -- The name of the architecture stands for the fields that only some architectures have.
  for _, case in ipairs(cases) do
    for path in pairs(all) do
      if path:find("^parameters%.") and not case[path] then all[path] = nil end
    end
  end
  for g, case in ipairs(cases) do
    local parts = {}
    for _, path in ipairs(schema.keys_of(all)) do
      local differs = false
      for _, other in ipairs(cases) do differs = differs or other[path] ~= case[path] end
      if differs then
        parts[#parts + 1] = ("%s = %s"):format(path:gsub("^parameters%.", ""),
          case[path] or "none")
      end
    end
    texts[g] = table.concat(parts, ", ")
  end
  return texts
end

--- Returns for each group of executed runs the lines that state in what it differs from the others.
local function differences(groups)
  local points, cases, lines = point_differences(groups), case_differences(groups), {}
  for g in ipairs(groups) do
    lines[g] = {}
    if points[g] ~= "" then lines[g][1] = "Points: " .. points[g] end
    if cases[g] ~= "" then lines[g][#lines[g] + 1] = "Here: " .. cases[g] end
  end
  return lines
end

-- Returns the lines of a heading for executed runs: ranks and link, model, and differences.
local function executed_lines(runs, differs)
  local first = runs[1]
  local p = first.parameters
  local ranks = first.device_name and ("%d ranks of %s"):format(first.devices, first.device_name)
    or ("%d CPU ranks"):format(first.devices)
  if first.pace then ranks = ("%s at pace %g"):format(ranks, first.pace) end
  return append({ ("Executed on %s, %s; provenance: %s"):format(ranks,
      first.link and ("emulated link of %s MB/s and %s us"):format(
        exact(first.link.bytes_per_s / 1e6), exact(first.link.latency_us)) or "no link",
      first.provenance),
    ("%d layers, hidden %d, seq %d, %d rows per rank, %d experts, %s, capacity %s"):format(
      p.layers, p.hidden, p.seq, p.batch_per_device, p.experts,
      assumed_routing.chooser(first),
      p.capacity_factor > 0 and "factor " .. exact(p.capacity_factor) or "none") }, differs)
end

-- Returns lines on the errors of the predictions and on the mark for a large spread of samples.
local function error_lines(runs)
  local off, wide, lines = values.new {}, false, turns_lines(runs)
  append(lines, assumed_routing.lines(runs, "Predicted with routing"))
  lines[#lines + 1] = runs[1].crowded
  for i, run in ipairs(runs) do
    off[i] = math.abs(run.prediction.error)
    wide = wide or select(2, spread(run))
  end
  for _, run in ipairs(runs) do
    if run.disturbed then
      lines[#lines + 1] = ("? %s was disturbed: %s"):format(run.system, run.disturbed)
    end
    local ops = run.prediction.disturbed_ops
    if ops then
      lines[#lines + 1] = ("? %d op time%s of the prediction of %s %s measured while the machine "
        .. "was disturbed"):format(ops, ops > 1 and "s" or "", run.system,
        ops > 1 and "were" or "was")
    end
  end
  if wide then lines[#lines + 1] = ("! a spread above %g%% of the median"):format(100 * WIDE) end
  lines[#lines + 1] = ("Median prediction error over %d runs: %.1f%%"):format(#off,
    100 * off:median())
  return lines
end

-- Returns the lines below the tables of executed runs: stages without effect, interrupted runs, and
-- the loss on held-out text.
local function closing_lines(runs)
  local first, lines = runs[1], effects.lines(runs)
  for _, run in ipairs(runs) do
    if run.stopped then
      lines[#lines + 1] = ("%s %s after %d steps"):format(run.system,
        run.stop_reason and "failed" or "was interrupted", #run.losses)
    end
  end
  if first.eval_loss and first.unigram_entropy then
    lines[#lines + 1] = ("Held-out loss %.4f; unigram entropy of the text %.4f nats"):format(
      first.eval_loss, first.unigram_entropy)
  end
  return lines
end

M.MEDIANS = "Medians over the steps after the first; predictions frozen before each run"

local function print_executed(runs, differs)
  core.say ""
  say_all(executed_lines(runs, differs))
  core.say(M.MEDIANS .. "\n")
  core.say(aligned.text(times_rows(runs)))
  say_all(error_lines(runs))
  core.say ""
  core.say(aligned.text(losses_rows(runs)))
  say_all(closing_lines(runs))
end

local function name_of(c) return c.id .. (c.label and (" (%s)"):format(c.label) or "") end

local function claims_rows(claims)
  local rows = { { "claim", "figure", "paper", "ours", "band", "verdict" } }
  for i, c in ipairs(claims) do
    local function number(x) return claims_lib.number_text(c.unit, x) end
    rows[i + 1] = { name_of(c), c.figure, claims_lib.number_text(c.unit, c.paper, "%g %s"),
      c.ours and number(c.ours) or "-",
      c.ours and c.lo < c.hi and number(c.lo) .. ".." .. number(c.hi) or "-", c.verdict }
  end
  return rows
end

local function print_claims(claims)
  core.say "\nClaims, ours over the bands of the assumed constants"
  core.say(aligned.text(claims_rows(claims)))
  if next(core.args.set or {}) then
    core.say "With --set, only for the points that it leaves, which may not be those of the claims"
  end
  core.say ""
  for _, c in ipairs(claims) do
    core.say(("%s: %s"):format(name_of(c), c.text))
    if c.reason then core.say("  " .. c.reason:gsub("; ", "\n  ")) end
    if c.note then core.say("  " .. c.note) end
  end
end

M.print_claims = print_claims

--- Functions that the page (moe.results.page) uses too. Those of `rows` return the rows of a table,
--- the header first; those of `lines` return lines of text.
M.rows = { simulated = simulated_rows, speedup = speedup_rows, times = times_rows,
  losses = losses_rows, claims = claims_rows }
M.lines = { out_of_memory = out_of_memory_lines, executed = executed_lines, errors = error_lines,
  closing = closing_lines }
M.coordinates, M.coordinate, M.differences, M.system_text, M.ms = coordinates, coordinate,
  differences, system_text, ms

function M.print(e, R, claims)
  core.say(e.name .. (e.title ~= "" and ": " .. e.title or ""))
  local simulated = R:where { provenance = "simulated" }
  if #simulated.runs > 0 then print_simulated(e, simulated) end
  local executed = R:where { provenance = { "emulated", "measured" } }:groups(results.case_of)
  local differs = differences(executed)
  for g, runs in ipairs(executed) do print_executed(runs, differs[g]) end
  if #claims > 0 then print_claims(claims) end
  if core.out_dir then core.say(("\nResults and traces: %s"):format(core.out_dir)) end
end

return M
