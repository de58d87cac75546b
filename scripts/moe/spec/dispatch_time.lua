-- moe.dispatch_time{...}: how long a dispatch or combine takes, from measured tables where they
-- have the call, else from the law of engine/dispatch/law.h with parameters of gpus/dispatch.lua.
local cluster = require "moe.spec.cluster"
local core = require "moe.core"
local dispatch = require "moe.spec.dispatch"
local dispatcher = require "moe.spec.dispatcher"
local errors = require "moe.base.errors"
local machine = require "moe.formats.machine"
local op_time = require "moe.spec.op_time"
local schema = require "moe.base.schema"

local M = {}

local PATH = "moe.dispatch_time"

--- What laws need of GPUs, from data sheets: bytes per second of NVLink and of a rank's NIC, one
--- way; SMs as CUDA counts them; table: ranks of a node in the measured tables of gpus/*.times.
M.GPUS = {
  h800 = { nvlink = 200e9, nic = 50e9, sms = 132 },
  h100 = { nvlink = 450e9, nic = 50e9, sms = 132, table = 8 },
  h200 = { nvlink = 450e9, nic = 50e9, sms = 132, table = 8 },
  b200 = { nvlink = 900e9, nic = 50e9, sms = 148, table = 8 },
  b300 = { nvlink = 900e9, nic = 100e9, sms = 148, table = 8 },
  gb200 = { nvlink = 900e9, nic = 50e9, sms = 152, table = 4 },
  gb300 = { nvlink = 900e9, nic = 100e9, sms = 152 },
}

M.FIELDS = schema.merged(dispatch.SIZES, {
  dispatcher = { type = "any", as = "string|moe.Dispatcher", required = true,
    doc = "a name (moebench list dispatchers), or a value such as moe.dispatcher.deepep_v1 {}" },
  gpu = { type = "string", enum = schema.keys_of(M.GPUS), required = true, doc = "the GPU" },
  way = { type = "string", enum = { "dispatch", "combine" }, required = true,
    doc = "to the experts, or back" },
  tokens = { type = "integer", lo = 1, hi = 1e9, required = true, doc = "tokens of each rank" },
  dtype = { type = "string", enum = { "bf16", "fp8", "fp32" },
    doc = "element type on the wire; default: the dispatcher's" },
  sms = { type = "integer", lo = 0, hi = 1024, doc = "SMs that the kernels take; default: the "
    .. "dispatcher's; of low-latency kernels, which take all for a short time, it has no effect" },
  notify = { type = "boolean", default = false,
    doc = "whether the exchange of counts before it is included, with the waiting of ranks for "
      .. "each other" },
})

schema.record("dispatch time", "time", "the time of one dispatch or combine", {
  { "us", "number", "the time in microseconds" },
  { "lo", "number", "us; lower end of the band that holds 9 of 10 measured times" },
  { "hi", "number", "us; upper end of this band" },
  { "source", "string", "table: measured; fitted: by the law" },
  { "of", "string", "the table, or the GPU and the number of rows to which the law was fitted" },
})

--- The laws of gpus/dispatch.lua, which says what they have.
M.laws = {}
do
  local data = require "moe.gpus.dispatch"
  for i, row in ipairs(data) do
    local law = {}
    for j, name in ipairs(data.names) do law[name] = row[13][j] end
    M.laws[i] = { dispatcher = row[1], gpu = row[2], ways = row[3], nodes = { row[4], row[5] },
      notify = row[6], rows = row[7], p90 = row[9], counts = row[11], slope = row[12], law = law }
  end
end

-- Returns the law that fits a call best: by whether there are several nodes, which other kernels
-- serve, by its GPU and by the number of nodes; and whether by all of these. nil: the dispatcher
-- has none.
local function law_for(name, c, nodes, notify)
  local best, most = nil, -1
  for _, one in ipairs(M.laws) do
    if one.dispatcher == name and one.ways:find(c.way, 1, true) and one.notify == notify then
      local inside = nodes >= one.nodes[1] and nodes <= one.nodes[2]
      local same = inside or (nodes > 1) == (one.nodes[1] > 1)
      local fits = (same and 4 or 0) + (one.gpu == c.gpu and 2 or 0) + (inside and 1 or 0)
      if fits > most then best, most = one, fits end
    end
  end
  return best, most == 7
end

--- Returns the numbers of the law for a call of a dispatcher, { gpu, way, ranks, ranks_per_node },
--- without the exchange of counts; raises a user error where there is none.
function M.law_of(name, c, path, at)
  local one = law_for(name, c, c.ranks / c.ranks_per_node, false)
  if one then return one.law end
  errors.user(("%s.log: no times of '%s' were measured on any GPU, from which its law could be "
    .. "scaled"):format(path, name), at)
end

local rows_of = {}  -- expected rows by dispatcher, options and sizes, since they take time to draw

--- Returns what core.dispatch_us takes beside a law: expected rows per token, and the call. path:
--- of what asks, for errors.
function M.load(c, name, options, path, at)
  local sizes = schema.picked(c, { "ranks", "ranks_per_node", "experts", "topk", "hidden" })
  sizes.tokens, sizes.groups, sizes.top_groups = c.tokens, c.ranks / c.ranks_per_node, c.max_nodes
  -- 288 experts were measured on 64 ranks too: where rows are drawn, the next multiple stands in.
  sizes.experts = math.ceil(c.experts / c.ranks) * c.ranks
  local gpu = M.GPUS[c.gpu]
  local route = dispatcher.route(name, sizes, schema.merged(options, { weights = true,
    combine_weights = false }), gpu.sms, path, at)
  local key = core.json_encode { name, c.way, c.ranks, c.ranks_per_node, c.experts, c.topk,
    c.max_nodes or 0, route.nvlink, route.to_all, route.reduce, route.there, route.back }
  rows_of[key] = rows_of[key] or dispatcher.call(path, at, core.dispatch_rows,
    { exchange = sizes, route = route, way = c.way })
  return rows_of[key], { c.tokens, route[c.way .. "_bytes"], c.experts / c.ranks,
    c.ranks / c.ranks_per_node, route.sms, gpu.nic, gpu.nvlink }, route
end

M.OWN = { type = "list", of = { type = {
  dispatcher = { type = "string", required = true }, way = { type = "string", required = true },
  factor = { type = "number" }, residual = { type = "number" }, rows = { type = "integer" },
  nodes = { type = "integer" }, law = { type = schema.declared "law", required = true } } } }

-- Returns the laws of the machine file of a cluster by dispatcher and way; none without a file.
local function own_laws(on, path, at)
  local laws = {}
  if not on.dispatch_times then return laws end
  local rows = schema.field(M.OWN, machine.load_table(on.dispatch_times, at), path
    .. ": dispatch_times", at)
  for _, row in ipairs(rows) do laws[row.dispatcher .. " " .. row.way] = row.law end
  return laws
end

-- Adds to `made`, the dispatcher of a plan on a GPU, what its times follow from: data of the GPU
-- and laws of its own machine, or that were fitted to rows of one like it.
local function with_times(made, gpu, on, path, at)
  local sizes, times_of, own = made.exchange, made.route.times_of, own_laws(on, path, at)
  made = schema.merged(M.GPUS[gpu], made)
  for way, key in pairs { dispatch = "law_there", combine = "law_back" } do
    -- The rows of eight nodes are those of one network, which reached a third of its NICs.
    local nodes = math.min(4, sizes.ranks / sizes.ranks_per_node)
    local one = law_for(times_of, { gpu = gpu, way = way }, nodes, false)
    made[key] = own[times_of .. " " .. way] or one and one.law
  end
  -- Of rows that go to all ranks, collectives are made, whose times are those of the links.
  if made.law_there or made.route.to_all then return made end
  errors.user(("%s: no times of '%s' were measured; leave it out (a plan's own exchange sends "
    .. "every choice), or name as times_of of its route a dispatcher that was measured"):format(
    path, times_of), at)
end

--- Returns the dispatcher of a candidate of system.expand() as plans take it. On ranks of the CPU
--- its times are those of the links that each hop crosses.
function M.of_plan(spec, candidate, at)
  local d, m, on = candidate.dispatcher, spec.model, spec.cluster
  local path = ("system '%s'.dispatcher"):format(candidate.name)
  local gpu = M.GPUS[on.name] and on.name or (on.device.op_times or ""):match "([^/]*)%.times$"
  -- `check` plans what ranks of the CPU will execute without their measured times.
  local simulated = spec.cost.kind == "roofline" and on.name ~= "cpu"
  if simulated and not M.GPUS[gpu] then
    errors.user(("%s: no times were measured on the cluster '%s'; give one of %s"):format(path,
      on.name, table.concat(schema.keys_of(M.GPUS), ", ")), at)
  elseif not simulated and on.name ~= "cpu" then
    errors.user(path .. ": is executed by the executor cpu alone; leave it out of systems for "
      .. on.name, at)
  end
  local ranks, tokens = m.ep or spec.ranks, m.batch_per_device * m.seq / (m.tp * m.cp)
  local sizes = { ranks = ranks, ranks_per_node = math.min(ranks, on.devices_per_node),
    experts = m.experts, topk = m.k, hidden = m.hidden, tokens = tokens,
    groups = m.router and m.router.groups, top_groups = m.router and m.router.top_groups }
  local route = dispatcher.route(d.name, sizes, schema.merged(d.options, { weights = true,
    combine_weights = false }), simulated and M.GPUS[gpu].sms or dispatcher.MOST_SMS, path, at)
  if (route.capacity or 0) > 0 then
    errors.user(path .. ".capacity: a plan sends the rows in use; give model.capacity_factor "
      .. "in its place", at)
  elseif (route.max_tokens or 0) > 0 and tokens > route.max_tokens then
    errors.user(("%s.max_tokens: %d is less than the %d tokens of a rank; give more, or fewer "
      .. "tokens"):format(path, route.max_tokens, tokens), at)
  end
  local made = { name = d.name, exchange = sizes, route = route,
    experts_per_rank = m.experts / ranks }
  return simulated and with_times(made, gpu, on, path, at) or made
end

-- Returns the measured time of a call of DeepEP's normal kernels with their counts, or nil.
local function table_time(c, name, options, nodes)
  local gpu, usual = M.GPUS[c.gpu], c.way == "dispatch" and "fp8" or "bf16"
  local limited = c.max_nodes and c.max_nodes < nodes
  if name ~= "deepep_v1" or gpu.table ~= c.ranks_per_node or options[c.way] ~= usual
      or (limited or false) ~= (nodes == 8) or limited and c.max_nodes ~= 4 then return nil end
  local on = cluster.constructors[c.gpu] { nodes = nodes }
  local time = op_time.op_time { cluster = on, op = c.way, nodes = nodes,
    sms = options.sms, tokens = c.tokens, hidden = c.hidden, topk = c.topk }
  return time.measured and not time.extrapolated and time or nil
end

--- moe.dispatch_time{...}: returns a record of the type "dispatch time".
M.dispatch_time = schema.taking(M.FIELDS, PATH, function(c, at)
  local name, options = dispatch.chosen(PATH, c, { sms = c.sms, [c.way == "dispatch" and "wire"
    or "combine"] = c.dtype }, at)
  local rows, call, route = M.load(c, name, options, PATH, at)
  local nodes, of = c.ranks / c.ranks_per_node, route.times_of
  local one, near = law_for(of, c, nodes, false)
  if not one or c.notify and nodes > 1 and one.counts == 0 then
    errors.user(("%s.%s: no times of '%s'%s were measured"):format(PATH, one and "notify"
      or "dispatcher", of, one and " with counts apart" or ""), at)
  end
  local counts = nodes > 1 and one.counts + one.slope * math.log(nodes) / math.log(2) or 0
  local kernel = core.dispatch_us(one.law, rows, call)
  local measured = table_time(c, of, { dispatch = options.wire, combine = options.combine,
    sms = options.sms }, nodes)
  if measured then
    -- The tables have the kernel and its counts together; of both the law has the kernel's share.
    local share = c.notify and 1 or kernel / (kernel + counts)
    return { us = 1e3 * measured.ms * share, lo = 1e3 * measured.lo * share,
      hi = 1e3 * measured.hi * share, source = "table", of = measured.source }
  end
  local us = kernel + (c.notify and counts or 0)
  local both, fits = law_for(of, c, nodes, c.notify and nodes > 1)
  if fits and c.notify then one, us = both, core.dispatch_us(both.law, rows, call) end
  -- Few rows say little of others: of these families the left-out half is up to 12% off.
  local band = (near and 1 or 2) * math.max(one.p90, one.rows < 30 and 0.12 or 0)
  return { us = us, lo = us / (1 + band), hi = us * (1 + band), source = "fitted",
    of = ("%s, %d rows"):format(one.gpu, one.rows) }
end)

return M
