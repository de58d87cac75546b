-- moe.cluster.<name>{ nodes = n } and moe.cluster.custom{...}: tables that the core understands,
-- with the assumed constants they rest on.
local comm_tables = require "moe.spec.comm_tables"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

--- The built-in clusters: files in clusters/.
M.files = { "h200", "hpnv", "hpwnv", "lina", "lpwnv", "p3dn", "p4de" }

local mt = schema.class("cluster", "a cluster, as moe.cluster.p4de { nodes = 2 }")

local SMALLEST = 1e-9

local function rate(doc) return { type = "number", lo = SMALLEST, hi = 1e18, doc = doc } end
local function share() return { type = "number", lo = SMALLEST, hi = 1, doc = "of the peak" } end
local function time(doc) return { type = "number", lo = 0, hi = 1e9, default = 0, doc = doc } end

M.LINK = {
  bytes_per_s = rate "achieved bytes a second, one way",
  peak_bytes_per_s = rate "data-sheet bytes a second, one way",
  efficiency = share(),
  latency_us = time "one traversal, microseconds",
}

--- How links are shared where collectives meet.
M.SHARE = { type = "string",
  enum = { "per_flow", "per_channel", "per_collective", "strict_priority" },
  doc = "who gets how much of a link where collectives meet" }
M.SHARING_EFFICIENCY = { type = "number", lo = 1e-6, hi = 1,
  doc = "assumed: what is left of a link's rate while two collectives use it" }

M.DEVICE = {
  name = { type = "string", default = "device" },
  gemm_flops_per_s = rate "achieved flops a second in GEMMs",
  peak_gemm_flops_per_s = rate "data-sheet flops a second in GEMMs",
  gemm_efficiency = share(),
  vector_flops_per_s = rate "flops a second outside GEMMs; as in GEMMs",
  memory_bytes_per_s = rate "achieved bytes a second",
  peak_memory_bytes_per_s = rate "data-sheet bytes a second",
  memory_efficiency = share(),
  launch_us = time "added to every op, microseconds",
  memory_bytes = { type = "number", lo = 0, hi = 1e18, default = 0, doc = "0: unknown" },
}

local function slower(what)
  return { type = "number", lo = 1, hi = 100, default = 1, doc = "times of " .. what }
end

--- What transfers take from compute beside them.
M.OVERLAP_SLOWDOWN = { gemm = slower "GEMMs", memory = slower "all other compute" }

M.FIELDS = {
  name = { type = "string", default = "custom" },
  nodes = { type = "integer", lo = 1, hi = 65536, required = true, doc = "number of nodes" },
  devices_per_node = { type = "integer", lo = 1, hi = 1024, required = true,
    doc = "devices of a node" },
  dtype = { type = "string", enum = { "f16", "bf16", "f32" },
    doc = "in which the device's rates were found, and so of models on it; any" },
  device = { type = M.DEVICE, doc = "rates of a device; moe.collectives needs none" },
  intra = { type = M.LINK, doc = "between devices of a node" },
  nic = { type = M.LINK, doc = "between nodes" },
  nics_per_node = { type = "integer", lo = 1, hi = 1024, default = 1 },
  a2a_base_us = time "start-up of an all-to-all, microseconds",
  a2a_per_peer_us = time "start-up a peer, microseconds",
  share = schema.merged(M.SHARE, { default = "per_collective" }),
  sharing_efficiency = schema.merged(M.SHARING_EFFICIENCY, { default = 1 }),
  overlap_slowdown = { type = M.OVERLAP_SLOWDOWN, default = {},
    doc = "how much longer compute takes while a collective runs beside it" },
  collectives = { type = comm_tables.FIELDS, default = {},
    doc = "measured times, instead of closed forms" },
}

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
    errors.user(path .. ": intra is missing; more than one device a node needs it", at)
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

local function load_file(name) return require("moe.clusters." .. name)(schema.assumed) end

--- One line about a built-in cluster.
function M.doc(name) return load_file(name).doc end

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

local constructors = { custom = function(t) return resolve(t, "cluster", errors.here()) end }
for _, name in ipairs(M.files) do constructors[name] = named(name) end

--- moe.cluster.<name>: functions of { nodes = n, and what is to differ }; custom takes all fields.
M.constructors = schema.namespace("moe.cluster", "cluster", constructors)

local function fields_of(cluster)
  local out = {}
  for key in pairs(M.FIELDS) do out[key] = cluster[key] end
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
