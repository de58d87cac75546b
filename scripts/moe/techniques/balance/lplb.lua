-- LPLB: DeepSeek's linear-programming load balancer (README and planner.py of
-- github.com/deepseek-ai/LPLB). Each device has a copy of one expert of each of a few fixed other
-- devices: slot i of device d copies the i-th heaviest expert of the device that the topology puts
-- there, so an expert has one copy at most. These are the edges of a graph, and a linear program
-- moves tokens along them, at most an expert's tokens along its edge, so that the device with most
-- computes the fewest. Here the program is solved exactly, in whole tokens: a search over the
-- largest load with a maximum flow, in place of LPLB's interior-point method.
-- Choices: the topology is a torus, as LPLB describes one: odd slots copy from the next devices of
-- the same node, even slots from the same place in the next nodes; in one node, or if the nodes do
-- not divide the devices, all slots copy from the next devices. LPLB chooses the heaviest experts
-- by their history and moves experts by EPLB; bare counts have no history, so the heaviest are
-- those of the counts, and no expert moves.
local layers = require "moe.techniques.balance.layer"
local schema = require "moe.base.schema"

-- Returns the device whose expert is in a slot of device d, or nil: there are no further ones.
local function copied_from(layer, d, slot, node)
  local n = layer.devices
  if n <= node or n % node ~= 0 then
    return slot < n and (d - 1 + slot) % n + 1 or nil
  end
  local step = math.ceil(slot / 2)
  if slot % 2 == 0 then return step < n / node and (d - 1 + step * node) % n + 1 or nil end
  local first = d - 1 - (d - 1) % node
  return step < node and first + (d - 1 - first + step) % node + 1 or nil
end

-- Returns the edges: { expert, from = its owner, to = the device with the copy, room = tokens }.
local function edges_of(layer, node)
  local heaviest = {}
  for d, owned in ipairs(layer.owned) do
    heaviest[d] = schema.sorted({ unpack(owned) }, function(e) return -layer.load[e], e end)
  end
  local edges = {}
  for d = 1, layer.devices do
    for slot = 1, layer.spare do
      local from = copied_from(layer, d, slot, node)
      local e = from and heaviest[from][slot]
      if e then edges[#edges + 1] = { expert = e, from = from, to = d, room = layer.load[e] } end
    end
  end
  return edges
end

-- Finds a way from device `start` to one below the limit, along edges with tokens left or backwards
-- along edges with tokens moved. Returns its steps { edge, sign }, last first, and its end.
local function way(start, at, moved, load, limit)
  local came, queue, head = { [start] = {} }, { start }, 1
  while queue[head] do
    local d = queue[head]
    head = head + 1
    if load[d] < limit then
      local steps, here = {}, d
      while came[here].edge do
        steps[#steps + 1] = came[here]
        here = came[here].before
      end
      return steps, d
    end
    for _, edge in ipairs(at[d]) do
      local sign = edge.from == d and 1 or -1
      local other = sign == 1 and edge.to or edge.from
      local left = sign == 1 and edge.room - moved[edge] or moved[edge]
      if left > 0 and not came[other] then
        came[other] = { edge = edge, sign = sign, before = d }
        queue[#queue + 1] = other
      end
    end
  end
end

-- Returns the tokens moved along each edge so that no device has more than the limit; nil if there
-- is no such flow.
local function flow(layer, edges, at, limit)
  local moved, load = {}, {}
  for _, edge in ipairs(edges) do moved[edge] = 0 end
  for d, tokens in ipairs(layer.computed) do load[d] = tokens end
  for d = 1, layer.devices do
    while load[d] > limit do
      local steps, finish = way(d, at, moved, load, limit)
      if not steps then return nil end
      local tokens = math.min(load[d] - limit, limit - load[finish])
      for _, s in ipairs(steps) do
        local left = s.sign == 1 and s.edge.room - moved[s.edge] or moved[s.edge]
        tokens = math.min(tokens, left)
      end
      for _, s in ipairs(steps) do moved[s.edge] = moved[s.edge] + s.sign * tokens end
      load[d], load[finish] = load[d] - tokens, load[finish] + tokens
    end
  end
  return moved
end

return {
  doc = "LPLB: a linear program over copies of the heaviest experts at fixed places",
  options = {
    node = { type = "integer", lo = 1, hi = 65536, default = 8, doc = "devices of a node" },
  },
  plan = function(layer, o)
    local edges, at = edges_of(layer, o.node), {}
    for d = 1, layer.devices do at[d] = {} end
    for _, edge in ipairs(edges) do
      table.insert(at[edge.from], edge)
      table.insert(at[edge.to], edge)
    end
    local fails = math.ceil(layer.total / layer.devices) - 1
    local least = layer.computed[layers.argmax(layer.computed)]
    local best = flow(layer, edges, at, least)
    while least - fails > 1 do
      local limit = math.floor((least + fails) / 2)
      local moved = flow(layer, edges, at, limit)
      if moved then best, least = moved, limit else fails = limit end
    end
    local plan = layers.copies(layer)
    for _, edge in ipairs(edges) do plan:give(edge.expert, edge.to, best[edge]) end
    return plan
  end,
}
