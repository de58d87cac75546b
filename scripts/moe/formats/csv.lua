-- Lines "layer,expert", one per choice, with or without this header (written by llama.cpp's example
-- moe-trace). k lines are a token, consecutive lines of one layer are its tokens, and a step begins
-- where the layer number falls. One rank. Steps with fewer tokens get tokens without choices at
-- their end. A trace that is written loses ranks (their tokens follow each other), the border
-- between steps of a single layer, and tokens without choices.
local choices = require "moe.formats.choices"
local core = require "moe.core"
local files = require "moe.formats.files"

local M = {}

local HEAD = "layer,expert"

--- Writes the trace of the file; returns its path. c: fields of moe.trace.import.
function M.import(c)
  local file, batches = files.read(c.files[1]), choices.batches()
  local step, layer, first, batch = 0, -1, true, nil
  for line, number in files.lines(file.text) do
    local next_layer, expert = line:match "^(%d+),(%-?%d+)$"
    next_layer, expert = tonumber(next_layer), tonumber(expert)
    if not next_layer or next_layer > choices.HIGHEST_LAYER then
      if not (first and line == HEAD) then
        files.fail_at(file.name, number, "'%s' is not allowed; give two whole numbers as %s", line,
          HEAD)
      end
    else
      choices.check_expert(expert, c.experts, file.name, number)
      if next_layer ~= layer then
        if next_layer < layer then step = step + 1 end
        layer, batch = next_layer, batches:at(step, next_layer, 0)
      end
      table.insert(batch, expert)
      batch.file, batch.line = file.name, number
    end
    first = false
  end
  return batches:write(file.name, c, c.k)
end

--- Writes the file; returns a list of its path. c: fields of moe.trace.export.
function M.export(c)
  local trace, parts = choices.open(c.trace), { HEAD .. "\n" }
  for step = 1, trace.steps do
    for layer, block in ipairs(trace.blocks) do
      local lines = {}  -- of each expert
      for e = 0, trace.experts - 1 do lines[e] = ("%d,%d\n"):format(block - 1, e) end
      for rank = 1, trace.ranks do
        local tokens = trace.lines(step, layer, rank, "of llama.cpp", function(list, first)
          local text = ""
          for i = first, first + trace.k - 1 do text = text .. lines[list[i]] end
          return text
        end)
        parts[#parts + 1] = table.concat(tokens)
      end
    end
  end
  return { core.write_output(c.to, table.concat(parts)) }
end

return M
