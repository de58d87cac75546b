-- moe.layouts{...}: the grids that a model can have on a cluster, and why the others cannot be.
local dtypes = require "moe.spec.dtypes"
local errors = require "moe.base.errors"
local grid_lib = require "moe.spec.grid"
local model_lib = require "moe.spec.model"
local number_bytes = require "moe.results.number_bytes"
local schema = require "moe.base.schema"
local target = require "moe.spec.target"

local M = {}

local AXES = { "tp", "cp", "pp", "etp", "ep" }

local function axis_fields()
  local fields = {}
  for _, name in ipairs(AXES) do
    fields[name] = { type = "list", of = grid_lib.FIELDS[name], distinct = true,
      doc = "values of " .. name .. " to try; default: " .. ((name == "cp" or name == "etp") and "1"
        or "the powers of two up to the number of devices, of tp up to those of a node") }
  end
  return fields
end

M.FIELDS = {
  model = { type = "model", required = true, doc = "with the batch_per_device of a micro-batch" },
  cluster = { type = "cluster", required = true, doc = "on which the model is trained" },
  axes = { type = axis_fields(), default = {},
    doc = "axis -> the lengths to try" },
  global_batch = { type = "integer", lo = 1, hi = 1e9,
    doc = "sequences of a step on all ranks; default: one micro-batch" },
  zero = { type = "integer", lo = 0, hi = 1, default = 0,
    doc = "whether ranks that hold the same parameters share the optimizer's states" },
  optimizer = { type = "string", enum = { "adamw", "sgd" }, default = "adamw",
    doc = "whose states are counted" },
}

schema.record("layout", "layout", "a grid, from moe.layouts", {
  { "grid", "moe.Grid", "the grid, or a table of its fields where it does not exist" },
  { "micro_batches", "integer?", "of a step; nil where the grid does not exist" },
  { "gib", "number?", "what a device holds of parameters, gradients and states at least, in GiB: "
    .. "an even share of its pipeline rank, without activations; nil where there is no grid" },
  { "refused", "string?", "why it cannot be, in a line" },
})

local function powers(most)
  local list, n = {}, 1
  while n <= most do list[#list + 1], n = n, 2 * n end
  return list
end

-- Returns the layout of blocks that pp does not divide, in text: ranks in the middle have one more,
-- as the first has the embedding and the last the head; nil where it does.
local function uneven(blocks, pp)
  if blocks % pp == 0 then return nil end
  local first, stages = 1 + math.floor((pp - blocks % pp) / 2), {}
  for i = 1, pp do
    local more = i >= first and i < first + blocks % pp
    stages[i] = ("t"):rep(math.floor(blocks / pp) + (more and 1 or 0))
  end
  return "E" .. table.concat(stages, "|") .. "L"
end

-- Returns the bytes that a device holds at least, of the elements of a model's parameters.
local function held(c, g, elements, devices, number)
  local weights, gradients, states = unpack(number)
  local per_rank = devices / g.pp
  local bytes = 0
  for kind, split in pairs { dense = g.tp, experts = g.etp * g.ep } do
    local sharers = c.zero == 1 and per_rank / split or 1
    bytes = bytes + elements[kind] / g.pp / split * (weights + gradients + states / sharers)
  end
  return bytes
end

--- moe.layouts{...}
M.layouts = schema.taking(M.FIELDS, "moe.layouts", function(c, at)
  local devices = c.cluster.devices
  local default = { tp = powers(c.cluster.devices_per_node), cp = { 1 }, etp = { 1 },
    pp = powers(devices), ep = powers(devices) }
  local elements = { dense = 0, experts = 0 }
  for _, p in ipairs(model_lib.counts(c.model).parameters) do
    local kind = p.expert and "experts" or "dense"
    elements[kind] = elements[kind] + p.elements
  end
  local set = target.types_on(c.model, c.cluster)
  local dtype, types = dtypes.of(c.model, set)
  local number = { number_bytes.bytes(dtype, c.optimizer, types) }
  local list = {}
  for _, fields in ipairs(schema.product(schema.merged(default, c.axes), AXES)) do
    local ok, made = errors.try(function()
      local blocks = c.model.layers
      if blocks and blocks < fields.pp then
        errors.user(("grid.pp: %d pipeline ranks for %d blocks"):format(fields.pp, blocks), at)
      end
      local grid = grid_lib.with(nil, schema.merged(fields, { global_batch = c.global_batch,
        layout = blocks and uneven(blocks, fields.pp) }), at)
      local spec = model_lib.resolve(model_lib.on(c.model, grid), devices, set)
      return { grid = grid, micro_batches = spec.model.micro_batches }
    end)
    local row = ok and made or { grid = fields }
    if not ok then
      row.refused = made.message:gsub("^.-:%d+: ", "")
    else
      row.gib = held(c, fields, elements, devices, number) / 2 ^ 30
      local most = c.cluster.device.memory_bytes / 2 ^ 30
      if most > 0 and row.gib > most then
        row.refused = ("parameters, gradients and states take %.1f of %.1f GiB"):format(row.gib,
          most)
      end
    end
    list[#list + 1] = row
  end
  return list
end)

return M
