-- Reads a run's trace file (engine/timeline): the rows of spans, the flows between collectives and
-- the ops that consume them, and the memory in use.
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local shape = require "moe.results.page.shape"

local M = {}

local MAX_SPANS = 8000  -- limit for a picture that can still be read

-- Shapes of the trace's events that are read; counters of links are not.
local TRACE = { traceEvents = { { ph = "string", pid = "number" } },
  ["otherData?"] = { ["left_out?"] = "string" } }
local SPAN = { tid = "number", name = "string", ts = "number", dur = "number", ["cat?"] = "string",
  ["args?"] = { ["op?"] = "string", ["phase?"] = "string", ["wait_us?"] = "number",
    ["bytes?"] = "number", ["part?"] = "number", ["waits_for?"] = "string" } }
local NAME = { tid = "number", name = "string", args = { ["name?"] = "string" } }
local FLOW = { tid = "number", ts = "number", id = "number" }
local MEMORY = { ts = "number", args = { GiB = "number" } }

local Reader = {}
Reader.__index = Reader

function Reader:row_of(e)
  local id = e.pid .. " " .. e.tid
  if not self.by_id[id] then
    self.by_id[id] = { pid = e.pid, tid = e.tid, lane = "lane " .. e.tid, spans = {} }
    self.rows[#self.rows + 1] = self.by_id[id]
  end
  return self.by_id[id]
end

function Reader:memory_of(e)
  local id = e.pid .. " memory"
  if not self.by_id[id] then
    self.by_id[id] = { pid = e.pid, tid = math.huge, lane = "memory", memory = {} }
    self.rows[#self.rows + 1] = self.by_id[id]
  end
  return self.by_id[id].memory
end

-- Functions of the event, indexed by its `ph`; check(shape) checks the event.
local READ = {}

function READ.X(self, e, check)
  check(SPAN)
  table.insert(self:row_of(e).spans, e)
  self.end_us = math.max(self.end_us, e.ts + e.dur)
end

function READ.M(self, e, check)
  check(NAME)
  if e.name == "process_name" then self.processes[e.pid] = e.args.name end
  if e.name == "thread_name" then self:row_of(e).lane = e.args.name end
end

function READ.C(self, e, check)
  if e.name ~= "memory" then return end
  check(MEMORY)
  table.insert(self:memory_of(e), { ts = e.ts, gib = e.args.GiB })
end

function READ.s(self, e, check)
  check(FLOW)
  self.begun[e.id] = { row = self:row_of(e), ts = e.ts }
end

function READ.f(self, e, check)
  check(FLOW)
  local from = self.begun[e.id]
  if from then
    self.flows[#self.flows + 1] = { from = from, to = { row = self:row_of(e), ts = e.ts } }
  end
end

--- Reads a run's trace; returns { rows = a list of { process, lane, spans or memory }, in order of
--- process and lane, flows = a list of { from = { row, ts }, to = { row, ts } }, end_us, left_out =
--- what the file says that it has left out, or nil }. Raises a user error that names the file if it
--- cannot be read or is not a trace.
function M.read(dir, run)
  local file = dir .. "/" .. run.trace
  local trace = results.json(file)
  shape.check(trace, TRACE, file)
  local self = setmetatable({ rows = {}, by_id = {}, processes = {}, begun = {}, flows = {},
    end_us = 0, left_out = (trace.otherData or {}).left_out }, Reader)
  for i, e in ipairs(trace.traceEvents) do
    local read = READ[e.ph]
    if read then
      read(self, e, function(wanted)
        shape.check(e, wanted, file, ("traceEvents[%d]"):format(i))
      end)
    end
  end
  schema.sorted(self.rows, function(row) return row.pid, row.tid end)
  for _, row in ipairs(self.rows) do
    row.process = self.processes[row.pid] or "process " .. row.pid
  end
  return self
end

--- Returns the number of events in the first `rows` rows as text if they are too many for a
--- readable picture, else nil.
function M.too_large(trace, rows)
  local count = 0
  for i = 1, math.min(rows, #trace.rows) do count = count + #(trace.rows[i].spans or {}) end
  return count > MAX_SPANS and ("%d events"):format(count) or nil
end

return M
