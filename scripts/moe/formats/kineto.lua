-- Profiles of PyTorch (Kineto: Chrome's trace format): what ran on the lanes of a GPU.
local choices = require "moe.formats.choices"
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"
local paired = require "moe.results.paired"
local schema = require "moe.base.schema"

local M = {}

-- { part of a kernel's name (a pattern of Lua, in lower case), kind }; the first that fits counts.
local RULES = core.library_json "formats/kineto_rules.json"
local COMMUNICATION = { all_reduce = true, all_gather = true, reduce_scatter = true,
  all_to_all = true, collective = true, dispatch = true, combine = true }
local ON_GPU = { kernel = true, gpu_memcpy = true, gpu_memset = true }
local BYTES = { Byte = 1, Float8_e4m3fn = 1, Half = 2, BFloat16 = 2, Float = 4, Int = 4, Long = 8 }

-- Returns the intervals that a list of { begin, end } covers, ascending, and their length.
local function union(list)
  table.sort(list, function(a, b) return a[1] < b[1] end)
  local out, length = {}, 0
  for _, one in ipairs(list) do
    local last = out[#out]
    if last and one[1] <= last[2] then
      last[2] = math.max(last[2], one[2])
    else
      out[#out + 1] = { one[1], one[2] }
    end
  end
  for _, one in ipairs(out) do length = length + one[2] - one[1] end
  return out, length
end

local function kind_of(name, rules)
  for _, list in ipairs { rules, RULES } do
    for _, rule in ipairs(list) do
      if name:lower():find(rule[1]) then return rule[2] end
    end
  end
  return "other"
end

-- Returns what ran on the GPU: { name, kind, lane, args, begin, end }, in microseconds; when each
-- kernel was launched, by correlation; and the steps of torch.profiler.
local function kernels_of(events, rules, path)
  local out, launches, steps, device = {}, {}, {}, nil
  for i, e in ipairs(events) do
    e = type(e) == "table" and e or {}
    local args = type(e.args) == "table" and e.args or {}
    if e.ph == "X" and ON_GPU[e.cat] then
      if type(e.ts) ~= "number" or type(e.dur) ~= "number" or type(e.name) ~= "string"
          or not (e.dur >= 0 and e.ts + e.dur < math.huge) then
        files.fail(path, "event %d has no name, ts and dur from 0", i)
      elseif (device or args.device) ~= (args.device or device) then
        files.fail(path, "event %d ran on device %s, others on %s; give the profile of one GPU", i,
          files.shown(args.device), files.shown(device))
      end
      device = device or args.device
      out[#out + 1] = { name = e.name, kind = kind_of(e.name, rules), lane = tostring(e.tid),
        args = args, e.ts, e.ts + e.dur }
    elseif tostring(e.cat):find "^cuda_" and args.correlation and type(e.ts) == "number" then
      launches[args.correlation] = e.ts
    elseif e.cat == "user_annotation" and tostring(e.name):find "^ProfilerStep#"
        and type(e.dur) == "number" then
      steps[#steps + 1] = { step = tonumber(e.name:match "%d+"), ms = e.dur / 1000 }
    end
  end
  return out, launches, steps
end

-- Returns the time in which nothing runs by its cause: host, before the next kernel was launched;
-- launched, after that; unknown, where its launch is not there. busy: the union of kernels.
local function idle_of(busy, kernels, launches)
  local first, idle = {}, { host = 0, launched = 0, unknown = 0 }
  for _, k in ipairs(kernels) do first[k[1]] = launches[k.args.correlation] end
  for i = 2, #busy do
    local from, to = busy[i - 1][2], busy[i][1]
    local launch = first[to]
    local late = launch and math.min(math.max(launch, from), to) - from or 0
    local rest = launch and "launched" or "unknown"
    idle.host, idle[rest] = idle.host + late / 1000, idle[rest] + (to - from - late) / 1000
  end
  return idle
end

-- Returns by kind { ranks, rows = { { bytes, us } .. } } of the all-reduces and all-to-alls of the
-- largest group: what a rank sends and the median time of the kernels, which wait for other ranks.
local function tables_of(kernels)
  local out = {}
  for _, kind in ipairs { "all_reduce", "all_to_all" } do
    local most, us, rows = 1, {}, {}
    for _, k in ipairs(kernels) do
      local ranks = tonumber(k.args["Group size"]) or 0
      local bytes = (tonumber(k.args["In msg nelems"]) or 0) * (BYTES[k.args.dtype or ""] or 0)
      if k.kind == kind and bytes > 0 and ranks >= most then
        if ranks > most then most, us = ranks, {} end
        table.insert(files.at(us, bytes), k[2] - k[1])
      end
    end
    for i, bytes in ipairs(choices.keys(us)) do rows[i] = { bytes, (paired.median(us[bytes])) } end
    if rows[1] then out[kind] = { ranks = most, rows = rows } end
  end
  return out
end

-- Adds up the time of each kind and lane; a lane is one of communication if most of its time is.
local function add_up(kernels)
  local kinds, lanes, others = {}, {}, {}
  for _, k in ipairs(kernels) do
    local ms = (k[2] - k[1]) / 1000
    for list, key in pairs { [kinds] = k.kind, [lanes] = k.lane,
        [others] = k.kind == "other" and k.name or nil } do
      list[key] = list[key] or { ms = 0, count = 0, comm_ms = 0 }
      list[key].ms, list[key].count = list[key].ms + ms, list[key].count + 1
      if COMMUNICATION[k.kind] then list[key].comm_ms = list[key].comm_ms + ms end
    end
  end
  for _, lane in pairs(lanes) do lane.communication = lane.comm_ms > lane.ms / 2 end
  return kinds, lanes, others
end

--- Returns what a profile says, the record "profile" below. rules: as those here, tried before
--- them. Raises a user error for a file that is no profile of one GPU, and if no collective or no
--- GEMM is recognised.
function M.read(path, rules)
  local text = errors.call(nil, core.read_file, path)
  if text:sub(1, 2) == "\31\139" then
    files.fail(path, "it is compressed; unpack it first (gunzip)")
  end
  local events = errors.call(nil, core.json_decode, text, path)
  events = type(events) == "table" and events.traceEvents or events
  local kernels, launches, steps = kernels_of(type(events) == "table" and events or {}, rules, path)
  if #kernels == 0 then files.fail(path, "it has no kernels of a GPU, as PyTorch's has") end
  local out = { steps = steps, collectives = tables_of(kernels) }
  out.kinds, out.lanes, out.others = add_up(kernels)
  local compute, comm, all, found = {}, {}, {}, { gemm = out.kinds.gemm ~= nil }
  for _, k in ipairs(kernels) do
    local is = COMMUNICATION[k.kind] or out.lanes[k.lane].communication
    found.communication = found.communication or is
    table.insert(is and comm or compute, { k[1], k[2] })
    all[#all + 1] = { k[1], k[2] }
  end
  if not (found.gemm and found.communication) then
    local names = {}
    for name in pairs(out.others) do names[#names + 1] = name:sub(1, 60) end
    files.fail(path, "no %s is recognised; give rules = { { 'part of a name', '%s' } }; without a "
      .. "kind are: %s", found.gemm and "collective" or "GEMM",
      found.gemm and "all_reduce" or "gemm", table.concat(names, "; ", 1, math.min(#names, 8)))
  end
  local busy, whole = union(all)
  out.ms = (busy[#busy][2] - busy[1][1]) / 1000
  out.compute_ms, out.comm_ms = select(2, union(compute)) / 1000, select(2, union(comm)) / 1000
  out.hidden_ms = out.compute_ms + out.comm_ms - whole / 1000
  out.exposed_ms, out.idle_ms = out.comm_ms - out.hidden_ms, out.ms - whole / 1000
  out.idle, out.no_idle_ms = idle_of(busy, kernels, launches), whole / 1000
  out.all_hidden_ms = out.ms - out.exposed_ms
  return out
end

-- Kinds of a plan's ops as those of kernels, as RULES are.
local OF_PLAN = { { "linear", "gemm" }, { "attend", "attention" }, { "gate", "router" },
  { "all_to_all", "all_to_all" }, { "sgd", "optimizer" } }

-- Returns the time of each kind in a profile and on a rank of a plan, what differs most first.
local function beside(kinds, plan)
  local by_kind, out = {}, {}
  local function at(kind)
    if not by_kind[kind] then
      by_kind[kind] = { kind = kind, ms = 0, plan_ms = 0 }
      table.insert(out, by_kind[kind])
    end
    return by_kind[kind]
  end
  for kind, sum in pairs(kinds) do at(kind).ms = sum.ms end
  for _, span in ipairs(plan:spans()) do
    local one = at(kind_of(span.kind, OF_PLAN))
    one.plan_ms = one.plan_ms + span.end_ms - span.begin_ms
  end
  table.sort(out, function(a, b)
    local da, db = math.abs(a.ms - a.plan_ms), math.abs(b.ms - b.plan_ms)
    return da > db or da == db and a.kind < b.kind
  end)
  return out
end

M.PROFILE = { plan = { type = "table", doc = "a plan, beside which the step is laid" },
  rules = { type = "list", of = { type = "list", of = { type = "string" } }, default = {},
    doc = "{ { part of a kernel's name, kind }, .. }, before the library's" } }

-- moe.profile(file, { rules =, plan = }): what ran on a GPU.
function M.profile(file, how)
  local at = errors.here()
  schema.field({ type = "string", required = true }, file, "moe.profile", at)
  local c = schema.check(M.PROFILE, how or {}, "moe.profile", at)
  local out = M.read(file, c.rules)
  if c.plan and not c.plan.spans then
    schema.refuse("moe.profile.plan", c.plan, "a plan, from moe.plan", at)
  end
  out.beside = c.plan and beside(out.kinds, c.plan)
  return out
end

local SUMS = "table<string, { ms: number, count: integer }>"
schema.record("profile", "p", "what ran on a GPU, from a profile of PyTorch", {
  { "ms", "number", "from the first kernel's begin to the last one's end" },
  { "compute_ms", "number", "time in which a kernel of compute runs" },
  { "comm_ms", "number", "time in which communication runs" },
  { "hidden_ms", "number", "of comm_ms, beside compute" },
  { "exposed_ms", "number", "of comm_ms, beside no compute" },
  { "idle_ms", "number", "time in which nothing runs" },
  { "idle", "{ host: number, launched: number, unknown: number }", "of idle_ms, in ms: before the "
    .. "next kernel was launched, after that, and where its launch is not there" },
  { "no_idle_ms", "number", "ms without idle_ms" },
  { "all_hidden_ms", "number", "ms without exposed_ms" },
  { "steps", "{ step: integer, ms: number }[]", "those of torch.profiler, on the host" },
  { "collectives", "table<string, { ranks: integer, rows: number[][] }>", "bytes and us of the "
    .. "largest group, for `collectives` of a cluster; kernels wait for other ranks, too" },
  { "kinds", SUMS, "by kind of kernel" }, { "lanes", SUMS, "by stream" },
  { "others", SUMS, "by name, of kernels without a kind" },
  { "beside", "{ kind: string, ms: number, plan_ms: number }[]?", "by kind, times of kernels and "
    .. "of ops on a rank of the plan, what differs most first" },
})

return M
