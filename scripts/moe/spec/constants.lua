-- moe.constants "lancet": the constants with which a paper's recipes simulate, and where each comes
-- from: those of models/PAPER.lua, of the clusters whose file says `paper = PAPER`, and of their
-- stacks. In these files an assumed constant has its own `source`; the other values have that of
-- their path, or of the nearest part of it, in the file's `sources`. A source that begins with
-- "none:" says how the value was chosen, one with "fitted:" to what. `elsewhere` of a model's file
-- lists what recipes and the engine set, by file: name, text that stands there, what it is, source.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

M.PAPERS = { "lancet", "lina", "pipemoe", "proprophet" }

-- Keys of the files that are no constants.
local APART = { doc = true, name = true, paper = true, sources = true, elsewhere = true,
  stacks = true }
-- Numbers of nodes for which clusters are shown, as rates may depend on them.
local NODES = { 2, 4, 8 }

-- Calls found(path, value) for every value in t; a list counts as one value.
local function walk(t, path, found, seen)
  seen[t] = true
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(x, y) return tostring(x) < tostring(y) end)
  for _, key in ipairs(keys) do
    local value = t[key]
    local at = (path and path .. "." or "") .. key
    if type(value) == "table" and not getmetatable(value) and #value == 0 then
      if not seen[value] then walk(value, at, found, seen) end
    elseif not APART[key] then
      found(at, value)
    end
  end
end

local function text_of(value)
  if type(value) == "number" then return ("%.6g"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  return type(value[1]) == "table" and "as counted" or table.concat(value, ", ")
end

-- Returns the part of the path that has a source, or the path itself.
local function part_with(sources, path)
  local part = path
  while part and not sources[part] do part = part:match "^(.*)%.[^.]*$" end
  return part or path
end

-- Appends the file's constants to `out`, those that stand there already left out.
local function add(out, file, data, suffix)
  local sources, rows = data.sources or {}, {}
  walk(data, nil, function(path, value)
    if schema.is_a("assumed", value) then
      rows[#rows + 1] = { file = file, name = path, value = ("%.6g"):format(value.value),
        lo = value.lo, hi = value.hi, why = value.why, source = value.source }
      return
    end
    local part = part_with(sources, path)
    local row = rows[part]
    if not row then
      row = { file = file, name = part, value = {}, source = sources[part] }
      rows[part], rows[#rows + 1] = row, row
    end
    local rest = path:sub(#part + 2)
    row.value[#row.value + 1] = (rest ~= "" and rest .. " = " or "") .. text_of(value)
  end, { [sources] = true, [data.elsewhere or sources] = true })
  for _, row in ipairs(rows) do
    if type(row.value) == "table" then
      row.value = #row.value > 24 and #row.value .. " values" or table.concat(row.value, ", ")
    end
    local key = file .. row.name
    if out[key] == nil or out[key] ~= row.value then
      if out[key] then row.name = row.name .. suffix end
      out[key], out[#out + 1] = row.value, row
    end
  end
end

--- moe.constants(paper): returns a list of { file, name, value, lo, hi, why, source }.
function M.constants(paper)
  local at, out = errors.here(), {}
  schema.field({ type = "string", required = true, enum = M.PAPERS }, paper, "moe.constants", at)
  local model, stacks = require("moe.models." .. paper), {}
  if type(model) == "function" then model = model(schema.assumed) end
  add(out, "models/" .. paper, model)
  for _, name in ipairs(core.library_files("clusters", ".lua")) do
    local file = require("moe.clusters." .. name)
    for _, nodes in ipairs(NODES) do
      local data = file(schema.assumed, require "moe.gpus.nodes", nodes)
      if data.paper == paper then
        add(out, "clusters/" .. name, data, (" from %d nodes on"):format(nodes))
        stacks[data.stack] = true
      end
    end
  end
  for _, name in ipairs(model.stacks or {}) do stacks[name] = true end
  for _, name in ipairs(schema.keys_of(stacks)) do
    add(out, "stacks/" .. name, require("moe.stacks." .. name)(schema.assumed))
  end
  for _, file in ipairs(schema.keys_of(model.elsewhere or {})) do
    for _, e in ipairs(model.elsewhere[file]) do
      out[#out + 1] = { file = file, name = e[1], value = e[2], why = e[3], source = e[4] }
    end
  end
  return out
end

--- Returns the rows of moe.constants of a built-in cluster of one node; none for another name.
function M.of_cluster(name)
  local out = {}
  for _, file in ipairs(core.library_files("clusters", ".lua")) do
    if file == name then
      add(out, "clusters/" .. name,
        require("moe.clusters." .. name)(schema.assumed, require "moe.gpus.nodes", 1), "")
    end
  end
  return out
end

schema.record("constant", "constant", "a constant with which recipes simulate", {
  { "file", "string", "the file that sets it, of scripts/moe/ or, with a suffix, of the project" },
  { "name", "string", "its path in the file" },
  { "value", "string", "its value, or those of the fields in it; of a constant of a recipe or of "
    .. "the engine the text that sets it" },
  { "lo", "number?", "lower end of its band, if it is assumed" },
  { "hi", "number?", "upper end" },
  { "why", "string?", "what it is, if it is assumed or set elsewhere" },
  { "source", "string?", "where it comes from; 'none: ' and how it was chosen; or 'fitted: ' and "
    .. "to what" },
})

return M
