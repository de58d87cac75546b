--- The text of plan:explain(): which communication is exposed and why, what would help, and the
--- times of each collective. Times are means over ranks.
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local EXPOSURE = {
  { "op", "string", "the collective" },
  { "cause", "string", "one of the causes of the explanation" },
  { "why", "string", "the cause as a sentence" }, { "ms", "number", "time, mean over ranks" },
  { "from", "string?", "the op that made `to` or the collective wait" },
  { "to", "string?", "the op that waited" },
  { "stage", "string?",
    "the pass or schedule that made the order edge, lane order, priority or chunk" },
  { "late_rank", "integer?", "the rank that posted the collective last" },
}
schema.record("exposure", "exposure", "time in which a rank's compute waits for a collective",
  EXPOSURE)

schema.record("finding", "finding", "an exposure, and advice on it", {
  { "advice", "string", "what would shorten the step" },
  { "gain_ms", "number?", "by how much the step gets shorter, found by simulation" },
  { "worth_ms", "number", "estimate of by how much the step gets shorter" }, unpack(EXPOSURE) })

schema.record("collective share", "share", "the times of a collective, means over ranks", {
  { "op", "string", "name of the op" }, { "kind", "string", "one of `moebench list ops`" },
  { "bytes", "number", "bytes that a rank sends" },
  { "algorithm", "string?",
    'of an all-reduce: "ring", "tree", "two_level", "in_switch", or "measured"' },
  { "alone_ms", "number", "time of the collective if it runs alone" },
  { "waited_ms", "number", "time from post to begin, of all chunks" },
  { "transfer_ms", "number", "time in which bytes are on the links" },
  { "hidden_ms", "number", "the part of transfer_ms while compute runs" },
  { "exposed_ms", "number", "the part of the exposed time that this collective causes" },
  { "hidden_by", "{ op: string, ms: number }[]", "the compute ops that run at the same time" },
  { "exposed_by", "moe.Exposure[]", "the exposures of this collective" },
  { "delays", "moe.Exposure[]", "why the collective began late" },
})

schema.record("explanation", "e", "why communication is exposed; tostring returns `text`", {
  { "iteration_ms", "number", "time of the step" },
  { "exposed_ms", "number", "time of communication while no compute runs, mean over ranks" },
  { "bound", "{ ms: number, by: string, busiest_lane_ms: number, critical_path_ms: number, "
    .. "distance_ms: number }",
    "a time below which no schedule is (lower_bound_ms of a simulation and of results), and what "
    .. "determines it; distance_ms: step minus bound" },
  { "causes", "{ cause: string, ms: number }[]", "the exposed time of each cause, largest first" },
  { "exposures", "moe.Exposure[]", "all exposures; their times add up to exposed_ms" },
  { "collectives", "moe.CollectiveShare[]", "the collectives, in order" },
  { "findings", "moe.Finding[]", "exposures with advice, best first" },
  { "idle", "{ stage: string, why: string }[]", "stages without effect, and why" },
  { "decisions", "moe.Decision[]", "decisions of the passes" },
  { "pipeline", "moe.PipelineRank[]?", "of a plan with several: what each rank does in the step" },
  { "dispatcher", "moe.DispatcherUse?", "of a plan with one: links, SMs and waits" },
  { "text", "string", "the whole explanation as text" },
})

schema.record("decision", "decision", "a decision of a pass or schedule", {
  { "op", "string", "the op that the decision is about" },
  { "stage", "string", "name of the pass or schedule" },
  { "why", "string", "reason of the decision" },
})

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

-- What each pipeline rank does in the step (moe.PipelineRank), whose parts add up to it.
local function pipeline(lines, ranks)
  if not ranks then return end
  local names, head = {}, {}
  for name in pairs(schema.declared "bubbles") do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do head[i] = name:gsub("_ms$", "") end
  add(lines, "pipeline ranks; columns in ms: %s", table.concat(head, ", "))
  for r, rank in ipairs(ranks) do
    local cells = {}
    for i, name in ipairs(names) do cells[i] = ("%9.3f"):format(rank[name]) end
    add(lines, "  %s  rank %d", table.concat(cells, " "), r)
  end
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
      c.hidden_ms, c.exposed_ms, c.op .. (c.algorithm and ", by " .. c.algorithm or ""))
    if #c.hidden_by > 0 then
      add(lines, "    under %s", some(c.hidden_by, MAX_OPS, function(h) return h.op end))
    end
    if #c.exposed_by > 0 then
      add(lines, "    exposed: %s", some(c.exposed_by, MAX_CAUSES,
        function(x) return ("%.3f %s"):format(x.ms, x.why) end))
    end
  end
end

-- What the dispatcher's exchanges wait for and take from others. Without a law, links alone count.
local function dispatcher(lines, d)
  if not d then return end
  add(lines, "dispatcher %s: takes %d SMs%s; the CPU %s", d.name, d.sms, d.slower > 1
    and (", so that products beside it take %.2f times as long"):format(d.slower) or "",
    d.host_sync and "waits for counts" or "does not wait for counts")
  for _, way in ipairs { "dispatch", "combine" } do
    local x = d[way]
    if x then
      local by, most = "links", 0
      for _, part in ipairs { { "NICs", x.nic_us }, { "NVLink", x.nvlink_us },
          { "SMs that copy", x.sm_us } } do
        if part[2] > most then by, most = part[1], part[2] end
      end
      local parts = most > 0 and (" of %.1f us (NICs %.1f, NVLink %.1f, SMs %.1f, start %.1f)")
        :format(x.us, x.nic_us, x.nvlink_us, x.sm_us, x.start_us) or (" of %.1f us"):format(x.us)
      add(lines, "  %s in %s%s is bound by %s; a node sends %.2f MB, as published bandwidths count "
        .. "them, of which %.2f MB cross NICs, and %.2f MB cross NVLink", x.op, x.dtype, parts, by,
        x.logical_bytes / 1e6, x.nic_bytes / 1e6, x.nvlink_bytes / 1e6)
    end
  end
end

--- Returns the explanation as text. e: the engine's explanation, with e.decisions = the log of the
--- passes.
function M.text(e)
  local lines = {}
  summary(lines, e)
  pipeline(lines, e.pipeline)
  findings(lines, e)
  collectives(lines, e)
  dispatcher(lines, e.dispatcher)
  if #e.idle > 0 then add(lines, "without effect") end
  for _, s in ipairs(e.idle) do add(lines, "  %s: %s", s.stage, s.why) end
  if #e.decisions > 0 then add(lines, "decisions") end
  for _, d in ipairs(e.decisions) do add(lines, "  %s  [%s]  %s", d.op, d.stage, d.why) end
  return table.concat(lines, "\n")
end

--- Returns the explanation of a step of a result of the core's plan; step: by default the first.
--- ranks: what its pipeline ranks do, if it has several.
function M.of(plan, at, result, step, ranks)
  if type(result) ~= "table" then
    errors.user("explain: is a ':' missing? Write result:explain(step)", at)
  end
  local e = errors.call(at, plan.explain, plan, { timelines = result.timelines, step = step })
  local info = plan:info()
  e.decisions, e.dispatcher, e.pipeline = info.log, info.dispatcher, ranks
  e.text = M.text(e)
  return setmetatable(e, { __tostring = function(self) return self.text end })
end

return M
