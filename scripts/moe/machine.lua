-- moe.machine "machine.lua": what `moebench calibrate` measured, as fields of moe.cluster.custom.
local cluster = require "moe.cluster"
local comm_tables = require "moe.comm_tables"
local core = require "moe.core"
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

local ROWS = { all_to_all = comm_tables.ROWS, all_reduce = comm_tables.ROWS }

M.FILE = {
  machine = { type = "string", required = true },
  provenance = { type = "string", enum = { "measured" }, default = "measured" },
  ranks = { type = "integer", lo = 1, hi = 4096, required = true },
  device = { type = cluster.DEVICE, required = true },
  intra = { type = cluster.LINK },
  collectives = { type = ROWS, default = {} },
  residuals = { type = "table", default = {} },
}

-- The file's table. It is data: its text sees no names.
local function load_table(file, at)
  local chunk, why = load(errors.call(at, core.read_file, file), "=" .. file, "t", {})
  local ok, value = pcall(chunk or error, why)
  if not ok then errors.user(("cannot read %s: %s"):format(file, tostring(value)), at) end
  return value
end

--- Fields of moe.cluster.custom: one node of as many devices as ranks were measured. Change or add
--- what is to differ; collectives hold for this number of devices.
function M.machine(file)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.machine", at)
  local m = schema.check(M.FILE, load_table(file, at), file, at)
  local collectives = {}
  for kind, rows in pairs(m.collectives) do
    collectives[kind] = comm_tables.measured(kind, rows, m.ranks, file, at)
  end
  return { name = file, nodes = 1, devices_per_node = m.ranks, device = m.device, intra = m.intra,
    collectives = collectives }
end

return M
