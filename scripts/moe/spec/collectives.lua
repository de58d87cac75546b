-- moe.collectives{...}: simulates how long collectives take that share the links of a cluster.
local cluster_lib = require "moe.spec.cluster"
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local BYTES = { type = "number", lo = 0, hi = 1e18 }
local TIME = { type = "number", lo = 0, hi = 1e9 }

local ANY_OP = {
  kind = { type = "string", enum = { "all_to_all", "all_reduce" }, required = true,
    doc = "kind of the collective" },
  start_ms = schema.merged(TIME, { default = 0,
    doc = "when the op starts, counted from time 0 or from the end of the ops in `after`" }),
  after = { type = "list", of = { type = "integer", lo = 1 },
    doc = "numbers of earlier ops, all of which this op waits for" },
  rank_start_ms = { type = "list", of = TIME,
    doc = "one entry per rank: how much later than start_ms it starts" },
  priority = { type = "integer", lo = -1e6, hi = 1e6,
    doc = "the highest priority goes first; only under share = 'strict_priority'" },
}

--- Fields of an entry of `ops`, indexed by the collective's kind.
M.OPS = {
  all_to_all = schema.merged(ANY_OP, {
    bytes_per_pair = schema.merged(BYTES, { doc = "bytes from each rank to each other rank" }),
    bytes = { type = "table",
      doc = "in place of bytes_per_pair: bytes[source][destination], N rows of N numbers" },
    algorithm = { type = "string", enum = { "direct", "pairwise" }, default = "direct",
      doc = "direct: all pairs of ranks at once; pairwise: in N-1 rounds" },
    channels = { type = "integer", lo = 1, hi = 1024,
      doc = "channels of a device; only under share = 'per_channel'; default: 1" },
  }),
  all_reduce = schema.merged(ANY_OP, {
    bytes = schema.merged(BYTES, { required = true,
      doc = "bytes that each rank adds to the sum" }),
    algorithm = schema.merged(cluster_lib.ALL_REDUCE, { default = "ring" }),
    rings = { type = "integer", lo = 1, hi = 1024, doc = "number of rings; default: one per NIC" },
  }),
}

M.FIELDS = {
  cluster = { type = "cluster", required = true, doc = "moe.cluster" },
  ops = { type = "list", of = { type = "table" }, required = true, doc = "the collectives" },
  share = schema.merged(cluster_lib.SHARE, { default = "per_flow" }),
  efficiency = schema.merged(cluster_lib.SHARING_EFFICIENCY, { default = 1 }),
  link_use = { type = "boolean", default = false,
    doc = "whether the result has .link_use: the rate on each link over time" },
}

local function check_length(list, n, path, what, at)
  if #list ~= n then
    errors.user(("%s: has %d %s; give %d, one per device of the cluster"):format(path, #list, what,
      n), at)
  end
end

-- Checks that the matrix has n rows of n byte counts; returns it.
local function check_matrix(matrix, n, path, at)
  check_length(matrix, n, path, "rows", at)
  for i, row in ipairs(matrix) do
    if type(row) ~= "table" then
      schema.refuse(("%s[%d]"):format(path, i), row, "a row of numbers", at)
    end
    check_length(row, n, ("%s[%d]"):format(path, i), "numbers", at)
    for j = 1, n do
      local b = row[j]
      if not (type(b) == "number" and b >= BYTES.lo and b <= BYTES.hi) then
        schema.field(BYTES, b == nil and false or b, ("%s[%d][%d]"):format(path, i, j), at)
      end
    end
  end
  return matrix
end

local function check_all_to_all(op, n, path, at)
  schema.one_of(op, "bytes_per_pair", "bytes", path, at)
  return op.bytes and check_matrix(op.bytes, n, path .. ".bytes", at)
end

-- Checks entry `index` of ops; returns its fields without the matrix of bytes, and that matrix or
-- nil. c: the checked fields of moe.collectives.
local function check_op(t, index, c, at)
  local path = ("moe.collectives.ops[%d]"):format(index)
  local kind = schema.field(ANY_OP.kind, t.kind, path .. ".kind", at)
  local op, matrix = schema.check(M.OPS[kind], t, path, at), nil
  for _, before in ipairs(op.after or {}) do
    if before >= index then
      schema.refuse(path .. ".after", before, "the number of an earlier op", at)
    end
  end
  for field, share in pairs { priority = "strict_priority", channels = "per_channel" } do
    if op[field] and c.share ~= share then
      errors.user(("%s.%s: is only used with share = '%s'; here share is '%s'"):format(path, field,
        share, c.share), at)
    end
  end
  if op.algorithm == "in_switch" and not c.cluster.in_switch then
    errors.user(('%s.algorithm: in_switch needs a cluster with in_switch = true'):format(path), at)
  end
  if (op.algorithm == "tree" or op.algorithm == "two_level") and c.cluster.nodes == 1 then
    errors.user(("%s.algorithm: %s needs two nodes or more"):format(path, op.algorithm), at)
  end
  if op.rings and op.algorithm ~= "ring" then
    errors.user(("%s.rings: is only used with algorithm = 'ring'; here it is '%s'"):format(path,
      op.algorithm), at)
  end
  local n = c.cluster.devices
  if op.rank_start_ms then
    check_length(op.rank_start_ms, n, path .. ".rank_start_ms", "numbers", at)
  end
  if kind == "all_to_all" then
    matrix = check_all_to_all(op, n, path, at)
    op.bytes = nil
  end
  return op, matrix
end

schema.record("collective times", "times", "a list with the times of each op", {
  { "[integer]", "{ begin_ms: number, end_ms: number, rank_end_ms: number[] }",
    "the times of one entry of ops" },
  { "link_use", "{ link: string, node: integer, index: integer, begin_ms: number, end_ms: number, "
    .. "bytes_per_s: number }[]?",
    "how much each link transfers and when, for example of link = \"nic_out\"; with link_use = "
      .. "true" },
  { "nodes_alike", "boolean", "true: all nodes do the same, and link_use lists only node 1" },
})

--- moe.collectives{...}: simulates the ops; returns their times, a record of the type "collective
--- times".
M.collectives = schema.taking(M.FIELDS, "moe.collectives", function(c, at)
  local ops, matrices = {}, {}
  for i, op in ipairs(c.ops) do ops[i], matrices[i] = check_op(op, i, c, at) end
  local run = errors.call(at, core.collectives, { cluster = cluster_lib.links(c.cluster),
    ops = core.array(ops), share = c.share, efficiency = c.efficiency, link_use = c.link_use },
    matrices)
  local times = run.ops
  times.link_use, times.nodes_alike = run.link_use, run.nodes_alike
  return times
end)

return M
