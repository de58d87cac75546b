-- How many bytes the numbers of a training step take, as lines for the heads of tables, pages and
-- plans. The sizes are the engine's (core.table "numbers").
local core = require "moe.core"
local dtypes = require "moe.spec.dtypes"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"

local M = {}

local by_name = {}  -- dtype -> its row of the engine's table
for _, row in ipairs(core.table "numbers") do by_name[row.name] = row end
local notes = {}  -- pass -> what it changes about states
for _, row in ipairs(policy.pass_rows) do notes[row.name] = row.states_note end
by_name.tf32 = by_name.f32  -- the products of f32 numbers in TF32

local BYTES = { f16 = 2, bf16 = 2, f32 = 4 }

local function bytes_of(type, plain) return BYTES[type] or plain end

--- Returns the bytes of a parameter, of its gradient, and of its states with the master copy, as
--- M.line takes them.
function M.bytes(dtype, optimizer, types)
  local row = by_name[dtype]
  local plain = row.bytes
  local states = row.states[optimizer] / plain * bytes_of(types.moments, plain)
    + (types.master and BYTES.f32 or 0)
  return bytes_of(types.weights, plain), bytes_of(types.gradients, plain), states
end

--- Returns the line for a dtype of a model, or the precision of a run, and an optimizer's name.
--- types: nil or the model's dtypes, as the core takes them; stages: passes of a system or of a
--- run, which may say more of the states.
function M.line(dtype, optimizer, stages, types)
  local said, known = {}, {}
  types = types or {}
  local set = dtypes.name_of(dtype, types)
  for _, stage in ipairs(stages or {}) do
    local text = notes[stage.name] or ""
    if text ~= "" and not known[text] then said[#said + 1], known[text] = text, true end
  end
  local note = #said > 0 and (" (%s)"):format(table.concat(said, "; ")) or ""
  local weights, gradients, states = M.bytes(dtype, optimizer, types)
  return ("Numbers: %s, %d bytes per parameter, %d per gradient, %d of %s's states%s per "
    .. "parameter%s"):format(types.weights and set or "dtype " .. dtype,
    weights, gradients, states, optimizer,
    types.master and " and master copy" or "", note)
end

--- Returns a line for each part of a model's attention for which another block stands in.
function M.stand_ins(model)
  local lines, known = {}, {}
  for _, part in pairs(type(model) == "table" and model.stand_in or {}) do
    local line = ("Stand-in: for %s, %g FLOP and %g bytes per token and block, as stated")
      :format(part.what, part.flops, part.bytes)
    if not known[line] then lines[#lines + 1], known[line] = line, true end
  end
  return lines
end

-- Names of types of rows on the wire, and of products, by those of the numbers that they are.
local SAME = { fp32 = "f32", tf32 = "f32" }

local function wire_text(run)
  local d, p = run.dispatcher, run.parameters
  local own = run.precision or type(p) == "table" and p.dtype
  if not (d and own) then return nil end
  local there, back = d.dispatch and d.dispatch.dtype or own, d.combine and d.combine.dtype or own
  own, there, back = SAME[own] or own, SAME[there] or there, SAME[back] or back
  if there == own and back == own then return nil end
  return ("On the wire under %s: rows in %s to the experts and in %s back, numbers of the model "
    .. "in %s"):format(d.name, there, back, own)
end

--- Returns a line for each kind of rows that dispatchers send in another type than that of the
--- model's numbers, which changes results; of several runs with their systems.
function M.wire_lines(runs)
  local lines = {}
  for i, same in ipairs(schema.grouped(runs, wire_text)) do
    local names = {}
    for _, run in ipairs(same) do names[run.system or "-"] = true end
    lines[i] = wire_text(same[1]) .. (runs[2] and (" (%s)"):format(table.concat(
      schema.keys_of(names), ", ")) or "")
  end
  return lines
end

-- Appends to the lines of several kinds of runs which runs these are: by the first of a coordinate
-- of points (in the order of their names), the cluster and the system whose values no two share.
local function append_which(lines, kinds)
  local names = {}
  for _, kind in ipairs(kinds) do
    for _, run in ipairs(kind.runs) do
      for name in pairs(run.point or {}) do names[name] = true end
    end
  end
  names = schema.keys_of(names)
  for _, name in ipairs { "cluster", "system" } do names[#names + 1] = name end
  for _, name in ipairs(names) do
    local texts, owner, apart = {}, {}, #kinds > 1
    for i, kind in ipairs(kinds) do
      local values = {}
      for _, run in ipairs(kind.runs) do
        local value = (run.point or {})[name] or run[name]
        local text = tostring(value)
        apart = apart and value ~= nil and (owner[text] or i) == i
        owner[text], values[text] = i, true
      end
      texts[i] = table.concat(schema.keys_of(values), ", ")
    end
    if apart then
      for i, text in ipairs(texts) do lines[i] = ("%s (%s %s)"):format(lines[i], name, text) end
      return
    end
  end
end

--- Returns the lines for runs, each kind once, and of several kinds of which runs they are. Results
--- of earlier versions may say no dtype.
function M.lines(runs)
  local kinds, by_key, lines = {}, {}, {}
  for _, run in ipairs(runs) do
    local p, o = run.parameters, run.optimizer
    local dtype = type(p) == "table" and (run.precision or p.dtype)
    local row = by_name[dtype]
    if row and type(o) == "table" and row.states[o.name] then
      local types = not run.precision and p.dtypes or {}
      local key = table.concat({ dtype, o.name, types.weights or "", types.gradients or "",
        types.moments or "", tostring(types.master), types.products or "" }, " ")
      local kind = by_key[key] or { dtype, o.name, {}, types, runs = {} }
      if not by_key[key] then by_key[key], kinds[#kinds + 1] = kind, kind end
      table.insert(kind.runs, run)
      for _, stage in ipairs(run.stages or {}) do table.insert(kind[3], stage) end
    end
  end
  for i, kind in ipairs(kinds) do lines[i] = M.line(unpack(kind)) end
  append_which(lines, kinds)
  for _, run in ipairs(runs) do
    for _, line in ipairs(M.stand_ins(run.parameters)) do
      if not by_key[line] then lines[#lines + 1], by_key[line] = line, true end
    end
  end
  return lines
end

--- Returns the line for each dtype and optimizer, for the documentation.
function M.all()
  local lines = {}
  for _, row in ipairs(core.table "numbers") do
    for optimizer in pairs(row.states) do lines[#lines + 1] = M.line(row.name, optimizer) end
  end
  return lines
end

return M
