-- What training frameworks print per step: Megatron-LM's and its forks' iteration lines,
--    iteration  142/ 250000 | consumed samples: .. | elapsed time per iteration (ms): 100863.4 | ..
-- with its memory lines (max allocated, MB), torchtitan's
--   step:  4  loss: 12.1754  memory: 17.97GiB(22.71%)  tps: 1,874  tflops: 389.87  mfu: 39.42%
-- and Tutel's (STEP-1: loss = 16.2, step_time = 0.024317 sec). Prefixes of launchers and loggers,
-- colours and all other lines are skipped.
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"
local paired = require "moe.results.paired"
local schema = require "moe.base.schema"

local M = {}

-- Returns the number in a text such as "1,874" or "2.466446E+00". what: names it in errors.
local function number(text, what, name, line)
  local value = tonumber((text:gsub(",", "")))
  if not value or value ~= value or math.abs(value) == math.huge then
    files.fail_at(name, line, "%s is '%s', must be a number", what, text)
  end
  return value
end

-- Readers of a line: each returns the step in it, or nil. at(text, what): number of this line.
local READERS = {
  megatron = function(line, at)
    local step = line:match "iteration%s+(%d+)/%s*%d+ |"
    if not step then return nil end
    local ms = line:match "elapsed time per iteration %(ms%):%s*(%S+)%s*|"
    if not ms then return { cut = "elapsed time per iteration (ms)" } end
    local loss, batch = line:match "lm loss:%s*(%S+)", line:match "global batch size:%s*(%S+)"
    return { step = at(step, "iteration"), ms = at(ms, "elapsed time per iteration (ms)"),
      loss = loss and at(loss, "lm loss"), sequences = batch and at(batch, "global batch size") }
  end,
  torchtitan = function(line, at)
    local step, rest = line:match "step:%s*(%d+)(%s+loss:.*)"
    if not step then return nil end
    local tps, memory = rest:match "tps:%s*(%S+)%s", rest:match "memory:%s*([%d.]+)GiB"
    if not tps then return { cut = "tps" } end
    return { step = at(step, "step"), rank = tonumber(line:match "%[rank(%d+)%]"),
      loss = at(rest:match "loss:%s*(%S+)", "loss"), tokens_per_s = at(tps, "tps"),
      memory_gib = memory and at(memory, "memory") }
  end,
  tutel = function(line, at)
    local step, loss, time = line:match "STEP%-(%d+): loss = ([^,]+), step_time = (%S+) sec"
    return step and { step = at(step, "STEP"), loss = at(loss, "loss"),
      ms = at(time, "step_time") * 1000 }
  end,
}

--- Steps at the beginning that `ms`, `spread` and `tokens_per_s` leave out: they compile, allocate
--- and warm up.
M.WARM_UP = 2

M.KINDS = { "megatron", "torchtitan", "tutel" }

--- Returns what a log says, the record "step log" below, of the framework `only` if
--- given. Raises a user error naming the file and, for a fault in a line, the line: no step, lines
--- of two frameworks or runs, a line that is cut off, a number that is none.
function M.read(path, only)
  local log, fullest, last = { steps = {} }, 0, {}
  for line, place in files.lines(errors.call(nil, core.read_file, path)) do
    local function at(text, what) return number(text, what, path, place) end
    line = line:gsub("\27%[[%d;]*m", "")
    for kind, read in pairs(READERS) do
      local step = (only or kind) == kind and read(line, at)
      if step then
        if step.cut then
          files.fail_at(path, place, "'%s' is missing; was it cut off?", step.cut)
        end
        if (log.kind or kind) ~= kind then
          files.fail_at(path, place, "a line of %s in a log of %s; moe.step_log(file, { kind = "
            .. "'%s' }) reads one of them", kind, log.kind, log.kind)
        end
        if (step.ms or step.tokens_per_s) <= 0 then
          files.fail_at(path, place, "step %d takes no time", step.step)
        end
        local rank = step.rank or 0
        if step.step <= (last[rank] or -1) then
          files.fail_at(path, place, "step %d comes after step %d; give the log of one run",
            step.step, last[rank])
        end
        last[rank] = step.step
        log.kind, log.steps[#log.steps + 1] = kind, step
        fullest = math.max(fullest, step.memory_gib or 0)
      end
    end
    local mb = line:match "max allocated:%s*([%d.]+)"
    if mb then fullest = math.max(fullest, at(mb, "max allocated") / 1024) end
  end
  if not log.kind then
    files.fail(path, "it has no line of a step, of Megatron-LM, torchtitan or Tutel")
  end
  local times, rates, after = {}, {}, log.steps[1].step + M.WARM_UP
  for _, step in ipairs(log.steps) do
    if step.step >= after or #log.steps <= M.WARM_UP then
      times[#times + 1], rates[#rates + 1] = step.ms, step.tokens_per_s
    end
  end
  local n = #times
  log.ms = n > 0 and paired.median(times) or nil
  log.tokens_per_s = #rates > 0 and paired.median(rates) or nil
  log.spread = n > 0 and (times[math.ceil(n * 0.75)] - times[math.ceil(n * 0.25)]) / log.ms or nil
  log.memory_gib = fullest > 0 and fullest or nil
  return log
end

local LOG = { kind = { type = "string", enum = M.KINDS,
  doc = "the framework, of a file with lines of several" } }

-- moe.step_log(file, { kind = }): what a run printed per step.
function M.step_log(file, how)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.step_log", at)
  return M.read(file, schema.check(LOG, how or {}, "moe.step_log", at).kind)
end

schema.record("step log", "log", "what a training framework printed per step", {
  { "kind", '"megatron"|"torchtitan"|"tutel"', "the framework" },
  { "steps", "{ step: integer, ms?: number, loss?: number, tokens_per_s?: number, memory_gib?: "
    .. "number, rank?: integer, sequences?: integer }[]", "the lines" },
  { "ms", "number?", "median time of a step after the first two" },
  { "tokens_per_s", "number?", "median rate per device after the first two steps" },
  { "spread", "number?", "of the times, the middle half's largest less smallest over ms" },
  { "memory_gib", "number?", "the most memory that a line states" },
})

return M
