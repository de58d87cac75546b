-- moe.grid{...}: how the ranks of a step are arranged, and its micro-batches. A grid applies to the
-- model of a case (M.on): sizes follow when the number of ranks is known (M.sizes).
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("grid", "a grid, for example moe.grid { micro_batches = 4 }")

local OF_MODEL = { "ep", "tp", "cp", "cp_comm", "etp", "route_over", "micro_batches" }

M.FIELDS = schema.changed(schema.picked(schema.declared "model", OF_MODEL), {
  pp = { type = "integer", lo = 1, hi = 1e5, doc = "pipeline ranks, each of which runs some of the "
    .. "model's blocks; the others share its micro-batches; default: 1" },
  layout = { type = "string", doc = "the blocks of the stages, as moe.pipeline_layout takes them; "
    .. "default: equally many" },
  tp = { hi = 127,
    doc = "ranks over which products of attention and dense layers, and between them the "
    .. "tokens of a sequence, are split; they share the sequences; default: 1" },
  cp = { doc = "ranks over which sequences are split, also in attention; they share the "
    .. "sequences; default: 1" },
  etp = { hi = 127,
    doc = "ranks over which products of experts are split along their inner width; each gets "
    .. "all rows of their experts; default: 1" },
  dp = { type = "integer", lo = 1, hi = 1e6,
    doc = "ranks with sequences of their own; default: all that the other axes leave" },
  ep = { doc = "ranks that hold every expert of a layer once; default: the model's, or all" },
  edp = { type = "integer", lo = 1, hi = 1e6,
    doc = "ranks that hold the same experts; default: all that the other axes leave" },
  micro_batches = { doc = "micro-batches of a step, whose gradients are added up: one sum over "
    .. "ranks and one update per step; the model's batch_per_device is one micro-batch's, its "
    .. "batch the whole step's; default: 1, or as global_batch says" },
  global_batch = { type = "integer", lo = 1, hi = 1e9, doc = "sequences of a step on all ranks, in "
    .. "place of micro_batches; the model gives batch_per_device, those of a micro-batch" },
})
for _, name in ipairs(OF_MODEL) do
  M.FIELDS[name] = schema.optional(M.FIELDS[name])
end

--- The field `grid` of a case and of the functions that plan a step of training.
M.FIELD = { type = "grid", doc = "moe.grid; default: one micro-batch, all ranks with sequences of "
  .. "their own" }

local function make(t, at)
  local grid = schema.check(M.FIELDS, t, "grid", at)
  schema.one_of(grid, "global_batch", "micro_batches", "grid", at, true)
  if grid.cp_comm and (grid.cp or 1) == 1 then
    errors.user("grid.cp_comm: has no effect with cp = 1; omit it, or give cp", at, "grid.cp_comm")
  elseif grid.route_over and (grid.tp or 1) * (grid.cp or 1) == 1 then
    errors.user("grid.route_over: has no effect with tp = 1 and cp = 1; omit it, or give one of "
      .. "them", at, "grid.route_over")
  end
  grid.at = at
  return schema.object(grid, mt)
end

function M.grid(t) return make(t, errors.here()) end

--- Returns the grid with other fields; `grid` may be nil. at: the line that gives them.
function M.with(grid, changes, at)
  local t = M.given(grid)
  if changes.micro_batches then t.global_batch = nil end
  if changes.global_batch then t.micro_batches = nil end
  for key, value in pairs(changes) do t[key] = value end
  return make(t, at)
end

--- Returns the fields that the grid, or nil, gives.
function M.given(grid)
  local t = {}
  for key in pairs(grid and M.FIELDS or {}) do t[key] = grid[key] end
  return t
end

-- Raises a user error unless the axis is as long as it has to be on this number of ranks.
local function check_axis(grid, name, length, devices)
  if grid[name] and grid[name] ~= length then
    errors.user(("grid.%s: %d does not fit %d ranks%s, on which it is %d; give that or omit %s")
      :format(name, grid[name], devices, (grid.pp or 1) > 1 and " of a pipeline rank" or "", length,
      name), grid.at, "grid." .. name)
  end
end

--- Returns what "ranks" stands for in messages about sequences.
function M.groups(tp, cp)
  return tp * cp > 1 and (" (groups of tp * cp = %d)"):format(tp * cp) or ""
end

--- Returns the number of pipeline ranks of a model on `devices` ranks, and of ranks of each.
function M.pipeline_ranks(model, devices)
  local grid = model.grid or {}
  local pp = grid.pp or 1
  if devices % pp ~= 0 then
    errors.user(("grid.pp: %d does not divide the number of ranks, %d; give a divisor"):format(pp,
      devices), grid.at, "grid.pp")
  elseif grid.layout and pp == 1 then
    errors.user("grid.layout: has no effect with one pipeline rank; omit it, or give pp", grid.at,
      "grid.layout")
  end
  return pp, devices / pp
end

--- Returns the sizes of a model on the `devices` ranks of a pipeline rank: ep, the micro-batches,
--- tp, cp, the number of ranks, or groups over tp and cp, with sequences of their own, and etp.
function M.sizes(model, devices)
  local grid = model.grid or {}
  local tp, cp, etp = grid.tp or 1, grid.cp or 1, grid.etp or 1
  for _, axis in ipairs { { "tp", tp, devices, "ranks" }, { "etp", etp, devices, "ranks" },
      { "cp", cp, devices / tp, "groups over tp" } } do
    local name, length, rest, what = unpack(axis)
    if rest % length ~= 0 then
      errors.user(("grid.%s: %d does not divide the number of %s, %d; give a divisor"):format(name,
        length, what, rest), grid.at, "grid." .. name)
    end
  end
  local shares = devices / (tp * cp)
  local ep = grid.ep or model.ep or devices / etp
  if grid.ep and model.ep and grid.ep ~= model.ep then
    errors.user(("grid.ep: is %d, but %s.ep is %d; omit one of them"):format(grid.ep, model.path,
      model.ep), grid.at, "grid.ep")
  end
  if devices / etp % ep ~= 0 then
    local of_grid = grid.ep ~= nil
    errors.user(("%s.ep: %d does not divide the number of ranks%s, %d; give a divisor"):format(
      of_grid and "grid" or model.path, ep, etp > 1 and " over etp" or "", devices / etp),
      of_grid and grid.at or model.at)
  end
  check_axis(grid, "dp", shares, devices)
  check_axis(grid, "edp", devices / (ep * etp), devices)
  local micro = grid.micro_batches or 1
  if grid.global_batch then
    local each = model.batch_per_device
    if not each then
      errors.user(("grid.global_batch: %s.batch gives the sequences of a step too; give the "
        .. "model's batch_per_device, or micro_batches"):format(model.path), grid.at,
        "grid.global_batch")
    end
    micro = grid.global_batch / (each * shares)
    if micro ~= math.floor(micro) or micro < 1 then
      errors.user(("grid.global_batch: %d sequences are no whole number of micro-batches of %d "
        .. "sequences on each of %d ranks%s; give a multiple of %d"):format(grid.global_batch,
        each, shares, M.groups(tp, cp), each * shares), grid.at, "grid.global_batch")
    end
  end
  if model.batch and model.batch % (shares * micro) ~= 0 and micro > 1 then
    errors.user(("grid.micro_batches: %s.batch = %d sequences cannot be spread evenly over %d "
      .. "ranks%s in %d micro-batches; give a multiple of %d"):format(model.path, model.batch,
      shares, M.groups(tp, cp), micro, shares * micro), grid.at, "grid.micro_batches")
  end
  return ep, micro, tp, cp, shares, etp
end

return M
