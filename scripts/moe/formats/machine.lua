-- moe.machine "machine.lua": the measurements that `moebench calibrate` wrote, as fields for
-- moe.cluster.custom.
local cluster = require "moe.spec.cluster"
local comm_tables = require "moe.spec.comm_tables"
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local OVERLAP_ROW = schema.merged(cluster.OVERLAP_SLOWDOWN,
  { blocks = { type = "integer", lo = 1, hi = 1024, required = true } })
local ROWS = { all_to_all = comm_tables.ROWS, all_reduce = comm_tables.ROWS }

M.FILE = {
  machine = { type = "string", required = true },
  provenance = { type = "string", enum = { "measured" }, default = "measured" },
  ranks = { type = "integer", lo = 1, hi = 4096, required = true },
  dtype = { type = "string", enum = { "bf16", "f32" }, default = "f32" },
  device = { type = cluster.DEVICE, required = true },
  intra = { type = cluster.LINK },
  collectives = { type = ROWS, default = {} },
  overlap = { type = { source = { type = "string", required = true },
    rows = { type = "list", of = { type = OVERLAP_ROW }, required = true } } },
  residuals = { type = "table", default = {} },
}

--- Returns the table that the file returns. The file is only data: its code is loaded with an empty
-- environment, without any global name.
function M.load_table(file, at)
  local chunk, why = load(errors.call(at, core.read_file, file), "=" .. file, "t", {})
  local ok, value = pcall(chunk or error, why)
  if not ok then
    errors.user(("moe.machine: cannot read %s: %s"):format(file, tostring(value)), at)
  end
  return value
end

M.OPTIONS = { blocks = { type = "integer", lo = 1, hi = 1024,
  doc = "CUDA blocks of a transfer, a number that was measured: compute is slowed down while such "
    .. "a transfer runs; default: compute is not slowed down" } }

-- Returns the measured slowdown of compute while a transfer of `blocks` CUDA blocks runs. Raises a
-- user error if the file has no measurement with this number of blocks.
local function slowdown(m, blocks, file, at)
  local measured = {}
  for i, row in ipairs(m.overlap and m.overlap.rows or {}) do
    if row.blocks == blocks then return { gemm = row.gemm, memory = row.memory } end
    measured[i] = tostring(row.blocks)
  end
  errors.user(("moe.machine.blocks: %d was not measured; %s has %s"):format(blocks, file,
    #measured == 0 and "no times of compute during transfers"
    or "times for blocks = " .. table.concat(measured, ", ")), at)
end

--- Returns fields for moe.cluster.custom: one node with as many devices as ranks were measured. The
--- recipe may change or add fields, but the measured collectives are valid only for this number of
--- devices.
function M.machine(file, options)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.machine", at)
  options = schema.check(M.OPTIONS, options or {}, "moe.machine", at)
  local m = schema.check(M.FILE, M.load_table(file, at), file, at)
  local collectives = {}
  for kind, rows in pairs(m.collectives) do
    collectives[kind] = comm_tables.measured(kind, rows, m.ranks, file, at)
  end
  return { name = file, nodes = 1, devices_per_node = m.ranks, dtype = m.dtype, device = m.device,
    intra = m.intra, collectives = collectives,
    overlap_slowdown = options.blocks and slowdown(m, options.blocks, file, at) }
end

return M
