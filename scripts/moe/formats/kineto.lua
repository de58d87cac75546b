-- Profiles of PyTorch (Kineto: Chrome's trace format): what ran on the lanes of a GPU.
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"

local M = {}

-- { part of a kernel's name (a pattern of Lua, in lower case), kind }; the first that fits counts.
local RULES = core.library_json "formats/kineto_rules.json"
local COMMUNICATION = { all_reduce = true, all_gather = true, reduce_scatter = true,
  all_to_all = true, collective = true, dispatch = true, combine = true }
local ON_GPU = { kernel = true, gpu_memcpy = true, gpu_memset = true }

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

-- Returns what ran on the GPU: { name, kind, lane, begin, end }, in microseconds.
local function kernels_of(events, rules, path)
  local out = {}
  for i, e in ipairs(events) do
    if type(e) == "table" and e.ph == "X" and ON_GPU[e.cat] then
      if type(e.ts) ~= "number" or type(e.dur) ~= "number" or type(e.name) ~= "string" then
        files.fail(path, "event %d has no name, ts and dur", i)
      end
      out[#out + 1] = { name = e.name, kind = kind_of(e.name, rules), lane = tostring(e.tid),
        e.ts, e.ts + e.dur }
    end
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

--- Returns what a profile says: { ms = from the first kernel's begin to the last one's end,
--- compute_ms, comm_ms = when some kernel of a lane of compute, or of communication, runs,
--- hidden_ms, exposed_ms = of comm_ms beside compute and not, idle_ms = when nothing runs, kinds =
--- kind -> { ms, count }, lanes = lane -> { ms, count, communication }, others = name -> { ms,
--- count } of kernels without a kind }. rules: as those here, tried before them. Raises a user
--- error for a file that is no profile, and if no collective or no GEMM is recognised.
function M.read(path, rules)
  local text = errors.call(nil, core.read_file, path)
  if text:sub(1, 2) == "\31\139" then
    files.fail(path, "it is compressed; unpack it first (gunzip)")
  end
  local events = errors.call(nil, core.json_decode, text, path)
  events = type(events) == "table" and events.traceEvents or events
  local kernels = kernels_of(type(events) == "table" and events or {}, rules, path)
  if #kernels == 0 then files.fail(path, "it has no kernels of a GPU, as PyTorch's has") end
  local out = {}
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
  return out
end

return M
