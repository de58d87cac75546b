-- The choices of tokens, which readers gather by step, layer and rank in any order, and writers
-- get token by token.
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"

local M = {}

M.NO_EXPERT = 65535
M.HIGHEST_LAYER = 1000000

local Batches = {}
Batches.__index = Batches

--- Choices of no tokens.
function M.batches()
  return setmetatable({ steps = {}, layers = {}, ranks = {} }, Batches)
end

--- Returns the choices of a step, layer (block) and rank, a list of experts from 0 to which readers
--- append. They set its fields file and line to where the last of them came from.
function Batches:at(step, layer, rank)
  self.layers[layer], self.ranks[rank] = true, true
  return files.at(files.at(files.at(self.steps, step), layer), rank)
end

--- Raises a user error for an expert that is not from 0 to below `experts` (0: not given).
function M.check_expert(expert, experts, name, line)
  local most = (experts > 0 and experts or M.NO_EXPERT) - 1
  if expert < 0 or expert > most then
    files.fail_at(name, line, "expert %.0f is not allowed; give 0 to %d", expert, most)
  end
end

--- Returns the keys of a table whose keys are numbers, ascending.
function M.keys(t)
  local out = {}
  for key in pairs(t) do out[#out + 1] = key end
  return out
end

-- Returns the choices of a step, layer and rank. Raises a user error when they are missing or are
-- no k for each token, and when the step and rank have another number of tokens in their first
-- layer.
function Batches:checked(step, layer, rank, first, k, source)
  local batch = self.steps[step][layer] and self.steps[step][layer][rank]
  if not batch then
    files.fail(source, "layer %d of step %d, rank %d is missing", layer, step, rank)
  end
  if #batch % k ~= 0 then
    files.fail_at(batch.file, batch.line, "layer %d has %d choices in step %d, which k = %d does "
      .. "not divide", layer, #batch, step, k)
  end
  local tokens = layer == first and #batch or #self:checked(step, first, rank, first, k, source)
  if #batch ~= tokens then
    files.fail_at(batch.file, batch.line, "layer %d has %d tokens in step %d, rank %d, but layer "
      .. "%d has %d; allowed: the same in all layers", layer, #batch / k, step, rank, first,
      tokens / k)
  end
  return batch
end

--- Writes the trace of the steps, layers and ranks that occur, ascending; returns its path. source:
--- the name of the file. c: moe.trace.import's fields; experts = 0 means one more than the highest
--- that occurs.
function Batches:write(source, c, k)
  local steps, layers, ranks = M.keys(self.steps), M.keys(self.layers), M.keys(self.ranks)
  if #steps == 0 then files.fail(source, "the file contains no routing") end
  local lists, most, highest = {}, 0, 0
  for _, step in ipairs(steps) do
    for _, layer in ipairs(layers) do
      for _, rank in ipairs(ranks) do
        local batch = self:checked(step, layer, rank, layers[1], k, source)
        lists[#lists + 1], most = batch, math.max(most, #batch)
        for i = 1, c.experts == 0 and #batch or 0 do
          if batch[i] > highest then highest = batch[i] end
        end
      end
    end
  end
  return errors.call(nil, core.trace_write, { to = c.to, source = source, steps = #steps,
    layers = #layers, ranks = #ranks, tokens = most / k, k = k, blocks = layers,
    experts = c.experts > 0 and c.experts or highest + 1 }, lists)
end

--- Opens a trace for a writer: its sizes as core.trace_info gives them, and loads and choices.
function M.open(path)
  local trace = errors.call(nil, core.trace_info, path)
  local handle = errors.call(nil, core.trace_routing, path, false)
  local function query(step, layer, rank)
    return { step = step, layer = layer, rank = rank, ranks = trace.ranks, tokens = trace.tokens,
      experts = trace.experts, k = trace.k }
  end
  --- The number of choices, indexed by [source rank][expert]; step and layer from 1.
  function trace.loads(step, layer)
    return errors.call(nil, core.loads, handle, query(step, layer))
  end
  --- The lines f(list of experts, place of the token's first) of the tokens with choices, in order.
  --- format: the name of the format that needs them. Raises a user error for a token with 1 to
  --- k - 1 choices, and for a trace with only counts.
  function trace.lines(step, layer, rank, format, f)
    if not trace.choices and trace.tokens > 0 then
      errors.user(("the trace has only counts, but the format %s needs the choices of each token")
        :format(format))
    end
    local list = errors.call(nil, core.choices, handle, query(step, layer, rank))
    local lines, k = {}, trace.k
    for first = 1, #list, k do
      local n = 0
      for i = first, first + k - 1 do
        if list[i] >= 0 then n = n + 1 end
      end
      if n == k then
        lines[#lines + 1] = f(list, first)
      elseif n > 0 then
        errors.user(("step %d, layer %d, rank %d, token %d: has %d of %d choices; the format %s "
          .. "needs all choices of a token, or none"):format(step - 1, layer - 1, rank - 1,
          (first - 1) / k, n, k, format))
      end
    end
    return lines
  end
  return trace
end

return M
