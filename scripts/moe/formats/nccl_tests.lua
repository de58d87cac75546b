-- The output of NVIDIA's nccl-tests (all_reduce_perf, alltoall_perf) as a table of payload and
-- time. Logs of NCCL itself are not read. A row is
--   size count type [redop] [root]  time algbw busbw #wrong  time algbw busbw #wrong
-- of which the first time (out of place, in microseconds) is used. Headers of versions without
-- `root`, with `error` instead of `#wrong`, and of runs with -c 0 (N/A) are accepted. Lines of
-- other origin (NCCL_DEBUG, MPI) are skipped, as are prefixes of launchers and loggers. The report
-- of -J (JSON) has the same rows.
--
-- Payload: `size` is the bytes of a rank's whole send buffer. For all_reduce that is the tensor.
-- For alltoall, where the count per peer is size / ranks / bytes of the type, it includes the
-- rank's part for itself (algbw = size / time; busbw = algbw (n-1)/n excludes that part). Both
-- agree with payload_bytes() of an op, so sizes are used unchanged. Rows of size 0 (an all-to-all
-- of less than one element per peer) are skipped.
--
-- The number of ranks is the number of "Rank" lines of rank 0's group, else nThread * nGpus.
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"
local schema = require "moe.base.schema"

local M = {}

local RESULT_COLUMNS = 8  -- time, algbw, busbw, errors: out of place, then in place
-- Largest nThread and nGpus that are accepted; a larger number means a damaged file.
local MOST_RANKS = 1000000
local KINDS = { alltoall_perf = "all_to_all", all_reduce_perf = "all_reduce" }

local TYPES = {}
for name in ("int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 fp8_e4m3 fp8_e5m2 "
    .. "f8e4m3 f8e5m2 int char"):gmatch "%S+" do TYPES[name] = true end
local MOST_PREFIX = 6  -- words of a launcher's or a logger's prefix

-- Returns the words of a line from the '#' or the row on that a prefix stands before.
local function words_of(line)
  local words, first = {}, nil
  for word in line:gsub("^%[.-<stdout>:", ""):gmatch "%S+" do words[#words + 1] = word end
  for i = 1, math.min(#words, MOST_PREFIX) do
    local row = words[i]:find "^%d+$" and (words[i + 1] or ""):find "^%d+$" and TYPES[words[i + 2]]
    first = first or (row or words[i] == "#") and i or nil
  end
  for _ = 2, first or 1 do table.remove(words, 1) end
  return words
end

local function number_of(word)
  return not word:find "[xX]" and tonumber(word) or nil
end

-- A log that is read: its file (name), the number of the line, rows, and what lines have said.
local Log = {}
Log.__index = Log

function Log:fail(text, ...) files.fail_at(self.name, self.number, text, ...) end

function Log:result(column, word)
  local value = number_of(word)
  if not value or not (value >= 0 and value < math.huge) then
    self:fail("%s is '%s', must be a number of at least 0", column, word)
  end
  return value
end

function Log:count(name, word)
  local value = word:find "^%-?%d+$" and tonumber(word)
  if not value or value < 1 or value > MOST_RANKS then
    self:fail("%s is '%s', must be 1 to %d", name, word, MOST_RANKS)
  end
  return value
end

-- Reads a row of times.
function Log:row(words)
  local first, redop = 4, nil  -- first: result column, after size, count and type
  if words[first] and not number_of(words[first]) then first, redop = first + 1, words[first] end
  if self.has_root then first = first + 1 end
  local columns = first - 1 + RESULT_COLUMNS
  if #words < columns then
    self:fail("the row ends after %d of %d columns; was the log cut off?", #words, columns)
  end
  local size, us = self:result("size", words[1]), self:result("time", words[first])
  local wrong = words[first + 3]
  if self.counts_wrong and wrong ~= "N/A" and self:result("#wrong", wrong) > 0 then
    self:fail("#wrong is %s at size %s; the log is refused, because the results of the run are "
      .. "wrong", wrong, words[1])
  end
  if size == 0 then return end
  if self.ended then self:begin() end
  if us == 0 then self:fail("time is %s at size %s, must be above 0", words[first], words[1]) end
  local last = self.rows[#self.rows]
  if last and size <= last[1] then
    self:fail("size %s is not above that of the row before, %.0f; use the log of one sweep with "
      .. "one type", words[1], last[1])
  end
  self.kind = redop and redop ~= "none" and "all_reduce" or "all_to_all"
  self.rows[#self.rows + 1] = { size, us }
  -- The rates of the longest row say which collective it is.
  self.ratio = { number_of(words[first + 2]), number_of(words[first + 1]) }
end

-- Begins another table: a log may hold several runs.
function Log:begin()
  if #self.rows > 0 then self.tables[#self.tables + 1] = schema.merged(self, {}) end
  self.rows, self.ended, self.kind, self.ratio = {}, false, nil, nil
end

function Log:line(words)
  if words[1] == "#" then table.remove(words, 1) end
  local start = table.concat(words, " ", 1, math.min(3, #words))
  if not words[1] then return end
  if words[1]:find "^%-?%d+$" then
    self:row(words)
  elseif words[1] == "Rank" and words[2] then  -- "Rank  0 Group  0 Pid ..." or "Rank  0 Pid ..."
    local group = words[3] == "Group" and words[4] or ""
    self.ranks[group] = (self.ranks[group] or 0) + 1
    if words[2] == "0" then self.group_of_0 = group end
  elseif words[1] == "nThread" and words[3] == "nGpus" and words[4] then
    self.shape = self:count("nThread", words[2]) * self:count("nGpus", words[4])
  elseif words[1] == "size" then
    self:begin()
    self.has_root, self.counts_wrong = false, false
    for _, word in ipairs(words) do
      self.has_root = self.has_root or word == "root"
      self.counts_wrong = self.counts_wrong or word == "#wrong"
    end
  elseif start == "Collective test starting:" then
    self:begin()
    self.program, self.ranks, self.group_of_0, self.shape = words[4], {}, "", nil
  elseif start == "Out of bounds" and (words[6] or "0") ~= "0" then
    self:fail("nccl-tests reports out of bounds values: %s; the log is refused, because the "
      .. "results of the run are wrong", words[6])
  elseif start == "Avg bus bandwidth" then
    self.ended = true
  end
end

-- Reads the report of -J, whose rows become words of a text log's.
function Log:report(report)
  local function at(t, key, kind)
    local value = t[key]
    if type(value) ~= kind then self:fail("its field '%s' is missing or of another kind", key) end
    return value
  end
  self.program = (at(report, "args", "table")[1] or ""):match "[^/]*$"
  for _, device in ipairs(at(at(report, "config", "table"), "devices", "table")) do
    local group = tostring(device.group)
    self.ranks[group] = (self.ranks[group] or 0) + 1
    if device.rank == 0 then self.group_of_0 = group end
  end
  self.has_root, self.counts_wrong = true, true
  for i, one in ipairs(at(report, "results", "table")) do
    local times = at(one, "out_of_place", "table")
    local words = { ("%.0f"):format(at(one, "size", "number")), one.count, one.type, one.redop,
      "-1", at(times, "time", "number"), at(times, "alg_bw", "number"),
      at(times, "bus_bw", "number"), times.nwrong ~= core.null and times.nwrong or "N/A" }
    for n = 1, RESULT_COLUMNS + 5 do words[n] = tostring(words[n] or 0) end
    self.number = i
    self:row(words)
  end
  self.ended = at(at(report, "out_of_bounds", "table"), "count", "number") == 0
end

-- Returns the collective of a table, which the program's name or else its rows say. A build may add
-- a suffix to the name (NAME_SUFFIX=_mpi). Without a name the bus bandwidth must be the one that
-- nccl-tests computes of the time for it: (n - 1) / n of the algorithm's, twice that for a sum.
local function collective(path, t, ranks)
  for name, kind in pairs(KINDS) do
    if t.program and t.program:find("^" .. name .. "%f[^%w]") then return kind end
  end
  if t.program then
    files.fail(path, "it is a log of %s, allowed: all_reduce_perf, alltoall_perf", t.program)
  end
  local factor = (t.kind == "all_reduce" and 2 or 1) * (ranks - 1) / ranks
  local bus, rate = t.ratio[1] or 0, t.ratio[2] or 0
  -- Two decimals are printed, which say little of a rate below 0.5 GB/s.
  if rate >= 0.5 and math.abs(bus - factor * rate) > 0.02 * bus + 0.012 then
    files.fail(path, "it does not name its program, and busbw = %g is not %.3g algbw, as of an %s "
      .. "of %d ranks; allowed: logs of all_reduce_perf and alltoall_perf", bus, factor,
      t.kind == "all_reduce" and "all-reduce" or "all-to-all", ranks)
  end
  return t.kind
end

--- Returns the log in a file: { kind = "all_to_all" or "all_reduce", ranks, rows = { { bytes, us },
--- ... } }, bytes per rank and ascending. how: { table = which of several in the file, ranks =
--- their number where the log does not say it }. Raises a user error naming the file and, for a
--- fault in a line, the line: fewer than two rows, no number of ranks, a row that is cut off or has
--- no number, sizes that do not ascend, results that nccl-tests reports as wrong, an operation that
--- is neither an all-reduce nor an all-to-all, no closing "Avg bus bandwidth" line (the run was cut
--- off), several tables.
function M.read(path, how)
  how = how or {}
  local log = setmetatable({ name = path, number = 0, rows = {}, ranks = {}, tables = {},
    group_of_0 = "" }, Log)
  local text = errors.call(nil, core.read_file, path)
  if text:find "^%s*{" then
    log:report(files.object(text, path))
  else
    for line, number in files.lines(text) do
      log.number = number
      log:line(words_of(line))
    end
  end
  log:begin()
  local which = how.table or 1
  if #log.tables > 1 and not how.table or which > math.max(#log.tables, 1) then
    files.fail(path, "it has %d tables; give moe.nccl_tests(file, { table = 1 })", #log.tables)
  end
  local t = log.tables[which] or { rows = {}, ranks = {} }
  if #t.rows < 2 then
    files.fail(path, "it has %d rows of nccl-tests (size count type ... time), but needs at least "
      .. "2", #t.rows)
  end
  if not t.ended then
    files.fail(path, "the line 'Avg bus bandwidth' at the end is missing; was the run cut off?")
  end
  local ranks = how.ranks or next(t.ranks) and (t.ranks[t.group_of_0] or 0) or t.shape
  if not ranks or ranks < 1 then
    files.fail(path, "a line with the number of ranks is missing ('# nThread ...' or '#  Rank  0 "
      .. "...'); moe.nccl_tests(file, { ranks = 16 }) states it")
  end
  return { kind = collective(path, t, ranks), ranks = ranks, rows = t.rows }
end

return M
