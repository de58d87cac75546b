-- moe.eplb: the maps of EPLB (DeepSeek's expert-parallel load balancer), which say of each layer
-- which expert is in which physical slot: phy2log[layer][slot], from 0; a device has equally many
-- neighbouring slots. SGLang and vLLM call it physical_to_logical_map.
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"
local outputs = require "moe.run.outputs"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("eplb map", "a map of moe.eplb")

M.READ = {
  devices = { type = "integer", lo = 1, hi = 65536, required = true,
    doc = "devices among which the slots of a layer are divided" },
  experts = { type = "integer", lo = 1, hi = 65535,
    doc = "experts of a layer; default: the highest one in the map" },
  field = { type = "string", doc = "the field of the file that has the map; default: phy2log or "
    .. "physical_to_logical_map" },
}

-- Returns the map of slots[layer][slot], experts from 1.
local function map_of(slots, experts, devices, where)
  local highest, of = 0, {}
  for l, list in ipairs(slots) do
    if #list % devices ~= 0 or #list ~= #slots[1] then
      files.fail(where, "layer %d has %d slots; allowed: a multiple of devices = %d, in all layers "
        .. "the same", l, #list, devices)
    end
    for _, e in ipairs(list) do highest = math.max(highest, e) end
  end
  experts = experts or highest
  for l, list in ipairs(slots) do
    local each, seen = #list / devices, {}
    of[l] = {}
    for slot, e in ipairs(list) do
      local d = math.ceil(slot / each)
      of[l][d] = of[l][d] or {}
      table.insert(of[l][d], e)
      seen[e] = true
    end
    for e = 1, math.max(experts, highest) do
      if not seen[e] or e > experts then
        files.fail(where, e > experts and "layer %d has expert %d (from 0), but there are %d"
          or "layer %d: no slot has expert %d (from 0) of %d", l, e - 1, experts)
      end
    end
  end
  return schema.object({ experts = experts, devices = devices, slots = #slots[1] / devices,
    of = of }, mt)
end

local function read(file, how)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.eplb.read", at)
  local c = schema.check(M.READ, how or {}, "moe.eplb.read", at)
  local name = file:match "[^/]*$"
  local value = errors.call(at, core.json_decode, errors.call(at, core.read_file, file), name)
  if type(value) == "table" and #value == 0 then
    value = c.field and value[c.field] or not c.field
      and (value.phy2log or value.physical_to_logical_map)
  end
  if type(value) ~= "table" or #value == 0 then
    errors.user(("%s: it has no map '%s' of slots by layer"):format(name, c.field or "phy2log"), at)
  end
  if type(value[1]) ~= "table" then value = { value } end
  local slots = {}
  for l, list in ipairs(value) do
    slots[l] = {}
    for i, e in ipairs(type(list) == "table" and list or {}) do
      if not files.is_whole(e) or e < 0 or e >= 65535 then
        errors.user(("%s: layer %d, slot %d: %s is not allowed; give an expert from 0"):format(name,
          l, i - 1, files.shown(e)), at)
      end
      slots[l][i] = e + 1
    end
  end
  return errors.call(at, map_of, slots, c.experts, c.devices, name)
end

M.MAP = {
  layers = { type = "list", of = { type = "list", of = { type = "table" } }, required = true,
    doc = "by layer and expert, the devices that hold it, from 1, or { device = } of each "
      .. "(holders of moe.prophet.place)" },
  devices = M.READ.devices,
}

-- moe.eplb.map{...}: the map of placements. A device has its experts in ascending order.
local function map(t)
  local at = errors.here()
  local c = schema.check(M.MAP, t, "moe.eplb.map", at)
  local slots, each = {}, 0
  for l, experts in ipairs(c.layers) do
    local held = {}
    for d = 1, c.devices do held[d] = {} end
    for e, holders in ipairs(experts) do
      for _, holder in ipairs(holders) do
        local d = type(holder) == "table" and holder.device or holder
        if not held[d] then
          schema.refuse(("moe.eplb.map.layers[%d][%d]"):format(l, e), d,
            ("a device from 1 to %d"):format(c.devices), at)
        end
        table.insert(held[d], e)
      end
    end
    slots[l], each = held, math.max(each, #held[1])
  end
  for l, held in ipairs(slots) do
    local list = {}
    for d, experts in ipairs(held) do
      if #experts ~= each then
        errors.user(("moe.eplb.map: device %d has %d experts in layer %d, another one %d; a map of "
          .. "EPLB has equally many slots per device"):format(d, #experts, l, each), at)
      end
      for _, e in ipairs(experts) do list[#list + 1] = e end
    end
    slots[l] = list
  end
  return errors.call(at, map_of, slots, #c.layers[1], c.devices, "moe.eplb.map")
end

local function checked(m, path, at)
  if not schema.is_a("eplb map", m) then
    schema.refuse(path, m, "a map, from moe.eplb.read or moe.eplb.map", at)
  end
  return m
end

-- moe.eplb.write(map, file): writes phy2log, log2phy (-1 where an expert has fewer copies than
-- another) and logcnt; returns the file's path.
local function write(m, file)
  local at = errors.here()
  checked(m, "moe.eplb.write", at)
  schema.field({ type = "string", required = true }, file, "moe.eplb.write", at)
  local out = { phy2log = {}, log2phy = {}, logcnt = {} }
  for l, devices in ipairs(m.of) do
    local slots, of, most = {}, {}, 0
    for e = 1, m.experts do of[e] = {} end
    for _, experts in ipairs(devices) do
      for _, e in ipairs(experts) do
        table.insert(of[e], #slots)
        slots[#slots + 1], most = e - 1, math.max(most, #of[e])
      end
    end
    out.logcnt[l] = {}
    for e, list in ipairs(of) do
      out.logcnt[l][e] = #list
      for i = #list + 1, most do list[i] = -1 end
    end
    out.phy2log[l], out.log2phy[l] = slots, of
  end
  outputs.claim(file, "a map of moe.eplb", "moe.eplb.write", at)
  return errors.call(at, core.write_output, file, core.json_encode(out))
end

-- moe.eplb.policy(map): a pass that places experts by the map, before the second step.
local function placed(m, name)
  local at = errors.here()
  checked(m, "moe.eplb.policy", at)
  local layers, extra = {}, m.slots - m.experts / m.devices  -- residents beyond the own ones
  for l, devices in ipairs(m.of) do
    layers[l] = {}
    for e = 1, m.experts do layers[l][e] = {} end
    for d, experts in ipairs(devices) do
      for _, e in ipairs(experts) do
        local list = layers[l][e]
        if list[#list] == d then
          errors.user(("moe.eplb.policy: device %d has expert %d (from 0) twice in layer %d; here "
            .. "a device holds an expert once"):format(d - 1, e - 1, l), at)
        end
        list[#list + 1] = d
      end
    end
  end
  if extra % 1 ~= 0 then
    errors.user(("moe.eplb.policy: %d experts do not divide evenly over %d devices, as those of a "
      .. "training must"):format(m.experts, m.devices), at)
  end
  return policy.constructors.placement { name = name or "eplb_map", every = 1, shadows = 0,
    extra_residents = extra,
    place = function(ctx, _, p)
      local held = layers[ctx.layer]
      if not held or ctx.devices ~= m.devices or ctx.experts ~= m.experts then
        error(("the map: %d layers of %d experts on %d devices; this is layer %d of %d on %d")
          :format(#layers, m.experts, m.devices, ctx.layer, ctx.experts, ctx.devices), 0)
      end
      local lists = {}
      for e, devices in ipairs(held) do
        lists[e] = {}
        for i, d in ipairs(devices) do lists[e][i] = d end
        for i, d in ipairs(devices) do
          if d == p:owner(e) then lists[e][1], lists[e][i] = d, lists[e][1] end
        end
      end
      p:layout(lists)
      for e, list in ipairs(lists) do if #list > 1 then p:share(e, "even") end end
      return p
    end }
end

M.functions = schema.functions("moe.eplb", "function", {
  read = { read, "(file: string, how: { devices: integer, experts?: integer, field?: string })",
    "moe.EplbMap", "reads the map of a JSON file" },
  map = { map, M.MAP, "moe.EplbMap", "the map of placements" },
  write = { write, "(map: moe.EplbMap, file: string)", "string",
    "writes a map with phy2log, log2phy and logcnt into the output folder; returns its path" },
  policy = { placed, "(map: moe.EplbMap, name?: string)", "fun(t?: table): moe.Pass",
    "the constructor of a pass that places experts by the map" },
})

schema.record("eplb map", "m", "which experts are on which device", {
  { "experts", "integer", "experts of a layer" }, { "devices", "integer", "devices" },
  { "slots", "integer", "slots of a device" },
  { "of", "integer[][][]", "experts, from 1, by layer and device, in the order of the slots" },
})

return M
