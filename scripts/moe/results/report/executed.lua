-- Tables and lines on executed runs.
local aligned = require "moe.base.aligned"
local assumed_routing = require "moe.results.assumed_routing"
local core = require "moe.core"
local effects = require "moe.results.effects"
local exact = require("moe.results.report.differences").exact
local format = require "moe.results.report.format"
local number_bytes = require "moe.results.number_bytes"
local paired = require "moe.results.paired"
local results = require "moe.results.results"
local some = require("moe.results.charts.lines").some
local values = require "moe.base.values"

local M = {}

local ms = format.ms

local MAX_LOSSES = 12  -- largest number of steps in the table of losses
local WIDE = 0.1       -- a spread of samples above this share of the median is marked

-- Returns the shortest and longest time of the steps after the first as text, and whether their
-- difference is above the share WIDE of the median.
local function spread(run)
  local samples = format.later(run)
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

local function is_mean(runs) return runs[1].statistic == "mean" end

function M.rows(runs)
  local rows = { { "system", "iteration ms", "spread", "to first", "predicted", "error",
    "exposed ms", "predicted", "hidden ms", "predicted", "peak MiB" } }
  if is_mean(runs) then rows[1][3] = "median, spread" end
  for i, run in ipairs(runs) do
    local p = run.prediction
    rows[i + 1] = { format.system_text(run), ms(run.iteration_ms),
      (is_mean(runs) and ms(run.median_ms) .. ", " or "") .. spread(run),
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
    format.append(lines, {
      ("In turns, %s. To first: times of the same steps divided by those of %s,"):format(
        first.turn_steps == 1 and "step by step" or first.turn_steps .. " steps each",
        first.system),
      (is_mean(runs) and "ratio of means" or "median")
        .. " with its 95% interval; ~: not resolved" })
  elseif first.one_by_one then
    lines[1] = "One after the other, not in turns: " .. first.one_by_one
  end
  local slower = first.prediction.slower
  if slower then
    format.append(lines, { ("Compute took %.3f times as long during the runs as when they were "
      .. "predicted;"):format(slower), "the errors are for equal speed"
        .. (first.prediction.same_routing_ms and " and for the routing of the runs" or "") })
  end
  return lines
end

local function dropped(run)
  local sum = 0
  for _, count in ipairs(run.drops) do sum = sum + count end
  return sum
end

--- Returns the table of losses. Systems with equal digests and losses share a row; a run that
--- failed has no digest and gets a row of its own.
function M.losses_rows(runs)
  local groups = results.new(runs):groups(function(run)
    return { run.digest or run.system, run.losses }
  end)
  local steps = some(#runs[1].losses, MAX_LOSSES)
  local rows = { {} }
  for i, step in ipairs(steps) do rows[1][i] = (i == 1 and "loss at step " or "") .. step end
  format.append(rows[1], { "dropped", "digest", "systems" })
  for g, group in ipairs(groups) do
    local names, cells = {}, {}
    for i, run in ipairs(group) do names[i] = run.system end
    for i, step in ipairs(steps) do
      local loss = group[1].losses[step]
      cells[i] = loss and ("%.4f"):format(loss) or "-"
    end
    rows[g + 1] = format.append(cells, { dropped(group[1]), group[1].digest or "-",
      table.concat(names, " = ") })
  end
  return rows
end

--- Returns the lines of a heading for executed runs: ranks and link, model, and differences.
function M.lines(runs, differs)
  local first = runs[1]
  local p = first.parameters
  local ranks = first.device_name and ("%d ranks of %s"):format(first.devices, first.device_name)
    or ("%d CPU ranks"):format(first.devices)
  if first.pace then ranks = ("%s at pace %g"):format(ranks, first.pace) end
  return format.append({ ("Executed on %s, %s; provenance: %s"):format(ranks,
      first.link and ("emulated link of %s MB/s and %s us"):format(
        exact(first.link.bytes_per_s / 1e6), exact(first.link.latency_us)) or "no link",
      first.provenance),
    ("%d layers, hidden %d, seq %d, %d sequences per rank, %d experts, %s, capacity %s"):format(
      p.layers, p.hidden, p.seq, p.batch_per_device, p.experts,
      assumed_routing.chooser(first),
      p.capacity_factor > 0 and "factor " .. exact(p.capacity_factor) or "none"),
    unpack(format.append(number_bytes.lines(runs), number_bytes.wire_lines(runs))) }, differs)
end

--- Returns lines on the errors of the predictions and on the mark for a large spread of samples.
function M.error_lines(runs)
  local off, wide, lines = values.new {}, false, turns_lines(runs)
  format.append(lines, assumed_routing.lines(runs, "Predicted with routing"))
  lines[#lines + 1] = runs[1].crowded
  if runs[1].precision == "f64" then
    lines[#lines + 1] = "Predicted from ops in f32, which the fast kernels compute; f64 runs on "
      .. "the reference kernels, which are slower"
  end
  for i, run in ipairs(runs) do
    off[i] = math.abs(run.prediction.error)
    wide = wide or select(2, spread(run))
  end
  for _, run in ipairs(runs) do
    if run.launches_per_step then
      lines[#lines + 1] = ("%s launches %d kernels a step"):format(run.system,
        run.launches_per_step)
    end
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

--- Returns the lines below the tables of executed runs: stages without effect, interrupted runs,
--- and the loss on held-out text.
function M.closing_lines(runs)
  local first, lines = runs[1], effects.lines(runs)
  for _, run in ipairs(runs) do
    if run.stopped then
      lines[#lines + 1] = ("%s %s after %d step%s"):format(run.system, run.stop_reason and "failed"
        or "was interrupted", #run.losses, #run.losses == 1 and "" or "s")
    end
  end
  if first.resume_from then
    lines[#lines + 1] = ("Resumed from %s: step 1 is the first after the checkpoint"):format(
      first.resume_from)
  end
  if first.eval_loss and first.unigram_entropy then
    lines[#lines + 1] = ("Held-out loss %.4f; unigram entropy of the text %.4f nats"):format(
      first.eval_loss, first.unigram_entropy)
  end
  return lines
end

-- Returns whether nothing that a run's row says of times can be trusted: it was disturbed or its
-- ranks share cores, or its prediction is of disturbed ops and its steps differ widely.
local function is_untrusted(run)
  return run.disturbed or run.crowded or run.prediction.disturbed_ops and select(2, spread(run))
end

--- Returns the lines above the table: of which steps the times are, and whether all of its rows are
--- worthless.
function M.head(runs)
  local steps = 0
  for _, run in ipairs(runs) do steps = math.max(steps, #run.samples_ms) end
  local what = not is_mean(runs) and "Medians over the steps after the first"
    or ("Means over the %d steps after the first, since systems here place experts, which takes\n"
      .. "time in few of them"):format(steps - 1)
  local lines = { (steps > 1 and what
    or "Times of the first step, which is slower than later ones (steps = 1)")
    .. "; predictions frozen before each run" }
  for _, run in ipairs(runs) do
    if not is_untrusted(run) then return lines end
  end
  lines[2] = "Nothing in this table but its memory can be trusted: "
    .. (runs[1].crowded and "ranks share cores" or "the machine was busy")
    .. " in all of its runs, as the lines below it say"
  return lines
end

--- Prints the tables of executed runs of one case; differs: the lines of differences.lua.
function M.print(runs, differs)
  core.say ""
  format.say_all(M.lines(runs, differs))
  format.say_all(M.head(runs))
  core.say ""
  core.say(aligned.text(M.rows(runs)))
  format.say_all(M.error_lines(runs))
  core.say ""
  core.say(aligned.text(M.losses_rows(runs)))
  format.say_all(M.closing_lines(runs))
end

return M
