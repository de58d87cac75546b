-- moe.op_time{...}: the time of one op of given sizes on a device of a cluster, without a model.
local cluster_lib = require "moe.spec.cluster"
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local function size(doc, default)
  return { type = "integer", lo = 1, hi = 1e15, required = default == nil, default = default,
    doc = doc }
end

local DTYPES = schema.keys_of(schema.merged(cluster_lib.GEMM_RATES, { fp8_block = true }))
local BYTES = { ranks = size "number of ranks",
  bytes = size("bytes that a rank holds before the exchange, in an all-to-all with its own part; "
    .. "of an all_gather, after it") }
local ROWS = { nodes = size("whole nodes, whose ranks all take part", 1),
  sms = size "SMs that the kernel takes", tokens = size "tokens of each rank",
  hidden = size "hidden size", topk = size "experts per token" }

local GEMM = { m = size "rows of the result", n = size "columns of the result",
  k = size "length of the sums" }
local GROUPED = { experts = size "experts of the rank", rows = size "rows of each expert",
  n = size "columns of the result of the forward or of the rows' gradient; of weights, rows",
  k = size "length of the sums; of the weights' gradient, its columns" }
local GRADS = { grad_bytes = { type = "integer", lo = 2, hi = 4, default = 4,
  doc = "bytes of a number of the weights' gradient, which is added to a sum" } }
local ATTENTION = { batch = size "sequences", seq = size "tokens per sequence",
  heads = size "query heads", head_dim = size "numbers per head",
  kv_heads = { type = "integer", lo = 1, hi = 1e15,
    doc = "key and value heads; default: as many as query heads" } }
local LATENT = { batch = size "sequences", seq = size "tokens per sequence",
  heads = size "heads of DeepSeek-V3's sizes: 192 numbers in queries and keys, 128 in values" }

local LAYER = {
  tokens = size "tokens of the whole expert-parallel group", hidden = size "hidden size",
  inner = size "width of a gated expert (three matrices), after tensor parallelism",
  experts = size "experts of all ranks",
  k = size "experts per token", ep = size("ranks that together hold all experts", 1),
  load = { type = "string", default = "balanced",
    enum = { "balanced", "power_law_1.01", "power_law_1.2" },
    doc = "how tokens choose; with a power law the time is that of the rank with most rows" } }

-- For each op its sizes in the order in which the core takes them, its fields, and of a matrix
-- product or of attention whether its time is by default that inside a training step.
local KINDS = {
  gemm = { "m n k", GEMM, false },
  gemm_dx = { "m n k", GEMM, true },
  gemm_dw = { "m n k grad_bytes", schema.merged(GEMM, GRADS), true },
  grouped_gemm = { "experts rows n k", GROUPED, true },
  grouped_gemm_dx = { "experts rows n k", GROUPED, true },
  grouped_gemm_dw = { "experts rows n k grad_bytes", schema.merged(GROUPED, GRADS), true },
  attention = { "batch seq heads kv_heads head_dim", ATTENTION, false },
  attention_dx = { "batch seq heads kv_heads head_dim", ATTENTION, true },
  latent_attention = { "batch seq heads", LATENT, false },
  latent_attention_dx = { "batch seq heads", LATENT, true },
  experts = { "tokens hidden inner experts k ep", LAYER },
  all_to_all = { "ranks bytes", BYTES },
  all_reduce = { "ranks bytes", BYTES },
  all_gather = { "ranks bytes", BYTES },
  reduce_scatter = { "ranks bytes", BYTES },
  dispatch = { "nodes sms tokens hidden topk", ROWS },
  combine = { "nodes sms tokens hidden topk", ROWS },
}

local ANY = {
  cluster = { type = "cluster", required = true, doc = "moe.cluster" },
  op = { type = "string", as = "string", enum = schema.keys_of(KINDS), required = true,
    doc = "the op, one of: " .. table.concat(schema.keys_of(KINDS), ", ") },
  dtype = { type = "string", enum = DTYPES,
    doc = "element type; fp8: one scale per tensor, fp8_block: per 128 numbers; default: that "
      .. "of the cluster's rates or bf16, of dispatch fp8; collectives are of bytes and do not "
      .. "read it" },
}

--- The fields of moe.op_time, indexed by op.
M.OPS = {}
for op, row in pairs(KINDS) do
  M.OPS[op] = schema.merged(ANY, row[2])
  if row[3] ~= nil then
    M.OPS[op].in_step = { type = "boolean", default = row[3], doc = "whether the time is that "
      .. "inside a training step, as plans take it, in place of that of the kernel alone" }
  end
end
M.OPS.dispatch.dtype = schema.merged(ANY.dtype, { default = "fp8" })

--- The fields of all ops, for documents.
M.FIELDS = schema.merged({}, ANY)
for _, op in ipairs(schema.keys_of(M.OPS)) do
  for name, field in pairs(M.OPS[op]) do
    if not ANY[name] then
      local before, doc = M.FIELDS[name], op .. ": " .. field.doc
      if before then  -- two ops have the same meaning of it, or each its own
        local same = before.doc:match ": (.*)$" == field.doc
        doc = same and before.doc:gsub(": ", ", " .. op .. ": ", 1) or before.doc .. "; " .. doc
      end
      local shown = schema.merged(field, { doc = doc })
      shown.required = nil
      M.FIELDS[name] = shown
    end
  end
end

local function check_layer(c, at)
  if c.experts % c.ep ~= 0 then
    schema.refuse("moe.op_time.ep", c.ep, ("a divisor of experts = %g"):format(c.experts), at)
  end
  if c.k > c.experts then
    schema.refuse("moe.op_time.k", c.k, ("at most experts = %g"):format(c.experts), at)
  end
end

--- moe.op_time{...}: returns { ms, lo, hi, measured, source, extrapolated }.
function M.op_time(t)
  local at = errors.here()
  if type(t) ~= "table" then
    schema.refuse("moe.op_time", t, "a table, for example { cluster = c, op = 'gemm', ... }", at)
  end
  local op = schema.field(ANY.op, t.op, "moe.op_time.op", at)
  local c, sizes = schema.check(M.OPS[op], t, "moe.op_time", at), {}
  if M.OPS[op].kv_heads then c.kv_heads = c.kv_heads or c.heads end
  if c.in_step == false and M.OPS[op].in_step.default then
    schema.refuse("moe.op_time.in_step", false, ("true: '%s' is an op of training steps"):format(
      op), at)
  end
  if op == "experts" then check_layer(c, at) end
  for name in KINDS[op][1]:gmatch "%S+" do sizes[#sizes + 1] = c[name] end
  local dtype, moves = c.dtype or c.cluster.dtype or "bf16", M.OPS[op].ranks or M.OPS[op].sms
  local rows = moves and c.cluster.collectives[op == "all_to_all" and op or "all_reduce"]
  local function time_on(cluster)
    return errors.call(at, core.op_time, { op = op, dtype = dtype, sizes = sizes,
      cluster = moves and cluster_lib.links(cluster)
        or cluster_lib.plain(cluster, dtype, "moe.op_time.dtype", at, true),
      in_step = c.in_step, load = c.load or "balanced",
      collectives_from = rows and rows.source or nil })
  end
  local time = time_on(c.cluster)
  if time.measured then return time end
  -- By rates: the band is that of the cluster's assumed constants, each at the end that makes the
  -- time shorter or longer.
  local ends = { lo = {}, hi = {} }
  for _, constant in pairs(c.cluster.assumed) do
    local function at_end(part)
      return time_on(cluster_lib.at_ends(c.cluster, { [constant.name] = part })).ms
    end
    local rises = at_end "hi" > at_end "lo"
    ends.lo[constant.name], ends.hi[constant.name] = rises and "lo" or "hi", rises and "hi" or "lo"
  end
  for part, of in pairs(ends) do time[part] = time_on(cluster_lib.at_ends(c.cluster, of)).ms end
  return time
end

schema.record("op time", "time", "the time of one op", {
  { "ms", "number", "the time" },
  { "lo", "number", "ms; lower end of the band: of 9 of 10 measured times, or, by rates, of the "
    .. "cluster's assumed constants; equal to ms where neither is known" },
  { "hi", "number", "ms; upper end of this band" },
  { "measured", "boolean", "whether the time comes from measurements of the op" },
  { "source", "string", "what the time comes from: kernel, framework and version, or rates, or the "
    .. "links and the algorithm of an all-reduce" },
  { "extrapolated", "boolean", "whether no measured sizes lie on both sides of the given ones; "
    .. "for experts also whether the layer was not measured" },
})

return M
