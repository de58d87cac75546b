-- Results: a list of runs with selectors. A run is a plain table, as in results.json.
--   R:where{ system = "lancet", gpu = "p4de" }   runs whose field, or coordinate, is equal
--   R:each()                                     iterator over runs
--   R:get "iteration_ms"                         list of values
--   R:ratio{ "iteration_ms", of = "lancet", to = { "raf", "tutel" } }
--                                                a value a point: least of `to` divided by `of`
--   :mean() :max() :min() :median()              of such lists
--   R:table{ rows = { "gpu", "nodes" }, cols = "system", cell = function(run) return text end }
local core = require "moe.core"
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

M.SCHEMA = 1

--- Fields of a run and what they hold.
M.FIELDS = {
  experiment = "its name", system = "its name", model = "its name", cluster = "its name",
  cluster_parameters = "its rates, resolved", devices = "how many", executor = "simulate or cpu",
  provenance = "simulated, emulated or measured",
  point = "coordinates of a simulated run", points = "all points that an executed run stands for",
  parameters = "the model's, resolved", gate_options = "of a gate policy",
  optimizer = "its parameters", stages = "passes with their options",
  all_reduce = "the policy", choice = "what moe.best chose", candidates = "what it chose from",
  fill = "expected share of capacity slots in use", assumed = "constants without a source, by path",
  iteration_ms = "time of a step", compute_ms = "busy compute lane",
  comm_ms = "busy communication lanes", exposed_comm_ms = "communication beside no compute",
  hidden_comm_ms = "communication beside compute", wait_ms = "neither",
  lower_bound_ms = "no schedule of the plan's ops is faster", samples_ms = "every step",
  peak_bytes = "a device, planned", liveness_bytes = "a device, alive at the peak",
  out_of_memory = "true where the peak is beyond the device", plan_ms = "time to plan",
  plan_hash = "of graph, orders and buffers", num_ops = "of a rank",
  simulate_ms = "time to simulate",
  steps = "how many", init = "of the parameters", tokens = "text or reference", text = "its path",
  link = "the emulated link", precision = "f32 or f64", prediction = "frozen before the run",
  metrics = "times of every step", losses = "every step", drops = "every step",
  digest = "hash of all parameters' bits", executed_peak_bytes = "a rank, executed",
  trace = "its file", stopped = "true where the run was interrupted",
  eval_loss = "on held-out text",
  unigram_entropy = "of the text, nats",
}

local Values = {}
Values.__index = Values

--- A list of numbers with mean, max, min and median; nil of an empty one.
function M.values(list) return setmetatable(list, Values) end

function Values:mean()
  local sum = 0
  for _, v in ipairs(self) do sum = sum + v end
  return #self > 0 and sum / #self or nil
end

local function sorted(list)
  local out = schema.merged(list, {})
  table.sort(out)
  return out
end

function Values:max() return sorted(self)[#self] end
function Values:min() return sorted(self)[1] end

function Values:median()
  local s, n = sorted(self), #self
  if n == 0 then return nil end
  return (s[math.floor((n + 1) / 2)] + s[math.floor(n / 2) + 1]) / 2
end

local Results = {}
Results.__index = Results

function M.new(runs) return setmetatable({ runs = runs }, Results) end

local function field(run, key)
  if run[key] ~= nil then return run[key] end
  return run.point and run.point[key]
end

-- A key must be a field of runs or a coordinate of these ones.
local function check_key(R, key, path, at)
  if #R.runs == 0 or M.FIELDS[key] then return key end
  local names = schema.merged(M.FIELDS, {})
  for _, run in ipairs(R.runs) do
    for name in pairs(run.point or {}) do names[name] = true end
  end
  if not names[key] then schema.unknown(path, "field", key, schema.keys_of(names), at) end
  return key
end

function Results:where(t)
  local at = errors.here()
  if type(t) ~= "table" then schema.refuse("where", t, 'a table, as { system = "raf" }', at) end
  for key in pairs(t) do check_key(self, key, "where", at) end
  local out = {}
  for _, run in ipairs(self.runs) do
    local equal = true
    for key, value in pairs(t) do equal = equal and field(run, key) == value end
    if equal then out[#out + 1] = run end
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
  check_key(self, key, "get", errors.here())
  local out = {}
  for _, run in ipairs(self.runs) do out[#out + 1] = field(run, key) end
  return M.values(out)
end

--- Lists of the runs with equal key(run), in order of appearance.
function Results:groups(key)
  local order, by_key = {}, {}
  for _, run in ipairs(self.runs) do
    local k = core.json_encode(key(run))
    if not by_key[k] then
      by_key[k] = {}
      order[#order + 1] = by_key[k]
    end
    table.insert(by_key[k], run)
  end
  return order
end

--- Runs that differ in the system only.
function M.case_of(run)
  return { run.experiment or "", run.executor, run.cluster, run.devices, run.point or {},
    run.parameters, run.link or {} }
end

local function check_systems(R, names, at)
  local have = {}
  for _, run in ipairs(R.runs) do have[run.system] = true end
  for _, name in ipairs(names) do
    if next(have) and not have[name] then
      schema.unknown("ratio", "system", name, schema.keys_of(have), at)
    end
  end
end

function Results:ratio(t)
  local at = errors.here()
  local ok = type(t) == "table" and type(t[1]) == "string" and type(t.of) == "string"
  local to = ok and (type(t.to) == "table" and t.to or { t.to }) or {}
  if not ok or #to == 0 then
    errors.user('ratio: give { "field", of = "system", to = { "system", ... } }', at)
  end
  check_key(self, t[1], "ratio", at)
  check_systems(self, { t.of, unpack(to) }, at)
  local out, provenance = {}, nil
  for _, group in ipairs(self:groups(M.case_of)) do
    local R = M.new(group)
    local mine, others = R:where { system = t.of }:get(t[1])[1], M.values {}
    for _, name in ipairs(to) do others[#others + 1] = R:where { system = name }:get(t[1])[1] end
    if mine and #others > 0 and mine ~= 0 then
      out[#out + 1] = others:min() / mine
      provenance = provenance or group[1].provenance
      if provenance ~= group[1].provenance then
        errors.user(("ratio: %s and %s runs do not mix; choose with where { executor = ... }")
          :format(provenance, group[1].provenance), at)
      end
    end
  end
  return M.values(out)
end

local function is_numeric(cell)
  return cell == "" or cell == "-" or cell:match("^[-+]?[%d.]+[x%%]?$") ~= nil
end

--- Rows of cells as text in aligned columns, numbers to the right. The first row is the header; a
--- row without cells is an empty line.
function M.align(rows)
  local widths, right = {}, {}
  for r, row in ipairs(rows) do
    for i, cell in ipairs(row) do
      widths[i] = math.max(widths[i] or 0, #tostring(cell))
      if r > 1 then right[i] = right[i] ~= false and is_numeric(tostring(cell)) end
    end
  end
  local lines = {}
  for r, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local text = tostring(cell)
      local pad = (" "):rep(widths[i] - #text)
      cells[i] = right[i] and pad .. text or text .. pad
    end
    lines[r] = table.concat(cells, "  "):gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

local TABLE = {
  rows = { type = "any", required = true, doc = "a field or a list of fields" },
  cols = { type = "string", required = true, doc = "a field" },
  cell = { type = "function", required = true, doc = "function(run) returning a text" },
}

function Results:table(t)
  local at = errors.here()
  t = schema.check(TABLE, t, "table", at)
  local keys = type(t.rows) == "table" and t.rows or { t.rows }
  for _, key in ipairs { t.cols, unpack(keys) } do check_key(self, key, "table", at) end
  local function labels_of(run)
    local labels = {}
    for i, key in ipairs(keys) do labels[i] = tostring(field(run, key)) end
    return labels
  end
  local cols = self:groups(function(run) return { tostring(field(run, t.cols)) } end)
  local lines = { { unpack(keys) } }
  for _, col in ipairs(cols) do table.insert(lines[1], tostring(field(col[1], t.cols))) end
  for _, row in ipairs(self:groups(labels_of)) do
    local line = labels_of(row[1])
    for _, col in ipairs(cols) do
      local run = M.new(row):where { [t.cols] = field(col[1], t.cols) }.runs[1]
      line[#line + 1] = run and t.cell(run) or "-"
    end
    lines[#lines + 1] = line
  end
  return M.align(lines)
end

--- moe.results "dir": the results of an earlier run. Runs that did not end are left out.
function M.read(dir)
  local at = errors.here()
  if type(dir) ~= "string" then schema.refuse("moe.results", dir, "a folder", at) end
  local name = dir .. "/results.json"
  local data = errors.call(at, core.json_decode, errors.call(at, core.read_file, name))
  if type(data) ~= "table" or data.schema ~= M.SCHEMA then
    errors.user(("moe.results: %s has schema %s, this program reads %d"):format(name,
      tostring(type(data) == "table" and data.schema), M.SCHEMA), at)
  end
  local runs = {}
  for _, run in ipairs(data.runs) do
    if run.iteration_ms then runs[#runs + 1] = run end
  end
  return M.new(runs)
end

return M
