-- Counts of choices by [step][layer][expert], as trainers and serving engines log them: JSON (a
-- list of lists, of which the outer ones may be missing, alone or in a field of an object, which is
-- its only list or the only one named by load, count, token or weight), CSV with the columns expert
-- and count or tokens (and step, layer), or .npy. Which rank sent a choice is not known: choices
-- are dealt to the ranks in turn, evenly. Counts that do not give every token k choices are scaled
-- to `tokens` per rank, with the largest remainders.
local choices = require "moe.formats.choices"
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"
local npy = require "moe.formats.npy"

local M = {}

-- Returns the nesting of a value: 0 for a number.
local function depth(value)
  if type(value) ~= "table" or #value == 0 then return 0 end
  return 1 + depth(value[1])
end

local function number(value, where)
  if type(value) ~= "number" or value < 0 or value ~= value or value > 2 ^ 53 then
    files.fail(where, "a count is %s; allowed: a number from 0", files.shown(value))
  end
  return value
end

-- Returns counts[step][layer][expert] of nested lists with one to three levels.
local function levels(value, name)
  local deep = depth(value)
  if deep < 1 or deep > 3 then
    files.fail(name, "it has no list of counts by [step][layer][expert]")
  end
  for _ = deep, 2 do value = { value } end
  local layers, experts = #value[1], #value[1][1]
  for s, step in ipairs(value) do
    if type(step) ~= "table" or #step ~= layers then
      files.fail(name, "step %d has another number of layers than the first, %d", s, layers)
    end
    for l, layer in ipairs(step) do
      local where = ("%s: step %d, layer %d"):format(name, s, l)
      if type(layer) ~= "table" or #layer ~= experts then
        files.fail(where, "it has another number of experts than the first, %d", experts)
      end
      for _, count in ipairs(layer) do number(count, where) end
    end
  end
  return value
end

local function of_json(file)
  local value = errors.call(nil, core.json_decode, file.text, file.name)
  if type(value) == "table" and #value == 0 then
    local lists, named = {}, {}
    for _, name in ipairs(choices.keys(value)) do
      if depth(value[name]) > 0 then
        table.insert(lists, name)
        table.insert((name:find "load" or name:find "count" or name:find "token"
          or name:find "weight") and named or {}, name)
      end
    end
    local name = #lists == 1 and lists[1] or #named == 1 and named[1]
    if not name and lists[1] then
      files.fail(file.name, "which of its lists %s has the counts? Leave one of them",
        table.concat(lists, ", "))
    end
    value = value[name]
  end
  return levels(value, file.name)
end

-- Returns list[i] as a list without gaps of the keys of `all`, ascending.
local function of_csv(file)
  local places, counts, layers, experts = nil, {}, {}, 0
  for line, n in files.lines(file.text) do
    local fields = files.cells(line)
    if not places then
      places = {}
      for i, name in ipairs(fields) do places[name] = i end
      places.count = places.count or places.tokens
      if not (places.expert and places.count) then
        files.fail_at(file.name, n, "the header '%s' lacks the columns expert and count", line)
      end
    else
      local function at(column, default)
        if not places[column] then return default end
        local value = tonumber(fields[places[column]])
        if not value or not files.is_whole(value) or value < 0 then
          files.fail_at(file.name, n, "%s '%s' is not allowed; give a whole number from 0", column,
            fields[places[column]] or "")
        end
        return value
      end
      local step, layer, expert = at("step", 0), at("layer", 0), at "expert"
      choices.check_expert(expert, 0, file.name, n)
      local of_layer = files.at(files.at(counts, step), layer)
      if of_layer[expert] then
        files.fail_at(file.name, n, "step %d, layer %d, expert %d stands twice", step, layer,
          expert)
      end
      of_layer[expert], layers[layer] = at "count", true
      experts = math.max(experts, expert + 1)
    end
  end
  local out = {}
  for s, step in ipairs(choices.keys(counts)) do
    out[s] = {}
    for l, layer in ipairs(choices.keys(layers)) do
      out[s][l] = {}
      for e = 1, experts do out[s][l][e] = (counts[step][layer] or {})[e - 1] or 0 end
    end
  end
  return levels(out, file.name)
end

--- Returns counts[step][layer][expert] of a file.
function M.read(path)
  local file = files.read(path)
  if file.text:sub(1, 6) == npy.MAGIC then return levels(npy.lists(file), file.name) end
  local first = file.text:match "^%s*(.)"
  if first == "{" or first == "[" then return of_json(file) end
  return of_csv(file)
end

-- Returns the counts of a layer as whole numbers whose sum is `total`.
local function scaled(counts, total, where)
  local sum, left, out, rest = 0, total, {}, {}
  for _, n in ipairs(counts) do sum = sum + n end
  if sum == 0 then files.fail(where, "all of its counts are 0") end
  for e, n in ipairs(counts) do
    out[e] = math.floor(n * total / sum)
    rest[e], left = { n * total / sum - out[e], e }, left - out[e]
  end
  table.sort(rest, function(a, b) return a[1] > b[1] or a[1] == b[1] and a[2] < b[2] end)
  for i = 1, left do out[rest[i][2]] = out[rest[i][2]] + 1 end
  return out
end

-- Appends the counts of each source to `lists`: choice i of the layer is of rank i mod ranks.
local function deal(counts, ranks, lists)
  local before, begin = 0, #lists
  for s = 1, ranks do lists[begin + s] = {} end
  for e, n in ipairs(counts) do
    for s = 1, ranks do
      lists[begin + s][e] = math.floor((before + n + ranks - s) / ranks)
        - math.floor((before + ranks - s) / ranks)
    end
    before = before + n
  end
end

--- Writes the trace of the file; returns its path. c: fields of moe.trace.import.
function M.import(c)
  local counts, name, lists = M.read(c.files[1]), c.files[1]:match "[^/]*$", {}
  local layers, experts, blocks = #counts[1], #counts[1][1], {}
  if not c.ranks then
    files.fail(name, "it does not say how many ranks have tokens; give moe.trace.import ranks")
  end
  local each, tokens = c.ranks * c.k, c.tokens
  for l = 1, layers do blocks[l] = l end
  for s, step in ipairs(counts) do
    for l, layer in ipairs(step) do
      local sum, most, where = 0, 0, ("%s: step %d, layer %d"):format(name, s, l)
      for _, n in ipairs(layer) do sum = sum + n end
      tokens = tokens or sum / each
      if c.tokens then layer = scaled(layer, tokens * each, where) end
      for _, n in ipairs(layer) do most = math.max(most, n) end
      if not c.tokens and (sum ~= tokens * each or tokens ~= math.floor(tokens) or tokens == 0) then
        files.fail(where, "it has %.0f choices, which are not k = %d of each of %d ranks' tokens, "
          .. "as many in all layers; give tokens per rank, to which counts are scaled", sum, c.k,
          c.ranks)
      elseif most > tokens * c.ranks then
        files.fail(where, "an expert has %.0f choices, but there are %.0f tokens, which choose "
          .. "each expert once at most; give a smaller k", most, tokens * c.ranks)
      end
      deal(layer, c.ranks, lists)
    end
  end
  return errors.call(nil, core.trace_write, { to = c.to, source = name, counted = true,
    steps = #counts, layers = layers, ranks = c.ranks, tokens = tokens, experts = experts, k = c.k,
    blocks = blocks }, lists)
end

return M
