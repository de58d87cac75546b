-- When does it pay? Three techniques are compared with plain execution, each over tokens per GPU
-- and one more axis: GPUs, NIC bandwidth or skew. A cell is the speed-up by the technique; the last
-- row is the number of tokens at which it breaks even, interpolated between rows. Simulated on
-- p4de, 8 GPUs per node; technique (3), which is about transfers that share links, on Lina's
-- testbed, 4 GPUs per node.
--
-- Skew: expert e is chosen in proportion to e^-s (Zipf), with one expert per GPU. (1) sends only
-- real rows, as in the matrix of bytes between pairs. (2) and (3) pad: no row is dropped when the
-- capacity factor is the first expert's share times the number of experts, and then every pair of
-- ranks sends equally many slots.
local moe = require "moe"
local pass = moe.pass

local HIDDEN, SEQ, BYTES = 768, 256, 2
local TOKENS = { 256, 512, 1024, 2048, 4096, 8192, 16384 }
local GIGA = 1e9

-- Returns the shares of choices of n experts under skew s.
local function zipf(n, s)
  local shares, sum = {}, 0
  for e = 1, n do shares[e] = e ^ -s; sum = sum + shares[e] end
  for e = 1, n do shares[e] = shares[e] / sum end
  return shares
end

-- Returns a text with the tokens at which gains cross 1, interpolated linearly between logarithms.
local function break_even(gains)
  local found = {}
  for i = 2, #gains do
    local a, b = math.log(gains[i - 1]), math.log(gains[i])
    if (a <= 0) ~= (b <= 0) then
      local x = math.log(TOKENS[i - 1]) + math.log(TOKENS[i] / TOKENS[i - 1]) * a / (a - b)
      found[#found + 1] = ("%s %.0f"):format(b > 0 and "from" or "up to", math.exp(x))
    end
  end
  if #found > 0 then return table.concat(found, ", ") end
  return gains[1] > 1 and "always" or "never"
end

-- Prints the table of gain(tokens, value) over all numbers of tokens and all values of the axis.
local function map(axis, gain)
  local rows = { { "tokens per GPU \\ " .. axis.name } }
  local last = { "breaks even" }
  for i, tokens in ipairs(TOKENS) do rows[i + 1] = { tokens } end
  for c, value in ipairs(axis) do
    rows[1][c + 1] = axis.text and axis.text:format(value) or value
    local gains = {}
    for i, tokens in ipairs(TOKENS) do
      gains[i] = gain(tokens, value)
      rows[i + 1][c + 1] = ("%.2f"):format(gains[i])
    end
    last[c + 1] = break_even(gains)
  end
  rows[#rows + 1] = last
  print(moe.table(rows) .. "\n")
end

-- Prints a table for each axis. The other coordinates are those of a common point; axis.at changes
-- the point.
local function maps(axes, gain)
  for _, axis in ipairs(axes) do
    map(axis, function(tokens, value)
      local point = { tokens = tokens, gpus = axes.gpus, nic = axes.nic, skew = 0, efficiency = 1 }
      point[axis.key] = value
      return gain(point)
    end)
  end
end

-- Returns the cluster of a point. Fields of a point: tokens, gpus, nic (GB/s of each NIC), skew
-- (s), efficiency (share of a link's rate that is left while it is shared).
local function p4de(point, base_us, per_peer_us)
  return moe.cluster.p4de { nodes = point.gpus / 8, a2a_base_us = base_us,
    a2a_per_peer_us = per_peer_us, nic = { bytes_per_s = point.nic * GIGA, latency_us = 2.5 } }
end

-- (1) An all-to-all alone, in one step or in two. -------------------------------------------------

-- Returns the ms of one transfer whose start-up is that for `peers` peers (the cluster's own
-- start-up always counts all other ranks).
local BASE_US, PER_PEER_US = 20, 2
local function transfer_ms(point, bytes, peers)
  local cluster = p4de(point, BASE_US + PER_PEER_US * peers, 0)
  return moe.collectives { cluster = cluster,
    ops = { { kind = "all_to_all", bytes = bytes } } }[1].end_ms
end

-- Returns three matrices of bytes between pairs of ranks: of the direct all-to-all; of the first of
-- two steps, within nodes; and of the second step, between ranks with the same place in their
-- nodes.
local function matrices(point)
  local n, shares = point.gpus, zipf(point.gpus, point.skew)
  local one, near, far = {}, {}, {}
  for i = 1, n do
    one[i], near[i], far[i] = {}, {}, {}
    for j = 1, n do one[i][j], near[i][j], far[i][j] = 0, 0, 0 end
  end
  local bytes = point.tokens * HIDDEN * BYTES
  for i = 1, n do
    local node = i - 1 - (i - 1) % 8
    for j = 1, n do
      local sent, meet = bytes * shares[j], node + 1 + (j - 1) % 8
      one[i][j] = sent
      near[i][meet] = near[i][meet] + sent
      far[meet][j] = far[meet][j] + sent
    end
  end
  return one, near, far
end

-- Re-ordering the rows between the two steps reads and writes every row once.
local COPY_MS_A_BYTE, LAUNCH_MS = 2e3 / (2039e9 * 0.8), 8e-3
local function two_steps(point)
  local one, near, far = matrices(point)
  local copy_ms = point.tokens * HIDDEN * BYTES * COPY_MS_A_BYTE + LAUNCH_MS
  local two_ms = transfer_ms(point, near, 7) + transfer_ms(point, far, point.gpus / 8 - 1) + copy_ms
  return transfer_ms(point, one, point.gpus - 1) / two_ms
end

print [[
(1) All-to-all in two steps (2D: within nodes, then between them) over one step (1D)
Two steps start up twice, with GPUs/8 + 6 peers in all instead of GPUs - 1, copy every row and use
the links within nodes; a NIC carries the same bytes. So it pays with many GPUs and few tokens,
while start-ups are what takes the time. With skew the fullest NIC takes longer, and start-ups
matter less.

]]
maps({ gpus = 64, nic = 10,
  { key = "gpus", name = "GPUs", 16, 32, 64, 128 },
  { key = "nic", name = "NIC GB/s, 64 GPUs", 2.5, 5, 10, 20, 40 },
  { key = "skew", name = "Zipf s, 64 GPUs", 0, 0.5, 1 } }, two_steps)

-- (2) Steps of a model. ---------------------------------------------------------------------------

local function model(point)
  return moe.model.gpt2_moe { layers = 4, hidden = HIDDEN, heads = 12, seq = SEQ, vocab = 8192,
    batch_per_device = point.tokens / SEQ, experts_per_device = 1, gate = "switch",
    capacity_factor = point.gpus * zipf(point.gpus, point.skew)[1] }
end

local function step_ms(model_, cluster, system)
  return moe.plan { model = model_, cluster = cluster, system = system }:simulate().iteration_ms
end

local function degree(r)
  return moe.system("degree" .. r) { all_reduce = { lane = "comm_reduce", place = "ready" },
    pass.capacity_pipeline { degree = r } }
end

local function pipelined(point)
  local cluster, best = p4de(point), math.huge
  for _, r in ipairs { 2, 4, 8 } do
    if r > point.tokens / point.gpus then break end -- more parts than slots
    best = math.min(best, step_ms(model(point), cluster, degree(r)))
  end
  return step_ms(model(point), cluster, degree(1)) / best
end

print [[
(2) Pipeline of the best degree of 2, 4, 8 over degree 1 (capacity_pipeline, a step of 4 layers)
A part's experts hide the next part's transfer, and every part pays start-ups and launches of its
own: it pays from the tokens on at which what is hidden is longer, later with more peers. Slow NICs
leave little to hide under, fast ones and single nodes little to hide. Skew pads more slots, as more
tokens do.

]]
maps({ gpus = 32, nic = 10,
  { key = "gpus", name = "GPUs", 8, 16, 32, 64 },
  { key = "nic", name = "NIC GB/s, 32 GPUs", 2.5, 10, 40 },
  { key = "skew", name = "Zipf s, 32 GPUs", 0, 0.25, 0.5 } }, pipelined)

-- (3) Where all-to-alls and all-reduces meet. -----------------------------------------------------

local function lina(point)
  return moe.cluster.lina { nodes = point.gpus / 4, sharing_efficiency = point.efficiency,
    nic = { bytes_per_s = point.nic * GIGA, latency_us = 2.5 } }
end

local function lina_model(point)
  return moe.model.lina { size = "gpt2", seq = SEQ, batch_per_device = point.tokens / SEQ,
    capacity_factor = point.gpus * zipf(point.gpus, point.skew)[1] }
end

local function over_fair_share(system)
  return function(point)
    local cluster, gpt2 = lina(point), lina_model(point)
    return step_ms(gpt2, cluster, moe.system "lina_baseline" {})
      / step_ms(gpt2, cluster, system)
  end
end

local axes = { gpus = 16, nic = 10,
  { key = "gpus", name = "GPUs", 4, 8, 16, 32 },
  { key = "nic", name = "NIC GB/s, 16 GPUs", 2.5, 10, 40 },
  { key = "skew", name = "Zipf s, 16 GPUs", 0, 0.5, 1 },
  { key = "efficiency", name = "sharing efficiency, 16 GPUs", 1, 0.8, 0.6, 0.48 } }
local function some(...)
  local chosen = { gpus = axes.gpus, nic = axes.nic }
  for i, k in ipairs { ... } do chosen[i] = axes[k] end
  return chosen
end

print [[
(3) All-to-alls first, one transfer at a time, over fair share (lina_baseline), buckets of 25 MiB
both times, GPT-2 of 12 layers
All-to-alls do not share the link, but wait for an all-reduce that is on, and nothing fills the link
while a transfer starts up. What all-to-alls win all-reduces lose, so where links share ideally it
does not pay; it pays where sharing costs bandwidth, an efficiency below 1.

]]
maps(axes, over_fair_share(moe.system "priority" { pass.priority {},
  all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 25 * 2 ^ 20 } }))

print [[
(3a) One all-reduce per gradient (lina_priority) over fair share of buckets
Short all-reduces begin sooner and are soon out of the way, but each pays the latency of a ring:
more with more GPUs, and with few tokens nothing hides it.
]]
maps(some(1, 4), over_fair_share(moe.system "lina_priority" {}))
print "(3b) The same in micro-ops of 30 MB (lina_partition)\n"
maps(some(1, 4), over_fair_share(moe.system "lina_partition" {}))
