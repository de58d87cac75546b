-- runs.jsonl, the file of lines beside results.json: what is finished stands there at once, also
-- after a kill. The first line is what stands at the top of results.json; each further one is
--   { experiment = info }, { claim = verdict } or { run = number, record = run }
-- of which the last one of a number counts: an executed run is there before it begins, with its
-- frozen prediction, and again when it is over.
local core = require "moe.core"
local errors = require "moe.base.errors"

local M = {}

M.FILE = "runs.jsonl"

--- What a session writes: { note = function(line) }. head(): the first line, asked for once. The
--- file of a session before is given up with the first line.
function M.writer(head)
  local writer = { lines = 0 }
  local function append(line)
    core.append_output(M.FILE, core.json_encode(line) .. "\n", writer.lines == 0)
    writer.lines = writer.lines + 1
  end
  function writer.note(line)
    if writer.lines == 0 then append(head()) end
    append(line)
  end
  return writer
end

local function take(data, line, fail)
  if type(line) ~= "table" then fail "is no line that moebench writes" end
  if type(line.experiment) == "table" then
    data.experiments[#data.experiments + 1] = line.experiment
  elseif type(line.claim) == "table" then
    data.claims[#data.claims + 1] = line.claim
  elseif type(line.record) == "table" then
    local n = line.run
    if type(n) ~= "number" or n ~= math.floor(n) or n < 1 or n > #data.runs + 1 then
      fail(("run: %s stands where 1 to %d may"):format(tostring(n), #data.runs + 1))
    end
    data.runs[n] = line.record
  else
    fail "is no line that moebench writes"
  end
end

--- What stands in the text of such a file, as results.json has it, and in `lines` how many were
--- read. A last line that was cut off is left out, with a message. An error at `at` names the file
--- and the line that cannot be read.
function M.parse(text, file, at)
  local data, n, from = nil, 0, 1
  while from <= #text do
    local to = text:find("\n", from, true)
    local function fail(why) errors.user(("%s: line %d: %s"):format(file, n + 1, why), at) end
    local ok, line = pcall(core.json_decode, text:sub(from, to or -1))
    if not to or not ok and to == #text then
      core.warn(("%s: its last line was cut off and is left out"):format(file))
      break
    end
    if not ok then fail(type(line) == "table" and line.message or tostring(line)) end
    if data then
      take(data, line, fail)
    else
      if type(line) ~= "table" or not line.schema then fail "is no first line of moebench's" end
      data = line
      data.experiments, data.runs, data.claims = {}, {}, {}
    end
    n, from = n + 1, to + 1
  end
  if data then data.lines = n end
  return data
end

local function ended(data)
  local n = 0
  for _, run in ipairs(data.runs) do n = n + (run.iteration_ms and 1 or 0) end
  return n
end

--- Whether the lines know more than results.json, which is of a session before or was written
--- before the last of them; both as tables.
function M.is_newer(lines, whole)
  if lines.session == whole.session then return lines.lines > (whole.lines or 0) end
  return ended(lines) > 0
end

return M
