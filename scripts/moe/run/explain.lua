--- plan:explain() as text for people: what is exposed and why, what would help, and what each
--- collective took. Times are means over ranks.
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local EXPOSURE = {
  { "op", "string", "the collective" }, { "cause", "string", "as in causes" },
  { "why", "string", "in words" }, { "ms", "number", "mean over ranks" },
  { "from", "string?", "the op that was waited for" }, { "to", "string?", "the op that waited" },
  { "stage", "string?", "that ordered them" }, { "late_rank", "integer?", "the last to come" },
}
schema.record("exposure", "exposure", "time in which a rank's compute waits for a collective",
  EXPOSURE)

schema.record("finding", "finding", "an exposure, and what would help", {
  { "advice", "string", "what to do" },
  { "gain_ms", "number?", "what a step gains by it, by simulation" },
  { "worth_ms", "number", "a guess at it" }, unpack(EXPOSURE) })

schema.record("collective share", "share", "what became of a collective; means over ranks",
  {
    { "op", "string", "its name" }, { "kind", "string", "one of `moebench list ops`" },
    { "bytes", "number", "of a rank" }, { "alone_ms", "number", "what it takes alone" },
    { "waited_ms", "number", "posted and not begun" }, { "transfer_ms", "number", "on the wire" },
    { "hidden_ms", "number", "beside compute" }, { "exposed_ms", "number", "beside no compute" },
    { "hidden_by", "{ op: string, ms: number }[]", "the compute beside it" },
    { "exposed_by", "moe.Exposure[]", "why it is exposed" },
    { "delays", "moe.Exposure[]", "what made it begin late" },
  })

schema.record("explanation", "e", "why communication is exposed; tostring gives its text",
  {
    { "iteration_ms", "number", "time of the step" },
    { "exposed_ms", "number", "communication beside no compute, mean over ranks" },
    { "bound", "{ ms: number, by: string, busiest_lane_ms: number, critical_path_ms: number, "
      .. "distance_ms: number }", "no schedule is faster; distance_ms: how far off the step is" },
    { "causes", "{ cause: string, ms: number }[]", "sums of exposures, the largest first" },
    { "exposures", "moe.Exposure[]", "which add up to exposed_ms" },
    { "collectives", "moe.CollectiveShare[]", "in order" },
    { "findings", "moe.Finding[]", "best first" },
    { "idle", "{ stage: string, why: string }[]", "what stages were told and has no effect" },
    { "decisions", "moe.Decision[]", "of the passes" },
    { "text", "string", "all of it, for people" },
  })

schema.record("decision", "decision", "what a pass or schedule decided", {
  { "op", "string", "about which op" }, { "stage", "string", "which pass or schedule" },
  { "why", "string", "its reason" },
})

local MAX_FINDINGS, MAX_CAUSES, MAX_OPS = 8, 3, 2

local function add(lines, text, ...) lines[#lines + 1] = text:format(...) end

local function summary(lines, e)
  add(lines, "step %.3f ms, of it %.3f ms exposed communication; no schedule is below "
    .. "%.3f ms (%s), %.3f ms away",
    e.iteration_ms, e.exposed_ms, e.bound.ms, e.bound.by, e.bound.distance_ms)
  for _, c in ipairs(e.causes) do add(lines, "  %10.3f ms  %s", c.ms, c.cause) end
end

--- One finding in a line.
function M.finding(f)
  local worth = f.gain_ms and ("%.3f ms per step, by simulation"):format(f.gain_ms)
    or ("about %.3f ms, a guess"):format(f.worth_ms)
  return ("%s: %s. '%s' is exposed since %s"):format(worth, f.advice, f.op, f.why)
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
  add(lines, "collectives, ms: alone, waited, on the wire, hidden, exposed")
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

--- e: what the engine says, with `decisions`: the passes' log.
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

--- Of the core's plan, for the call at `at`: of a step of its result, the first unless given.
function M.of(plan, at, result, step)
  if type(result) ~= "table" then
    errors.user("explain: is a ':' missing? write result:explain(step)", at)
  end
  local e = errors.call(at, plan.explain, plan, { timelines = result.timelines, step = step })
  e.decisions = plan:info().log
  e.text = M.text(e)
  return setmetatable(e, { __tostring = function(self) return self.text end })
end

return M
