-- moe.cluster.<name>{ nodes = n } and moe.cluster.custom{...}: tables that the core understands,
-- with the assumed constants they rest on.
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

M.files = { "p3dn", "p4de" }

local POSITIVE = 1e-9

local rate = { type = "number", lo = POSITIVE, hi = 1e18 }
local function with(field, more)
  local out = {}
  for k, v in pairs(field) do out[k] = v end
  for k, v in pairs(more) do out[k] = v end
  return out
end
local time = { type = "number", lo = 0, hi = 1e9 }

local link = {
  bytes_per_s = with(rate, { doc = "achieved bytes a second, one way" }),
  peak_bytes_per_s = with(rate, { doc = "data-sheet bytes a second, one way" }),
  efficiency = { type = "number", lo = POSITIVE, hi = 1, doc = "achieved share of the peak" },
  latency_us = with(time, { default = 0, doc = "one traversal, microseconds" }),
}

local device = {
  name = { type = "string", default = "device" },
  gemm_flops_per_s = with(rate, { doc = "achieved flops a second in GEMMs" }),
  peak_gemm_flops_per_s = with(rate, { doc = "data-sheet flops a second in GEMMs" }),
  gemm_efficiency = { type = "number", lo = POSITIVE, hi = 1, doc = "achieved share of the peak" },
  vector_flops_per_s = with(rate, { doc = "flops a second outside GEMMs" }),
  memory_bytes_per_s = with(rate, { doc = "achieved bytes a second" }),
  peak_memory_bytes_per_s = with(rate, { doc = "data-sheet bytes a second" }),
  memory_efficiency = { type = "number", lo = POSITIVE, hi = 1,
    doc = "achieved share of the peak" },
  launch_us = with(time, { default = 0, doc = "added to every op, microseconds" }),
  memory_bytes = { type = "number", lo = 0, default = 0, doc = "0: unknown" },
}

M.fields = {
  name = { type = "string", default = "custom" },
  nodes = { type = "integer", lo = 1, hi = 65536, required = true, doc = "number of nodes" },
  devices_per_node = { type = "integer", lo = 1, hi = 1024, required = true,
    doc = "devices of a node" },
  device = { type = device },
  intra = { type = link },
  nic = { type = link },
  nics_per_node = { type = "integer", lo = 1, hi = 1024, default = 1 },
  a2a_base_us = with(time, { default = 0, doc = "start-up of an all-to-all, microseconds" }),
  a2a_per_peer_us = with(time, { default = 0, doc = "start-up a peer, microseconds" }),
}

-- Either the achieved rate, or a peak and its achieved share.
local function achieved(t, name, peak, share, path, at)
  if t[name] and t[peak] then
    errors.user(("%s: give %s, or %s with %s, not both"):format(path, name, peak, share), name, at)
  end
  if not t[name] and not t[peak] then
    errors.user(("%s: %s is missing (or %s with %s)"):format(path, name, peak, share), nil, at)
  end
  local rate_value = t[name] or t[peak] * (t[share] or 1)
  t[peak], t[share] = nil, nil
  t[name] = rate_value
end

local mt = { __name = "cluster" }
M.mt = mt

local function resolve(t, path, at)
  local assumed = {}
  local c = schema.check(M.fields, t, path, at, assumed)
  if c.device then
    local d = path .. ".device"
    achieved(c.device, "gemm_flops_per_s", "peak_gemm_flops_per_s", "gemm_efficiency", d, at)
    achieved(c.device, "memory_bytes_per_s", "peak_memory_bytes_per_s", "memory_efficiency", d, at)
    c.device.vector_flops_per_s = c.device.vector_flops_per_s or c.device.gemm_flops_per_s
  end
  for _, name in ipairs { "intra", "nic" } do
    if c[name] then
      achieved(c[name], "bytes_per_s", "peak_bytes_per_s", "efficiency", path .. "." .. name, at)
    end
  end
  if c.nodes > 1 and not c.nic then
    errors.user(path .. ": nic is missing; more than one node needs it", nil, at)
  end
  if c.devices_per_node > 1 and not c.intra then
    errors.user(path .. ": intra is missing; more than one device a node needs it", nil, at)
  end
  c.intra = c.intra or { bytes_per_s = 1e12, latency_us = 0 }
  c.nic = c.nic or c.intra
  c.devices = c.nodes * c.devices_per_node
  c.assumed = assumed
  return setmetatable(c, mt)
end
M.resolve = resolve

local function load_file(name)
  return require("moe.clusters." .. name)(schema.assumed)
end

--- doc line of a built-in cluster.
function M.doc(name) return load_file(name).doc end

--- moe.cluster.<name>: each known name is a function of { nodes = n, and what is to differ }.
M.constructors = setmetatable({}, {
  __index = function(_, name)
    local at = errors.here()
    if name == "custom" then
      return function(t) return resolve(t, "cluster", errors.here()) end
    end
    for _, known in ipairs(M.files) do
      if known == name then
        return function(t)
          local here = errors.here()
          if type(t) ~= "table" then
            errors.user(("cluster.%s: give a table, as { nodes = 2 }"):format(name), nil, here)
          end
          local data = load_file(name)
          data.doc = nil
          data.name = name
          for key, value in pairs(t) do
            if M.fields[key] == nil then
              schema.unknown("cluster." .. name, "key", key, schema.keys_of(M.fields), here)
            end
            data[key] = value
          end
          return resolve(data, "cluster." .. name, here)
        end
      end
    end
    local names = { "custom" }
    for _, known in ipairs(M.files) do names[#names + 1] = known end
    table.sort(names)
    schema.unknown("moe.cluster", "cluster", name, names, at)
  end,
})

return M
