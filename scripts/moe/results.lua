-- Results: a list of runs with selectors. A run is a plain table as in results.json.
--   R:where{ system = "lancet", gpu = "p4de" }   runs whose field, or field of the point, is equal
--   R:each()                                     iterator over runs
--   R:get("iteration_ms")                        list of values
--   R:ratio{ "iteration_ms", of = "lancet", to = { "raf", "tutel" } }
--                                                a value a point: best of `to` divided by `of`
--   :mean() :max() :min() :median()              of such a list
--   R:table{ rows = { "gpu", "nodes" }, cols = "system", cell = function(run) return text end }
local core = require "moe.core"
local errors = require "moe.errors"

local M = {}

local Values = {}
Values.__index = Values

local function values(list) return setmetatable(list, Values) end

function Values:mean()
  local sum = 0
  for _, v in ipairs(self) do sum = sum + v end
  return #self > 0 and sum / #self or nil
end

function Values:max()
  local m
  for _, v in ipairs(self) do if not m or v > m then m = v end end
  return m
end

function Values:min()
  local m
  for _, v in ipairs(self) do if not m or v < m then m = v end end
  return m
end

function Values:median()
  if #self == 0 then return nil end
  local sorted = {}
  for i, v in ipairs(self) do sorted[i] = v end
  table.sort(sorted)
  local h = math.floor((#sorted + 1) / 2)
  return #sorted % 2 == 1 and sorted[h] or (sorted[h] + sorted[h + 1]) / 2
end

M.values = values

local Results = {}
Results.__index = Results

function M.new(runs) return setmetatable({ runs = runs }, Results) end

local function field(run, key)
  if run[key] ~= nil then return run[key] end
  return run.point and run.point[key]
end

function Results:where(t)
  local out = {}
  for _, run in ipairs(self.runs) do
    local ok = true
    for k, v in pairs(t) do
      if field(run, k) ~= v then ok = false end
    end
    if ok then out[#out + 1] = run end
  end
  return M.new(out)
end

function Results:each()
  local i = 0
  return function()
    i = i + 1
    return self.runs[i]
  end
end

function Results:get(key)
  local out = {}
  for _, run in ipairs(self.runs) do out[#out + 1] = field(run, key) end
  return values(out)
end

-- Runs of one point, executor and target belong together.
local function group_key(run)
  return core.json_encode { run.executor, run.cluster or "", run.devices or 0, run.point or {} }
end

function Results:groups()
  local order, by_key = {}, {}
  for _, run in ipairs(self.runs) do
    local key = group_key(run)
    if not by_key[key] then
      by_key[key] = {}
      order[#order + 1] = by_key[key]
    end
    table.insert(by_key[key], run)
  end
  return order
end

function Results:ratio(t)
  local key, of, to = t[1], t.of, type(t.to) == "table" and t.to or { t.to }
  if not key or not of or #to == 0 then
    errors.user('ratio: give { "field", of = "system", to = { "system", ... } }')
  end
  local out = {}
  for _, group in ipairs(self:groups()) do
    local mine, others
    for _, run in ipairs(group) do
      if run.system == of then mine = field(run, key) end
      for _, name in ipairs(to) do
        local v = run.system == name and field(run, key)
        if v and (not others or v < others) then others = v end
      end
    end
    if mine and others and mine > 0 then out[#out + 1] = others / mine end
  end
  return values(out)
end

--- Rows of text in aligned columns; numbers to the right.
function M.align(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #tostring(cell)) end
  end
  local lines = {}
  for r, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local text = tostring(cell)
      local pad = (" "):rep(widths[i] - #text)
      local right = text:match("^[%d%.%-%+]") and r > 1 or (r == 1 and i > 1)
      cells[i] = right and pad .. text or text .. pad
    end
    lines[r] = (table.concat(cells, "  "):gsub("%s+$", ""))
  end
  return table.concat(lines, "\n")
end

function Results:table(t)
  local row_keys = type(t.rows) == "table" and t.rows or { t.rows }
  local order, rows, cols, col_seen = {}, {}, {}, {}
  for _, run in ipairs(self.runs) do
    local labels = {}
    for i, key in ipairs(row_keys) do labels[i] = tostring(field(run, key)) end
    local id = table.concat(labels, "\0")
    if not rows[id] then
      rows[id] = { labels = labels }
      order[#order + 1] = rows[id]
    end
    local col = tostring(field(run, t.cols))
    if not col_seen[col] then
      col_seen[col] = true
      cols[#cols + 1] = col
    end
    rows[id][col] = t.cell(run)
  end
  local header = {}
  for i, key in ipairs(row_keys) do header[i] = key end
  for _, col in ipairs(cols) do header[#header + 1] = col end
  local out = { header }
  for _, row in ipairs(order) do
    local line = {}
    for i, label in ipairs(row.labels) do line[i] = label end
    for _, col in ipairs(cols) do line[#line + 1] = row[col] or "-" end
    out[#out + 1] = line
  end
  return M.align(out)
end

--- Reads the results of an earlier run back.
function M.read(dir)
  local at = errors.here()
  local text = errors.call(at, nil, core.read_file, dir .. "/results.json")
  local data = errors.call(at, nil, core.json_decode, text)
  if data.schema ~= M.SCHEMA then
    errors.user(("%s/results.json: schema %s, this program reads %d"):format(dir,
      tostring(data.schema), M.SCHEMA), nil, at)
  end
  return M.new(data.runs)
end

M.SCHEMA = 1

return M
