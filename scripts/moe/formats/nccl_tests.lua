-- The output of NVIDIA's nccl-tests (all_reduce_perf, alltoall_perf) as a table of payload and
-- time. Logs of NCCL itself are not read. A row is
--   size count type [redop] [root]  time algbw busbw #wrong  time algbw busbw #wrong
-- of which the first time (out of place, in microseconds) is used. Headers of versions without
-- `root`, with `error` instead of `#wrong`, and of runs with -c 0 (N/A) are accepted. Lines of
-- other origin (NCCL_DEBUG, MPI) are skipped.
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

local M = {}

local RESULT_COLUMNS = 8  -- time, algbw, busbw, errors: out of place, then in place
-- Largest nThread and nGpus that are accepted; a larger number means a damaged file.
local MOST_RANKS = 1000000
local KINDS = { alltoall_perf = "all_to_all", all_reduce_perf = "all_reduce" }

-- Returns the words of a line, without the prefix "[1,0]<stdout>:" of mpirun --tag-output.
local function words_of(line)
  local words = {}
  for word in line:gsub("^%[.-<stdout>:", ""):gmatch "%S+" do words[#words + 1] = word end
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
  if us == 0 then self:fail("time is %s at size %s, must be above 0", words[first], words[1]) end
  local last = self.rows[#self.rows]
  if last and size <= last[1] then
    self:fail("size %s is not above that of the row before, %.0f; use the log of one sweep with "
      .. "one type", words[1], last[1])
  end
  self.kind = redop and redop ~= "none" and "all_reduce" or "all_to_all"
  self.rows[#self.rows + 1] = { size, us }
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
    self.has_root, self.counts_wrong = false, false
    for _, word in ipairs(words) do
      self.has_root = self.has_root or word == "root"
      self.counts_wrong = self.counts_wrong or word == "#wrong"
    end
  elseif start == "Collective test starting:" then
    self.program = words[4]
  elseif start == "Out of bounds" and (words[6] or "0") ~= "0" then
    self:fail("nccl-tests reports out of bounds values: %s; the log is refused, because the "
      .. "results of the run are wrong", words[6])
  elseif start == "Avg bus bandwidth" then
    self.ended = true
  end
end

-- Returns the collective, which the program's name or else the last row says. A build may add a
-- suffix to the name (NAME_SUFFIX=_mpi).
function Log:collective()
  if not self.program then return self.kind end
  for name, kind in pairs(KINDS) do
    if self.program:find("^" .. name .. "%f[^%w]") then return kind end
  end
  files.fail(self.name, "it is a log of %s, allowed: all_reduce_perf, alltoall_perf", self.program)
end

--- Returns the log in a file: { kind = "all_to_all" or "all_reduce", ranks, rows = { { bytes, us },
--- ... } }, bytes per rank and ascending. Raises a user error naming the file and, for a fault in a
--- line, the line: fewer than two rows, no number of ranks, a row that is cut off or has no number,
--- sizes that do not ascend (several types or operations in one log), results that nccl-tests
--- reports as wrong, an operation that is neither an all-reduce nor an all-to-all, no closing "Avg
--- bus bandwidth" line (the run was cut off).
function M.read(path)
  local log = setmetatable({ name = path, number = 0, rows = {}, ranks = {},
    group_of_0 = "" }, Log)
  for line, number in files.lines(errors.call(nil, core.read_file, path)) do
    log.number = number
    log:line(words_of(line))
  end
  if #log.rows < 2 then
    files.fail(path, "it has %d rows of nccl-tests (size count type ... time), but needs at least "
      .. "2", #log.rows)
  end
  if not log.ended then
    files.fail(path, "the line 'Avg bus bandwidth' at the end is missing; was the run cut off?")
  end
  local kind = log:collective()
  local ranks = next(log.ranks) and (log.ranks[log.group_of_0] or 0) or log.shape
  if not ranks or ranks < 1 then
    files.fail(path, "a line with the number of ranks is missing ('# nThread ...' or '#  Rank  0 "
      .. "...')")
  end
  return { kind = kind, ranks = ranks, rows = log.rows }
end

return M
