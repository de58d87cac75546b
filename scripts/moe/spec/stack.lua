-- Stacks: what the software that runs the kernels adds to the ops of a graph, as a cluster's field
-- `stack`: the name of a file in stacks/, or a table of the fields below. A file returns a function
-- of `assumed` that returns such a table with a doc. Ops that it does not name are one kernel each.
local core = require "moe.core"
local schema = require "moe.base.schema"

local M = {}

M.files = core.library_files("stacks", ".lua")

local function number(hi, doc)
  return { type = "number", lo = 0, hi = hi, required = true, doc = doc }
end

-- Returns the field of one kind of op: further kernels beside its own one.
local function of_op(row)
  local operands = row.slots and { "masks", unpack(row.operands) } or row.operands
  return { type = "list", of = { type = {
    of = { type = "string", enum = operands, required = true,
      doc = "the operand that they move; masks: the op is a product with masks of one number per "
        .. "token, expert and slot, unless its rows are packed" },
    with = { type = "string", enum = row.operands, doc = "only ops that have this operand, too" },
    products = { type = "string", enum = { "fp8", "fp8_block" },
      doc = "only where the op multiplies in this type: casts of its operands" },
    kernels = number(1e4, "how many"),
    moves = number(1e6, "how many times they together read or write the operand"),
  } } }
end

local function share(doc)
  return { type = "number", lo = 0.01, hi = 1, doc = doc }
end

local OPS, KINDS, HOST = {}, {}, {}
local MEMORY = { others = share "kinds that are not named" }
for _, row in ipairs(core.table "ops") do
  KINDS[#KINDS + 1] = row.name
  HOST[row.name] = { type = "number", lo = 0, hi = 1e6, doc = "ops of this kind, microseconds" }
  if row.kind == "compute" then
    OPS[row.name], MEMORY[row.name] = of_op(row), share "this kind of op"
  end
end

local FIELDS = {
  doc = { type = "string" }, name = { type = "string", default = "of the recipe" },
  host_launch_us = number(1e6, "host time of a kernel, microseconds"),
  host_op_us = number(1e6, "further host time of an op, microseconds; the host launches one op "
    .. "after the other, ahead of the device, and no op begins before"),
  host_us = { type = HOST, default = {}, doc = "host time of an op by its kind, microseconds, in "
    .. "place of that of its kernels" },
  waits = { type = "list", of = { type = "string", enum = KINDS }, default = {},
    doc = "kinds of ops whose results the host reads before it launches more" },
  graphs = { type = "string", enum = { "none", "attention", "layer" }, default = "none",
    doc = "ops launched as recorded graphs, without host time of their own: none, those of "
      .. "attention, all of layers" },
  ops = { type = OPS, required = true, doc = "further kernels, by kind of op" },
  overlap = { type = schema.declared "cluster".overlap_slowdown.type,
    doc = "how much longer compute and transfers take beside each other, unless the cluster says "
      .. "it" },
  memory = { type = MEMORY, default = {}, doc = "share of the device's memory rate that kernels "
    .. "without products reach, by kind of op; default: 1" },
}

M.FIELD = { type = "any", as = "string|table|false", doc = "software that runs the kernels: one of "
  .. table.concat(M.files, ", ") .. "; or a table of host_launch_us, host_op_us and ops, as those "
  .. "files have (moebench list stacks); false, the default: one kernel per op, no host time" }

local function load_file(name)
  local stack = require("moe.stacks." .. name)(schema.assumed)
  stack.sources = nil
  return stack
end

--- Returns the stack that a cluster names or gives, checked; nil for none. assumed: as in
--- schema.check.
function M.resolve(given, path, at, assumed)
  if not given then return nil end
  if type(given) == "table" then return schema.check(FIELDS, given, path, at, assumed) end
  schema.field({ type = "string", enum = M.files }, given, path, at)
  return schema.check(FIELDS, schema.merged(load_file(given), { name = given }), path, at, assumed)
end

--- Names and docs, for `moebench list`. A file with an op or an operand that does not exist is an
--- error as soon as the library is loaded.
M.rows = {}
for i, name in ipairs(M.files) do
  local path = "stacks." .. name
  local stack = M.resolve(name, path, nil, schema.collector(path, "stack"))
  M.rows[i] = { name = name, doc = stack.doc }
end

return M
