-- TensorRT-LLM's routing pattern file of bench_moe, one layer of one step:
--   {"ep_size", "experts_per_rank", "slot_dispatch_matrix": [source][target rank],
--    "expert_histogram": [target rank][its experts]}
-- A slot here is one choice. Without a histogram, a rank's slots are spread evenly over its
-- experts. Its trace has only counts: a source's slots for a target are divided over its experts in
-- proportion. A trace that is written loses other steps and layers, tokens, and which source chose
-- which expert of a rank.
local choices = require "moe.formats.choices"
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"

local M = {}

local MOST_SLOTS = 1e9  -- in one entry of a matrix

local function sum(list)
  local all = 0
  for _, n in ipairs(list) do all = all + n end
  return all
end

local function is_row(row, columns)
  local good = type(row) == "table" and #row == columns
  for c = 1, good and columns or 0 do
    good = good and files.is_whole(row[c]) and row[c] >= 0 and row[c] <= MOST_SLOTS
  end
  return good
end

-- Returns the field, a matrix of such sizes.
local function matrix(object, field, rows, columns, where)
  local value = object[field]
  if value == nil then files.fail(where, "field '%s' is missing", field) end
  if type(value) ~= "table" or #value ~= rows then
    files.fail(where, "field '%s': allowed: %d rows", field, rows)
  end
  for r, row in ipairs(value) do
    if not is_row(row, columns) then
      files.fail(where, "field '%s', row %d: allowed: %d whole numbers from 0 to %d", field, r - 1,
        columns, MOST_SLOTS)
    end
  end
  return value
end

-- Returns the slots that each expert of each target rank receives from all sources: by the field
-- expert_histogram or, without it, the slots of a rank spread evenly over its experts.
local function received(object, slots, experts, where)
  local known = object.expert_histogram ~= nil
  local rows = known and matrix(object, "expert_histogram", #slots, experts, where) or {}
  for target = 1, #slots do
    local column = 0
    for _, row in ipairs(slots) do column = column + row[target] end
    if not known then
      rows[target] = {}
      for e = 1, experts do
        rows[target][e] = math.floor(column / experts) + (e <= column % experts and 1 or 0)
      end
    elseif sum(rows[target]) ~= column then
      files.fail(where, "field 'expert_histogram', row %d: sums to %d, but column %d of "
        .. "slot_dispatch_matrix to %d; the sums must be equal", target - 1, sum(rows[target]),
        target - 1, column)
    end
  end
  return rows
end

-- Subtracts n in all from the values of `left`, in proportion to them, and appends what each lost
-- to `counts`; the shares with the largest remainders are rounded up.
local function take_in_proportion(n, left, counts)
  local all, given, remainders, begin = sum(left), 0, {}, #counts
  for e, l in ipairs(left) do
    local taken, rest = 0, 0
    if all > 0 then taken, rest = files.times_over(n, l, all) end
    counts[begin + e], given = taken, given + taken
    remainders[e] = { rest, e }
  end
  table.sort(remainders, function(a, b)
    if a[1] ~= b[1] then return a[1] > b[1] end
    return a[2] < b[2]
  end)
  for i = 1, n - given do
    local at = begin + remainders[i][2]
    counts[at] = counts[at] + 1
  end
  for e in ipairs(left) do left[e] = left[e] - counts[begin + e] end
end

-- Returns the most tokens of a source.
local function tokens_of(slots, k, where)
  local tokens = 0
  for s, row in ipairs(slots) do
    if sum(row) % k ~= 0 then
      files.fail(where, "field 'slot_dispatch_matrix', row %d: k = %d choices per token must "
        .. "divide the sum of the row, %d slots", s - 1, k, sum(row))
    end
    tokens = math.max(tokens, sum(row) / k)
  end
  if tokens == 0 then
    files.fail(where, "the file contains no routing: all entries of slot_dispatch_matrix are 0")
  end
  return tokens
end

--- Writes the trace of the file; returns its path. c: fields of moe.trace.import.
function M.import(c)
  local file = files.read(c.files[1])
  local where = file.name
  local object = files.object(file.text, where)
  local ranks = files.integer(object, "ep_size", where)
  local held = files.integer(object, "experts_per_rank", where)
  if ranks * held < 1 or ranks * held >= choices.NO_EXPERT then
    files.fail(where, "ep_size = %.0f times experts_per_rank = %.0f is not allowed; the product "
      .. "must be 1 to %d", ranks, held, choices.NO_EXPERT - 1)
  end
  local slots = matrix(object, "slot_dispatch_matrix", ranks, ranks, where)
  local left = received(object, slots, held, where)
  local tokens, counts = tokens_of(slots, c.k, where), {}
  for s, row in ipairs(slots) do
    counts[s] = {}
    for target, n in ipairs(row) do take_in_proportion(n, left[target], counts[s]) end
  end
  return errors.call(nil, core.trace_write, { to = c.to, source = where, counted = true, steps = 1,
    layers = 1, ranks = ranks, tokens = tokens, experts = ranks * held, k = c.k, blocks = { 0 } },
    counts)
end

--- Writes the file of one step and layer; returns a list of its path. c: fields of
--- moe.trace.export.
function M.export(c)
  local trace = choices.open(c.trace)
  if c.step > trace.steps or c.layer > trace.layers then
    errors.user(("there is no step %d, layer %d: the trace has %d steps of %d layers each"):format(
      c.step, c.layer, trace.steps, trace.layers))
  end
  if trace.experts % trace.ranks ~= 0 then
    errors.user(("%d experts do not divide evenly over %d ranks, as the format of TensorRT-LLM "
      .. "requires"):format(trace.experts, trace.ranks))
  end
  local held, slots, histogram = trace.experts / trace.ranks, {}, {}
  for rank = 1, trace.ranks do
    slots[rank], histogram[rank] = {}, {}
    for target = 1, trace.ranks do slots[rank][target] = 0 end
    for e = 1, held do histogram[rank][e] = 0 end
  end
  for s, row in ipairs(trace.loads(c.step, c.layer)) do
    for e, n in ipairs(row) do
      local target, own = math.ceil(e / held), (e - 1) % held + 1
      slots[s][target] = slots[s][target] + n
      histogram[target][own] = histogram[target][own] + n
    end
  end
  return { core.write_output(c.to, core.json_encode({ ep_size = trace.ranks,
    experts_per_rank = held, slot_dispatch_matrix = slots, expert_histogram = histogram }, 1)
    .. "\n") }
end

return M
