-- runs.jsonl, a file next to results.json to which every finished run is appended at once, so that
-- the run is not lost when the process is killed. The first line has the fields at the top of
-- results.json; each further line is
--   { experiment = info }, { claim = verdict }, { sensitivity = record },
--   { search = what was found } or { run = number, record = run }
-- The last line with a run's number is valid: an executed run is written before it begins, with its
-- frozen prediction, and again when it has ended.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

M.FILE = "runs.jsonl"

--- Key of a line -> the list of results.json that its value is appended to.
M.LISTS = { experiment = "experiments", claim = "claims", sensitivity = "sensitivities",
  search = "searches" }

--- Returns the writer of this process: { note = function(line) }, which appends a line. head() is
--- called once and returns the first line. Writing the first line replaces an older file.
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
  for kind, list in pairs(type(line) == "table" and M.LISTS or {}) do
    if type(line[kind]) == "table" then
      data[list] = data[list] or {}
      return table.insert(data[list], line[kind])
    end
  end
  if type(line) ~= "table" or type(line.record) ~= "table" then
    fail "the line was not written by moebench"
  end
  local n = line.run
  if type(n) ~= "number" or n ~= math.floor(n) or n < 1 or n > #data.runs + 1 then
    fail(("run: the number is %s; allowed: 1 to %d"):format(schema.show(n), #data.runs + 1))
  end
  data.runs[n] = line.record
end

--- Parses the text of a runs.jsonl. Returns a table like that of results.json, whose field `lines`
--- is the number of lines read; nil if there is no complete line. A last line that was cut off is
--- skipped, with a warning. Raises a user error at `at` that names the file and the first line that
--- cannot be read.
function M.parse(text, file, at)
  local data, n, from = nil, 0, 1
  while from <= #text do
    local to = text:find("\n", from, true)
    local function fail(why) errors.user(("%s: line %d: %s"):format(file, n + 1, why), at) end
    local ok, line = pcall(core.json_decode, text:sub(from, to or -1))
    if not to or not ok and to == #text then
      core.warn(("%s: the last line is cut off and is skipped"):format(file))
      break
    end
    if not ok then fail(type(line) == "table" and line.message or tostring(line)) end
    if data then
      take(data, line, fail)
    else
      if type(line) ~= "table" or not line.schema then
        fail "the line is not the first line of a file that moebench writes"
      end
      data = line
      data.experiments, data.runs, data.claims, data.sensitivities = {}, {}, {}, {}
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

--- Returns whether runs.jsonl is newer than results.json: it has lines that were written after
--- results.json by the same process, or it is from another process and has a run that ended. Both
--- arguments are tables.
function M.is_newer(lines, whole)
  if lines.session == whole.session then return lines.lines > (whole.lines or 0) end
  return ended(lines) > 0
end

return M
