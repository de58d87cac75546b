-- LAER-MoE's re-layout (Liu et al., ASPLOS 2026, arXiv 2602.11686; csrc/greedy_balancer.cpp of
-- github.com/PKU-DAIR/Hetu-Galvatron, branch laer-moe). Every slot of a device may hold any expert,
-- anew in each iteration. Two ways to count replicas are tried: the same number for all experts
-- (where the slots divide so), and one more at a time for the expert with the most tokens per
-- replica, at first one per node if the slots suffice, and from one per node on a whole set of
-- nodes at a time. The replicas are placed in descending order of tokens: in a node with the fewest
-- replicas of the expert, on the device with the least load. A source sends tokens to the replicas
-- in its own node, evenly, or if there are none to all. Of both layouts the one with the shorter
-- time is taken.
-- Choices: a time is the load of the heaviest device, since bare counts have no links; a device
-- holds an expert once, and a replica without such a device is left out; the code's random changes
-- of replica counts are left out (it has a switch for them).
local layers = require "moe.techniques.balance.layer"

-- Returns replicas[expert] by load, `slots` in all, of which an expert gets at most one per device.
local function by_load(layer, slots, nodes)
  local first = nodes * layer.experts <= slots and nodes or 1
  local replicas, left = {}, slots - first * layer.experts
  for e = 1, layer.experts do replicas[e] = first end
  local done = {}
  while left > 0 do
    local most
    for e, load in ipairs(layer.load) do
      if not done[e] and (not most or load * replicas[most] > layer.load[most] * replicas[e]) then
        most = e
      end
    end
    if not most then break end
    local more = replicas[most] >= nodes and nodes or 1
    if more <= left and replicas[most] + more <= layer.devices then
      replicas[most], left = replicas[most] + more, left - more
    else
      done[most] = true
    end
  end
  return replicas
end

-- Returns the device for a replica of expert e, or nil if none has room and does not hold it.
local function device_for(e, held, on, load, free, node)
  local best, fewest
  for d in ipairs(load) do
    if free[d] > 0 and not held[e][d] then
      local count = on[e][math.ceil(d / node)] or 0
      if not best or count < fewest or count == fewest and load[d] < load[best] then
        best, fewest = d, count
      end
    end
  end
  return best
end

-- Returns held[expert] = its devices, ascending.
local function placed(layer, replicas, slots, node)
  local each, held, on, load, free = {}, {}, {}, {}, {}
  for e, n in ipairs(replicas) do each[e], held[e], on[e] = layer.load[e] / n, {}, {} end
  for d = 1, layer.devices do load[d], free[d] = 0, slots end
  for _, e in ipairs(layers.descending(each)) do
    for _ = 1, replicas[e] do
      local d = device_for(e, held, on, load, free, node)
      if not d then break end
      local n = math.ceil(d / node)
      held[e][d], on[e][n] = true, (on[e][n] or 0) + 1
      load[d], free[d] = load[d] + each[e], free[d] - 1
    end
  end
  for e, on_device in ipairs(held) do
    local list = {}
    for d = 1, layer.devices do if on_device[d] then list[#list + 1] = d end end
    held[e] = list
  end
  return held
end

-- Returns weights of sources: 1 for holders in the source's node, or for all if there are none.
local function share_in(held, node)
  local near = {}
  for e, devices in ipairs(held) do
    near[e] = {}
    for _, d in ipairs(devices) do near[e][math.ceil(d / node)] = true end
  end
  return function(e, source, d)
    local n = math.ceil(source / node)
    return (not near[e][n] or n == math.ceil(d / node)) and 1 or 0
  end
end

local function heaviest(layer, held, share)
  local load = {}
  for d = 1, layer.devices do load[d] = 0 end
  for e, devices in ipairs(held) do
    for s, tokens in ipairs(layer.routed[e]) do
      local sum = 0
      for _, d in ipairs(devices) do sum = sum + share(e, s, d) end
      for _, d in ipairs(devices) do load[d] = load[d] + tokens * share(e, s, d) / sum end
    end
  end
  return load[layers.argmax(load)]
end

return {
  doc = "LAER: all slots are laid out anew, heavy experts with more replicas",
  pooled = true,
  options = {
    node = { type = "integer", lo = 1, hi = 65536, default = 8, doc = "devices of a node" },
  },
  plan = function(layer, o)
    local slots = layer.residents * layer.devices
    local counts = { by_load(layer, slots, math.ceil(layer.devices / o.node)) }
    if slots % layer.experts == 0 and slots / layer.experts <= layer.devices then
      counts[2] = {}
      for e = 1, layer.experts do counts[2][e] = slots / layer.experts end
    end
    local best, least, how
    for _, replicas in ipairs(counts) do
      local held = placed(layer, replicas, layer.residents, o.node)
      local share = share_in(held, o.node)
      local most = heaviest(layer, held, share)
      if not best or most < least then best, least, how = held, most, share end
    end
    return layers.layout(layer, best, how)
  end,
}
