-- moe.cluster.<name>{ nodes = n } and moe.cluster.custom{...}: tables that the core understands,
-- with the assumed constants they rest on.
local comm_tables = require "moe.spec.comm_tables"
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

--- The built-in clusters: files in clusters/.
M.files = core.library_files "clusters"

local mt = schema.class("cluster", "a cluster, as moe.cluster.p4de { nodes = 2 }")

local function rate(doc) return { type = "number", lo = 1e-9, hi = 1e18, doc = doc } end
local function share() return { type = "number", lo = 1e-9, hi = 1, doc = "of the peak" } end

local declared = schema.declared "cluster"

--- A link between devices or nodes, as it is achieved, and as it may also be given.
M.PLAIN_LINK = declared.nic.type
M.LINK = schema.changed(M.PLAIN_LINK, {
  peak_bytes_per_s = rate "data-sheet bytes per second, one way", efficiency = share() })
M.DEVICE = schema.changed(declared.device.type, {
  peak_gemm_flops_per_s = rate "data-sheet flops per second in GEMMs", gemm_efficiency = share(),
  peak_memory_bytes_per_s = rate "data-sheet bytes per second", memory_efficiency = share() })
--- What transfers take from compute beside them.
M.OVERLAP_SLOWDOWN = declared.overlap_slowdown.type
--- How links are shared where collectives meet.
M.SHARE, M.SHARING_EFFICIENCY = declared.share, declared.sharing_efficiency

-- What a plan takes of a cluster.
local PLAIN = schema.keys_of(declared)
PLAIN[#PLAIN + 1], PLAIN[#PLAIN + 2] = "collectives", "dtype"

M.FIELDS = schema.changed(declared, {
  device = { type = M.DEVICE }, intra = { type = M.LINK }, nic = { type = M.LINK },
  overlap_slowdown = { type = M.OVERLAP_SLOWDOWN, default = {} },
  dtype = { type = "string", enum = { "f16", "bf16", "f32" },
    doc = "in which the device's rates were found, and so of models on it; any" },
  collectives = { type = comm_tables.FIELDS, default = {},
    doc = "measured times, instead of closed forms" },
})

-- t[name] is given, or becomes the peak times the achieved share of it.
local function achieve(t, name, peak, part, path, at)
  if t[name] and (t[peak] or t[part]) then
    errors.user(("%s: give %s, or %s with %s, not both"):format(path, name, peak, part), at,
      path .. "." .. name)
  end
  if not t[name] and not (t[peak] and t[part]) then
    errors.user(("%s: %s is missing (or %s with %s)"):format(path, name, peak, part), at)
  end
  t[name] = t[name] or t[peak] * t[part]
  t[peak], t[part] = nil, nil
end

-- ends: as in schema.collector.
local function resolve(t, path, at, ends)
  local assumed = schema.collector(path, "cluster", ends)
  local c = schema.check(M.FIELDS, t, path, at, assumed)
  if c.device then
    local d = path .. ".device"
    achieve(c.device, "gemm_flops_per_s", "peak_gemm_flops_per_s", "gemm_efficiency", d, at)
    achieve(c.device, "memory_bytes_per_s", "peak_memory_bytes_per_s", "memory_efficiency", d, at)
    c.device.vector_flops_per_s = c.device.vector_flops_per_s or c.device.gemm_flops_per_s
  end
  for _, name in ipairs { "intra", "nic" } do
    if c[name] then
      achieve(c[name], "bytes_per_s", "peak_bytes_per_s", "efficiency", path .. "." .. name, at)
    end
  end
  if c.nodes > 1 and not c.nic then
    errors.user(path .. ": nic is missing; more than one node needs it", at)
  end
  if c.devices_per_node > 1 and not c.intra then
    errors.user(path .. ": intra is missing; more than one device per node needs it", at)
  end
  -- A link that nothing crosses.
  c.intra = c.intra or c.nic or { bytes_per_s = 1e12, latency_us = 0 }
  c.nic = c.nic or c.intra
  c.devices = c.nodes * c.devices_per_node
  c.collectives = comm_tables.resolve(c.collectives, c.devices, path .. ".collectives", at)
  c.assumed, c.at, c.given, c.path = assumed.found, at, schema.merged(t, {}), path
  return schema.object(c, mt)
end

--- The cluster with some assumed constants at an end of their band.
function M.at_ends(cluster, ends) return resolve(cluster.given, cluster.path, cluster.at, ends) end

local function load_file(name)
  local file = require("moe.clusters." .. name)
  local data = type(file) == "function" and file(schema.assumed)
  if type(data) ~= "table" or type(data.doc) ~= "string" then
    error(("clusters/%s.lua: return a function of assumed that gives a table of fields with a doc")
      :format(name), 0)
  end
  return data
end

local function named(name)
  return function(t)
    local at = errors.here()
    local path = "cluster." .. name
    if type(t) ~= "table" then schema.refuse(path, t, "a table, as { nodes = 2 }", at) end
    local data = load_file(name)
    data.doc, data.name = nil, name
    return resolve(schema.merged(data, t), path, at)
  end
end

local constructors = { custom = { function(t) return resolve(t, "cluster", errors.here()) end,
  M.FIELDS, "moe.Cluster", "every number given in the recipe, or by moe.machine 'machine.lua'",
  class = "moe.ClusterFields", assumed = true } }
for _, name in ipairs(M.files) do
  constructors[name] = { named(name), "(t: moe.ClusterFields)", "moe.Cluster", load_file(name).doc }
end

--- moe.cluster.<name>: functions of { nodes = n, and what is to differ }; custom takes all fields.
M.constructors = schema.functions("moe.cluster", "cluster", constructors)

schema.record("context cluster", "ctx.cluster", "devices and links, in the calls of policies", {
  { "devices", "integer", "in all" },
  { "node_of", "(device: integer): integer", "the device's node; of a placement's ctx" },
  { "devices_of", "(node: integer): integer[]", "the node's devices; of a placement's ctx" },
}, declared)
schema.record("place rates", "ctx.rates", "what a placement's times are made of", {},
  schema.declared "place_rates")

local function fields_of(cluster)
  local out = {}
  for _, key in ipairs(PLAIN) do out[key] = cluster[key] end
  return out
end

--- What the core takes of a cluster.
function M.plain(cluster)
  if not cluster.device then
    errors.user(cluster.path .. ".device: is missing; a plan needs the rates of a device",
      cluster.at)
  end
  return fields_of(cluster)
end

--- What the core takes of a cluster where only its links matter.
function M.links(cluster)
  return schema.merged(fields_of(cluster), { device = { gemm_flops_per_s = 0,
    vector_flops_per_s = 0, memory_bytes_per_s = 0 } })
end

return M
