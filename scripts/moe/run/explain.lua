--- The text of plan:explain(): which communication is exposed and why, what would help, and the
--- times of each collective. Times are means over ranks.
local errors = require "moe.base.errors"

local M = {}

local MAX_FINDINGS, MAX_CAUSES, MAX_OPS = 8, 3, 2

local function add(lines, text, ...) lines[#lines + 1] = text:format(...) end

local function summary(lines, e)
  add(lines, "step %.3f ms, of which %.3f ms are exposed communication; no schedule is below "
    .. "%.3f ms (%s), which is %.3f ms less",
    e.iteration_ms, e.exposed_ms, e.bound.ms, e.bound.by, e.bound.distance_ms)
  for _, c in ipairs(e.causes) do add(lines, "  %10.3f ms  %s", c.ms, c.cause) end
end

function M.finding(f)
  local worth = f.gain_ms and ("%.3f ms per step, by simulation"):format(f.gain_ms)
    or ("about %.3f ms, a guess"):format(f.worth_ms)
  return ("%s: %s. '%s' is exposed because %s"):format(worth, f.advice, f.op, f.why)
end

local function findings(lines, e)
  if #e.findings == 0 then return end
  add(lines, "what would help")
  for i, f in ipairs(e.findings) do
    if i > MAX_FINDINGS then
      add(lines, "  and %d more", #e.findings - MAX_FINDINGS)
      break
    end
    add(lines, "  %d. %s", i, M.finding(f))
  end
end

local function some(list, most, text)
  local parts = {}
  for i, item in ipairs(list) do
    if i > most then
      parts[i] = ("%d more"):format(#list - most)
      break
    end
    parts[i] = text(item)
  end
  return table.concat(parts, ", ")
end

local function collectives(lines, e)
  add(lines, "collectives; columns in ms: time alone, waiting, in transfer, hidden, exposed")
  for _, c in ipairs(e.collectives) do
    add(lines, "  %9.3f %9.3f %9.3f %9.3f %9.3f  %s", c.alone_ms, c.waited_ms, c.transfer_ms,
      c.hidden_ms, c.exposed_ms, c.op)
    if #c.hidden_by > 0 then
      add(lines, "    under %s", some(c.hidden_by, MAX_OPS, function(h) return h.op end))
    end
    if #c.exposed_by > 0 then
      add(lines, "    exposed: %s", some(c.exposed_by, MAX_CAUSES,
        function(x) return ("%.3f %s"):format(x.ms, x.why) end))
    end
  end
end

--- Returns the text. e: the engine's explanation, with e.decisions = the log of the passes.
function M.text(e)
  local lines = {}
  summary(lines, e)
  findings(lines, e)
  collectives(lines, e)
  if #e.idle > 0 then add(lines, "without effect") end
  for _, s in ipairs(e.idle) do add(lines, "  %s: %s", s.stage, s.why) end
  if #e.decisions > 0 then add(lines, "decisions") end
  for _, d in ipairs(e.decisions) do add(lines, "  %s  [%s]  %s", d.op, d.stage, d.why) end
  return table.concat(lines, "\n")
end

--- Explains one step of a result of the core's plan; step: by default the first.
function M.of(plan, at, result, step)
  if type(result) ~= "table" then
    errors.user("explain: is a ':' missing? Write result:explain(step)", at)
  end
  local e = errors.call(at, plan.explain, plan, { timelines = result.timelines, step = step })
  e.decisions = plan:info().log
  e.text = M.text(e)
  return setmetatable(e, { __tostring = function(self) return self.text end })
end

return M
