-- Files of Megatron-LM's RouterTracer (its pull request 5220): one file per rank, one JSON object
-- per line,
--   {"step", "stage": "pre_dispatch", "block": "decoder", "layer", "rank", "num_tokens", "topk",
--    "top_indices": [[expert, ...], ...]}
-- Records of other stages or blocks (multi-token prediction) are ignored. Several records of one
-- step, layer and rank are micro-batches, one after the other. Steps, layers and ranks are those
-- that occur, ascending; `layer` becomes the block. A rank with fewer tokens than another has
-- tokens without choices at its end. Lost: hidden states, logits, all other fields. The tracer
-- itself writes the experts of a token in ascending order when its router returns a map. Files that
-- are written have no tokens without choices.
local choices = require "moe.formats.choices"
local core = require "moe.core"
local files = require "moe.formats.files"

local M = {}

-- Appends the choices in the field top_indices to the batch.
local function add_indices(record, k, experts, batch, where)
  local tokens, rows = files.integer(record, "num_tokens", where), record.top_indices
  if type(rows) ~= "table" or #rows ~= tokens then
    files.fail(where, "field 'top_indices' is not a list of num_tokens = %d tokens", tokens)
  end
  local n = #batch
  for _, row in ipairs(rows) do
    if type(row) ~= "table" or #row ~= k then
      files.fail(where, "field 'top_indices' has the row %s; allowed: topk = %d experts",
        files.shown(row), k)
    end
    for i = 1, k do
      if not files.is_whole(row[i]) then
        files.fail(where, "field 'top_indices' has the entry %s; allowed: whole numbers",
          files.shown(row[i]))
      end
      choices.check_expert(row[i], experts, batch.file, batch.line)
      n = n + 1
      batch[n] = row[i]
    end
  end
end

-- Adds the choices of a line; returns k. k: of the lines before, or nil.
local function add_line(batches, file, line, number, k, experts)
  local where = ("%s:%d"):format(file.name, number)
  local record = files.object(line, where)
  if (record.stage or "pre_dispatch") ~= "pre_dispatch"
    or (record.block or "decoder") ~= "decoder" then
    return k
  end
  local topk = files.integer(record, "topk", where)
  if topk ~= (k or topk) or topk == 0 then
    files.fail(where, "field 'topk' is %d; allowed: %d (at least 1, and the same in all records)",
      topk, k or 1)
  end
  local layer = files.integer(record, "layer", where)
  if layer > choices.HIGHEST_LAYER then
    files.fail(where, "field 'layer' is %d; allowed: 0 to %d", layer, choices.HIGHEST_LAYER)
  end
  local batch = batches:at(files.integer(record, "step", where), layer,
    files.integer(record, "rank", where))
  batch.file, batch.line = file.name, number
  add_indices(record, topk, experts, batch, where)
  return topk
end

--- Writes the trace of the files; returns its path. c: fields of moe.trace.import.
function M.import(c)
  local batches, k = choices.batches(), nil
  for _, path in ipairs(c.files) do
    local file = files.read(path)
    for line, number in files.lines(file.text) do
      k = add_line(batches, file, line, number, k, c.experts)
    end
  end
  return batches:write(c.files[1]:match "[^/]*$", c, k)
end

--- Writes a file per rank; returns their paths. c: fields of moe.trace.export.
function M.export(c)
  local trace, paths = choices.open(c.trace), {}
  for rank = 1, trace.ranks do
    local parts = {}
    for step = 1, trace.steps do
      for layer, block in ipairs(trace.blocks) do
        local rows = trace.lines(step, layer, rank, "of Megatron-LM", function(list, first)
          return "[" .. table.concat(list, ", ", first, first + trace.k - 1) .. "]"
        end)
        parts[#parts + 1] = ('{"step": %d, "stage": "pre_dispatch", "block": "decoder", "layer": '
          .. '%d, "rank": %d, "num_tokens": %d, "topk": %d, "top_indices": [%s]}\n'):format(
          step - 1, block - 1, rank - 1, #rows, trace.k, table.concat(rows, ", "))
      end
    end
    paths[rank] = core.write_output(("%s_rank%d.jsonl"):format(c.to, rank - 1),
      table.concat(parts))
  end
  return paths
end

return M
