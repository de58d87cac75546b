-- Measured times of collectives, which replace the formulas that a cluster otherwise uses:
--   collectives = { all_to_all = { { bytes, us }, ... }, all_reduce = moe.nccl_tests "file.log" }
-- bytes: what a rank sends, including what it sends to itself in an all-to-all; us: microseconds
-- until the last rank is done. Between rows times are interpolated. A part of an all-to-all that is
-- cut counts as an all-to-all of the part's bytes.
local errors = require "moe.base.errors"
local nccl_tests = require "moe.formats.nccl_tests"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("times", 'a list of { bytes, us }, or moe.nccl_tests "file.log"')

local TIMES = { type = "any", as = "number[][]|moe.Times",
  doc = "a list of { bytes, microseconds }, or moe.nccl_tests" }
M.FIELDS = { all_to_all = TIMES, all_reduce = TIMES }

M.ROWS = { type = "list", of = { type = "list", of = { type = "number", lo = 0, hi = 1e15 } } }

local function check_rows(rows, path, at)
  rows = schema.field(M.ROWS, rows, path, at)
  if #rows < 2 then errors.user(("%s: has %d rows; give at least 2"):format(path, #rows), at) end
  for i, row in ipairs(rows) do
    local place = ("%s[%d]"):format(path, i)
    if #row ~= 2 then
      errors.user(("%s: has %d numbers; give two: { bytes, us }"):format(place, #row), at)
    end
    if i > 1 and row[1] <= rows[i - 1][1] then
      errors.user(("%s: %g bytes come after %g; give rows in ascending order of bytes"):format(
        place, row[1], rows[i - 1][1]), at)
    end
  end
  return rows
end

--- Makes a table of times of the collective `kind` that were measured with `ranks` ranks; `source`
--- is the name of the file that they come from.
function M.measured(kind, rows, ranks, source, at)
  return schema.object({ kind = kind, rows = check_rows(rows, source .. "." .. kind, at),
    ranks = ranks, source = source }, mt)
end

M.HOW = {
  table = { type = "integer", lo = 1, hi = 1e6, doc = "which table of a file with several" },
  ranks = { type = "integer", lo = 1, hi = 1e6, doc = "number of ranks, where the log lacks it" },
}

--- moe.nccl_tests(file, how): a table of times from the output of NVIDIA's all_reduce_perf or
--- alltoall_perf (nccl-tests), text or JSON; the out-of-place times are taken.
function M.nccl_tests(file, how)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.nccl_tests", at)
  local log = nccl_tests.read(file, schema.check(M.HOW, how or {}, "moe.nccl_tests", at))
  return schema.object({ kind = log.kind, rows = log.rows, ranks = log.ranks, source = file }, mt)
end

local function resolve(kind, given, devices, path, at)
  if not schema.is_a("times", given, path, at) then
    if type(given) ~= "table" then schema.refuse(path, given, schema.classes.times.what, at) end
    return { rows = check_rows(given, path, at), source = "the recipe" }
  end
  if given.kind ~= kind then
    errors.user(("%s: %s has times of %s; give times of %s"):format(path, given.source, given.kind,
      kind), at)
  end
  if given.ranks ~= devices then
    errors.user(("%s: %s was measured with %d ranks, but the cluster has %d devices"):format(path,
      given.source, given.ranks, devices), at)
  end
  return { rows = given.rows, source = given.source }
end

--- Returns the tables as the core takes them: kind -> { rows, source }. Raises a user error if a
--- table is of another collective, or was measured with another number of ranks than the cluster
--- has devices.
function M.resolve(collectives, devices, path, at)
  local out = {}
  for kind in pairs(M.FIELDS) do
    if collectives[kind] ~= nil then
      out[kind] = resolve(kind, collectives[kind], devices, path .. "." .. kind, at)
    end
  end
  return out
end

return M
