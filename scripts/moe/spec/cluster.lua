-- moe.cluster.<name>{ nodes = n } and moe.cluster.custom{...}: checked clusters, with a list of the
-- assumed constants among their numbers.
local comm_tables = require "moe.spec.comm_tables"
local core = require "moe.core"
local dtypes = require "moe.spec.dtypes"
local errors = require "moe.base.errors"
local nodes = require "moe.gpus.nodes"
local schema = require "moe.base.schema"
local stacks = require "moe.spec.stack"

local M = {}

--- Names of the built-in clusters, which are the files in clusters/.
M.files = core.library_files("clusters", ".lua")

local mt = schema.class("cluster", "a cluster, for example moe.cluster.p4de { nodes = 2 }")

local function rate(doc) return { type = "number", lo = 1e-9, hi = 1e18, doc = doc } end
local function share()
  return { type = "number", lo = 1e-9, hi = 1, doc = "achieved share of the peak" }
end

local declared = schema.declared "cluster"

--- Fields of a link between devices or nodes. PLAIN_LINK has the achieved rate; LINK also accepts
--- the data-sheet peak with the achieved share of it, as DEVICE does for a device's rates.
M.PLAIN_LINK = declared.nic.type
M.LINK = schema.changed(M.PLAIN_LINK, {
  peak_bytes_per_s = rate "data-sheet bytes per second, one way", efficiency = share() })
-- Bytes per second of a link of a built-in cluster; less is a rate in another unit.
local LEAST_RATE = 1e6
M.DTYPES = dtypes.DTYPES
--- Rates of matrix products by element type. One number in their place is the rate of the type that
--- models on the cluster have.
M.GEMM_RATES = { f32 = rate "float32, without tensor cores",
  tf32 = rate "float32 numbers multiplied as TF32 by tensor cores: a model's dtype = 'tf32'",
  bf16 = rate "bfloat16", f16 = rate "float16",
  fp8 = rate "8-bit floats: the products of a model's dtypes = 'megatron_fp8', and moe.op_time" }
-- Returns a field of rates of matrix products.
local function gemm_rates(doc)
  return { by = M.GEMM_RATES, as = "number|moe.Assumed|moe.GemmRates", doc = doc .. ": by element "
    .. "type, { bf16 = , f32 = }, or one number, of the cluster's dtype or, without one, of what "
    .. "models have of f16, bf16 and f32" }
end
M.DEVICE = schema.changed(declared.device.type, {
  gemm_flops_per_s = gemm_rates(declared.device.type.gemm_flops_per_s.doc),
  peak_gemm_flops_per_s = schema.merged(rate(),
    gemm_rates "data-sheet flops per second in GEMMs"), gemm_efficiency = share(),
  peak_memory_bytes_per_s = rate "data-sheet bytes per second", memory_efficiency = share() })
local op_table = schema.class("op_table", 'moe.op_table "file.csv"')
-- Names of the files of op times: of kernels alone, and inside a training step.
local ALONE, IN_STEP = {}, {}
for _, name in ipairs(core.library_files("gpus", ".times")) do
  table.insert(name:find "_step$" and IN_STEP or ALONE, name)
end
-- Returns the field as recipes set it, to one of `names` or to moe.op_table; the engine's `field`
-- takes the path of a file of op times.
local function gpu(field, names)
  return { type = "any", as = "string|moe.OpTable|false",
    doc = ("%s: one of %s; or moe.op_table; false: none"):format(field.doc,
      table.concat(names, ", ")) }
end
M.DEVICE.op_times = gpu(M.DEVICE.op_times, ALONE)
M.DEVICE.step_times = gpu(M.DEVICE.step_times, IN_STEP)
--- Factors of measured op times by the element type of models.
M.OP_TIMES_RATIOS = {}
for _, dtype in ipairs(M.DTYPES) do
  M.OP_TIMES_RATIOS[dtype] = schema.optional(declared.device.type.op_times_ratio)
end
M.DEVICE.op_times_ratio = { type = M.OP_TIMES_RATIOS,
  doc = declared.device.type.op_times_ratio.doc .. "; by the models' element type, { tf32 = 2 }" }

--- moe.op_table "file.csv": measured op times of the user.
function M.op_table(file)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.op_table", at)
  local path, ops = errors.call(at, core.op_table, file)
  return schema.object({ path = path, file = file, ops = ops }, op_table)
end

-- Returns the value of a field that gpu() made, nil for false. Raises a user error unless it is one
-- of `names`, or a moe.op_table that has times of at least one of the ops `used`.
local function checked_gpu(value, names, used, path, at)
  if not value then return nil end
  if not schema.is_a("op_table", value, path, at) then
    if type(value) == "string" and value:find("[./]") then
      schema.refuse(path, value, ('moe.op_table "%s", or one of: %s'):format(value,
        table.concat(names, ", ")), at)
    end
    return schema.field({ type = "string", enum = names }, value, path, at)
  end
  for _, op in ipairs(value.ops) do
    for _, name in ipairs(used) do
      if op == name then return value end
    end
  end
  errors.user(("%s: %s has times of %s, none of which is used here; give times of %s"):format(path,
    value.file, table.concat(value.ops, ", "), table.concat(used, " or ")), at)
end

--- Returns `plain`, a cluster as M.plain returns it, for results: paths of the built-in files of op
--- times are replaced by the names of their GPUs, and the stack, which each system may have of its
--- own, is left out.
function M.shown(plain)
  local function name(path)
    return path and (path:match "/moe/gpus/([^/]*)%.times$" or path)
  end
  local out = schema.merged(plain, { collective_times = name(plain.collective_times),
    device = schema.merged(plain.device, { op_times = name(plain.device.op_times),
      step_times = name(plain.device.step_times) }) })
  out.stack = nil
  return out
end
--- Fields that state how much longer compute takes while a transfer runs.
M.OVERLAP_SLOWDOWN = declared.overlap_slowdown.type
--- The fields that state how collectives share a link that they use at the same time.
M.SHARE, M.SHARING_EFFICIENCY = declared.share, declared.sharing_efficiency

M.ALL_REDUCE = declared.all_reduce

-- Names of the cluster's fields that are passed to the core.
local PLAIN = schema.keys_of(declared)
for _, name in ipairs { "collectives", "dispatch_times", "dtype", "stack" } do
  PLAIN[#PLAIN + 1] = name
end

M.FIELDS = schema.changed(declared, {
  device = { type = M.DEVICE }, intra = { type = M.LINK }, nic = { type = M.LINK },
  overlap_slowdown = { type = M.OVERLAP_SLOWDOWN, default = {} },
  nics_per_node = { doc = declared.nics_per_node.doc .. ", not pooled: each belongs to as many "
    .. "neighbouring devices; device d, from 0, has number d * nics_per_node / devices_per_node" },
  collective_times = gpu(declared.collective_times, ALONE),
  dtype = { type = "string", enum = M.DTYPES,
    doc = "element type for which the device's rates were found, and which models on the cluster "
      .. "must have; default: any" },
  collectives = { type = comm_tables.FIELDS, default = {},
    doc = "measured times of collectives, in place of formulas" },
  stack = stacks.FIELD,
  dispatch_times = { type = "string", doc = "a file of moe.dispatch_log: laws of dispatchers on "
    .. "this cluster, in place of those of its GPU" },
})

-- Names of achieved rates -> the fields that a recipe may give instead: the peak, the share of it.
local ACHIEVED = {
  gemm_flops_per_s = { "peak_gemm_flops_per_s", "gemm_efficiency" },
  memory_bytes_per_s = { "peak_memory_bytes_per_s", "memory_efficiency" },
  bytes_per_s = { "peak_bytes_per_s", "efficiency" },
}

--- Returns the names of the fields that a device or link may have in place of the rate `name`: its
--- peak and the achieved share; nothing for other fields.
function M.peak_of(name) return unpack(ACHIEVED[name] or {}) end

-- Sets t[name] to t[peak] * t[part] unless t[name] is given, and removes peak and part; a peak may
-- be a table of peaks. Raises a user error if both forms are given, or neither.
local function achieve(t, name, path, at)
  local peak, part = M.peak_of(name)
  if t[name] and (t[peak] or t[part]) then
    errors.user(("%s: give either %s, or %s and %s, but not both"):format(path, name, peak, part),
      at, path .. "." .. name)
  end
  if not t[name] and not (t[peak] and t[part]) then
    errors.user(("%s: %s is missing; give it, or %s and %s"):format(path, name, peak, part), at)
  end
  local of, share_of_peak = t[name] or t[peak], t[name] and 1 or t[part]
  if type(of) == "table" then
    if not next(of) then
      errors.user(("%s.%s: has no rate; give at least one of: %s"):format(path, t[name] and name
        or peak, table.concat(schema.keys_of(M.GEMM_RATES), ", ")), at)
    end
    t[name] = {}
    for dtype, one in pairs(of) do t[name][dtype] = one * share_of_peak end
  else
    t[name] = of * share_of_peak
  end
  t[peak], t[part] = nil, nil
end

-- The ops of tables that plans read of step_times.
local PRODUCTS = { "gemm", "gemm_dx", "gemm_dw", "grouped_gemm", "grouped_gemm_dx",
  "grouped_gemm_dw", "attention", "attention_dx", "latent_attention", "latent_attention_dx" }

-- Checks the fields and returns the cluster. ends: as in schema.collector; own: the fields that the
-- recipe gives, if the others are those of a built-in cluster.
local function resolve(t, path, at, ends, own)
  local assumed = schema.collector(path, "cluster", ends)
  local c = schema.check(M.FIELDS, t, path, at, assumed)
  c.stack = stacks.resolve(c.stack, path .. ".stack", at, assumed)
  if c.stack and c.stack.overlap and t.overlap_slowdown == nil then
    c.overlap_slowdown = c.stack.overlap
  end
  c.collective_times = checked_gpu(c.collective_times, ALONE,
    { "all_to_all", "all_reduce", "dispatch", "combine" }, path .. ".collective_times", at)
  if c.device then
    local d = path .. ".device"
    c.device.op_times = checked_gpu(c.device.op_times, ALONE, { "gemm", "attention" },
      d .. ".op_times", at)
    c.device.step_times = checked_gpu(c.device.step_times, IN_STEP, PRODUCTS,
      d .. ".step_times", at)
    c.peak_gemm = c.device.peak_gemm_flops_per_s
    achieve(c.device, "gemm_flops_per_s", d, at)
    achieve(c.device, "memory_bytes_per_s", d, at)
    local gemm = c.device.gemm_flops_per_s
    c.device.vector_flops_per_s = c.device.vector_flops_per_s or type(gemm) == "table" and gemm.f32
      or gemm
    if type(c.device.vector_flops_per_s) == "table" then
      errors.user(d .. ".vector_flops_per_s: is missing; without it, it is the rate of f32 in "
        .. "gemm_flops_per_s, which has none", at, d)
    end
  end
  for _, name in ipairs { "intra", "nic" } do
    if c[name] then achieve(c[name], "bytes_per_s", path .. "." .. name, at) end
    if own and c[name] and c[name].bytes_per_s < LEAST_RATE then
      errors.user(("%s.%s.bytes_per_s: %g is not allowed; give at least %g bytes per second (400 "
        .. "Gb/s are 50e9)"):format(path, name, c[name].bytes_per_s, LEAST_RATE), at)
    end
  end
  if c.nodes > 1 and not c.nic then
    errors.user(path .. ": nic is missing; a cluster of more than one node needs it", at)
  end
  if c.devices_per_node > 1 and not c.intra then
    errors.user(path .. ": intra is missing; a cluster with more than one device per node needs it",
      at)
  end
  -- The core needs both links; a link that is not given carries no transfer (one node, or one
  -- device per node), so its rate does not matter.
  c.intra = c.intra or c.nic or { bytes_per_s = 1e12, latency_us = 0 }
  c.nic = c.nic or c.intra
  c.devices = c.nodes * c.devices_per_node
  c.collectives = comm_tables.resolve(c.collectives, c.devices, path .. ".collectives", at)
  c.assumed, c.at, c.given, c.path = assumed.found, at, schema.merged(t, {}), path
  c.own = own and schema.merged(own, {})
  return schema.object(c, mt)
end

--- Returns the cluster with some assumed constants at an end of their band. ends: as in
--- schema.collector.
function M.at_ends(cluster, ends)
  return resolve(cluster.given, cluster.path, cluster.at, ends, cluster.own)
end

-- The fields from which the times of collectives inside a node follow by formulas.
local OF_FORMULAS = { "intra", "a2a_base_us", "a2a_per_peer_us", "all_reduce_base_us", "all_reduce",
  "in_switch" }

-- Returns the fields `all` of a built-in cluster, in place of some of which the recipe gives `own`.
-- Measured times of collectives inside a node are of the cluster's own links: on one node a user
-- error asks what is meant; on more, where plans do not read them, they are left out.
local function with_own(all, own, path, at)
  if not all.collective_times or own.collective_times ~= nil then return all end
  for _, name in ipairs(OF_FORMULAS) do
    if own[name] ~= nil and all.nodes == 1 then
      errors.user(("%s.%s: has no effect where the times of collectives inside a node are measured "
        .. "(collective_times); give collective_times = false, too, for times by formulas")
        :format(path, name), at, path .. "." .. name)
    elseif own[name] ~= nil then
      all = schema.merged(all, { collective_times = false })
    end
  end
  return all
end

-- count: the number of nodes, on which rates may depend.
local function load_file(name, count)
  local file = require("moe.clusters." .. name)
  local data = type(file) == "function" and file(schema.assumed, nodes, count)
  if type(data) ~= "table" or type(data.doc) ~= "string" then
    error(("clusters/%s.lua: return a function of `assumed`, `nodes` and the number of nodes that "
      .. "returns a table of fields with a doc"):format(name), 0)
  end
  return data
end

-- Returns a built-in cluster's link with the fields that the recipe gives in place of its own. A
-- rate takes the place of its peak and achieved share, and the other way round.
local function link_with(own, given)
  if type(own) ~= "table" or type(given) ~= "table" then return given end
  local out = schema.merged(own, given)
  for achieved, parts in pairs(ACHIEVED) do
    if given[achieved] then
      for _, part in ipairs(parts) do out[part] = given[part] end
    elseif given[parts[1]] or given[parts[2]] then
      out[achieved] = nil
    end
  end
  return out
end

-- Returns the fields of a built-in cluster of `count` nodes, with the recipe's own in place of its.
local function built_in(name, own, count)
  local data = load_file(name, count)
  data.doc, data.paper, data.sources, data.name = nil, nil, nil, name
  local all = schema.merged(data, own)
  for _, link in ipairs { "intra", "nic" } do all[link] = link_with(data[link], all[link]) end
  return all
end

--- Returns the cluster with `given` in place of the fields that the recipe gave, of which those in
--- the set `changed` differ.
function M.with(cluster, given, changed, at)
  local own = cluster.own and schema.merged(cluster.own, {})
  if not own then return resolve(given, cluster.path, at) end
  for name in pairs(changed) do own[name] = given[name] end
  -- Its rates may depend on the number of nodes.
  if changed.nodes then given = built_in(cluster.path:match "[^.]*$", own, given.nodes) end
  return resolve(with_own(given, own, cluster.path, at), cluster.path, at)
end

local function named(name)
  return function(t)
    local at = errors.here()
    local path = "cluster." .. name
    if type(t) ~= "table" then
      schema.refuse(path, t, "a table of the cluster's fields, for example { nodes = 2 }", at)
    end
    local count = schema.field(M.FIELDS.nodes, t.nodes, path .. ".nodes", at)
    return resolve(with_own(built_in(name, t, count), t, path, at), path, at, nil, t)
  end
end

local constructors = { custom = { function(t) return resolve(t, "cluster", errors.here()) end,
  M.FIELDS, "moe.Cluster",
    "a cluster whose numbers are all in the recipe or in a file for moe.machine",
  class = "moe.ClusterFields", assumed = true } }
for _, name in ipairs(M.files) do
  constructors[name] = { named(name), "(t: moe.ClusterFields)", "moe.Cluster",
    load_file(name, 1).doc .. ". Takes nodes, and any further field of cluster.custom in place of "
      .. "the cluster's own; of intra and nic each field by itself" }
end

--- moe.cluster.<name>{ nodes = n, ... } returns a built-in cluster; further fields replace its own.
--- moe.cluster.custom{...} has no values of its own, so all required fields must be given.
M.constructors = schema.functions("moe.cluster", "cluster", constructors)

schema.record("op table", "times", "measured op times of the user, from moe.op_table", {
  { "file", "string", "the file as it was given" },
})
schema.record("context cluster", "ctx.cluster", "devices and links, as policies get them", {
  { "devices", "integer", "number of devices" },
  { "node_of", "(device: integer): integer",
    "returns the device's node; only in placement policies" },
  { "devices_of", "(node: integer): integer[]",
    "returns the node's devices; only in placement policies" },
}, declared)
schema.record("placement rates", "ctx.rates",
  "the rates from which a placement's times are computed", {},
  schema.declared "placement_rates")

local function fields_of(cluster)
  local out = {}
  for _, key in ipairs(PLAIN) do out[key] = cluster[key] end
  local function file(times)
    if type(times) ~= "string" then return times and times.path end
    return ("%s/moe/gpus/%s.times"):format(core.scripts_dir, times)
  end
  out.collective_times = file(out.collective_times)
  if out.device then
    out.device = schema.merged(out.device, { op_times = file(out.device.op_times),
      step_times = file(out.device.step_times) })
  end
  return out
end

-- Returns the device's rate of matrix products of this element type, or nil and why there is none.
local function rate_of(cluster, dtype)
  local rates, device = cluster.device.gemm_flops_per_s, cluster.device.name or "the device"
  if dtype == "fp8_block" then dtype = "fp8" end
  if type(rates) == "table" then
    return rates[dtype], ("has no rate on %s (%s), which has %s"):format(device, cluster.name,
      table.concat(schema.keys_of(rates), ", "))
  end
  if cluster.dtype then
    return dtype == cluster.dtype and rates, ("has no rate on %s, whose rates are of %s"):format(
      cluster.name, cluster.dtype)
  end
  return dtype ~= "tf32" and dtype ~= "fp8" and rates, ("has no rate on %s (%s), whose one rate "
    .. "is taken for f16, bf16 or f32"):format(device, cluster.name)
end

--- Returns the cluster as the table that the core takes, with the device's rate for this element
--- type. Raises a user error if it has no device, or, on `key` at the line `at`, if the device has
--- no such rate. A rate of another type is never taken. tables: whether a device with op times may
--- do without; its rate is then 0.
function M.plain(cluster, dtype, key, at, tables)
  if not cluster.device then
    errors.user(cluster.path .. ".device: is missing; a plan needs the rates of a device",
      cluster.at)
  end
  local gemm, why = rate_of(cluster, dtype)
  if not gemm and not (tables and cluster.device.op_times) then
    errors.user(("%s: '%s' %s; give a type that it has or, as gemm_flops_per_s = { %s = ... }, the "
      .. "device a rate of it"):format(key, dtype, why, dtype), at, key)
  end
  local out = fields_of(cluster)
  out.device = schema.merged(out.device, { gemm_flops_per_s = gemm or 0 })
  out.device.op_times_ratio = (cluster.device.op_times_ratio or {})[dtype]
  return out
end

--- Returns the device's rate of products in fp8 for a model with these dtypes, nil for one without
--- such products. Raises a user error, on `key` at the line `at`, if the device has no such rate.
function M.fp8_rate(cluster, dtypes_of, key, at)
  if (dtypes_of.products or "plain") == "plain" then return nil end
  local rate_found, why = rate_of(cluster, dtypes_of.products)
  if rate_found then return rate_found end
  errors.user(("%s.products: '%s' %s"):format(key, dtypes_of.products, why), at, key)
end

--- Returns the cluster as the table that the core takes, for times of transfers alone: its device
--- is replaced by one whose rates are 0.
function M.links(cluster)
  return schema.merged(fields_of(cluster), { device = { gemm_flops_per_s = 0,
    vector_flops_per_s = 0, memory_bytes_per_s = 0 } })
end

return M
