-- moe.dispatch_log{...}: the laws of dispatchers on the user's own machine, from a log that tests
-- of DeepEP printed there (test_internode.py and test_intranode.py in both forms,
-- test_low_latency.py, V2's test_ep.py). They are those of gpus/dispatch.lua with the rates of
-- links and SMs scaled by one factor per dispatcher and way, so that the law gives the time in the
-- log; what is left, where a log has several rows of a way, is written beside them.
local core = require "moe.core"
local dispatch = require "moe.spec.dispatch"
local dispatch_time = require "moe.spec.dispatch_time"
local errors = require "moe.base.errors"
local lua_text = require "moe.base.lua_text"
local paired = require "moe.results.paired"
local schema = require "moe.base.schema"

local M = {}

local PATH = "moe.dispatch_log"
-- What the tests take unless the user changed it: tokens, and whether a token reaches few nodes.
local TOKENS = { deepep_v1 = 4096, deepep_ll = 128, deepep_v2 = 8192 }

M.FIELDS = schema.merged(schema.picked(dispatch_time.FIELDS, { "ranks", "ranks_per_node",
  "max_nodes", "gpu" }), {
  log = { type = "string", required = true, doc = "the log, a file in the recipe's folder" },
  experts = { type = "integer", lo = 1, hi = 1e6, default = 256, doc = "--num-experts" },
  topk = { type = "integer", lo = 1, hi = 1024, default = 8, doc = "--num-topk" },
  hidden = { type = "integer", lo = 1, hi = 1e7, default = 7168, doc = "--hidden" },
  tokens = { type = "integer", lo = 1, hi = 1e9, doc = "--num-tokens; default: 4096 of normal "
    .. "kernels, 128 of low-latency ones, 8192 of V2" },
  to = { type = "string", default = "dispatch.lua", doc = "the machine file in the output folder, "
    .. "for the field dispatch_times of clusters" },
})

-- Reads a line of one of the forms; calls add(dispatcher, way, dtype, { sms, us, gb_per_s }).
local function read_line(line, state, add)
  local what, sms, rest = line:match "%[tuning%] Best ([^:]-): SMs (%d+)(.*)"
  if what then
    local way, dtype = what:match "^(%a+)", (what:match "%((%w+)%)" or "BF16"):lower()
    add("deepep_v1", way, dtype, { sms = tonumber(sms),
      us = tonumber(rest:match "transmit: ([%d.]+) us"),
      gb_per_s = tonumber(rest:match "([%d.]+) GB/s %(RDMA%)" or rest:match "([%d.]+) GB/s") })
  end
  for name, us in line:gmatch "(%a[%a +]*) bandwidth: [%d.]+ GB/s, avg_t=([%d.]+) us" do
    add("deepep_ll", name == "Dispatch + combine" and "both" or name:lower(), name == "Combine"
      and "bf16" or "fp8", { us = tonumber(us) })
  end
  local fp8 = line:match "use_fp8_dispatch=(%d)"
  state.dtype = fp8 and (fp8 == "1" and "fp8" or "bf16") or state.dtype
  local of, us = line:match "EP:%s*%d+/%d+ | (%a+): .-([%d.]+) us, %d+ bytes"
  if of == "dispatch" or of == "combine" then
    add("deepep_v2", of, of == "dispatch" and state.dtype or "bf16", { us = tonumber(us) })
  end
end

-- Returns the calls of a log as { dispatcher, way, dtype, sms, us = list, gb_per_s = list }.
local function calls_of(text)
  local calls, known, state = {}, {}, { dtype = "bf16" }
  for line in text:gmatch "[^\r\n]+" do
    read_line(line, state, function(name, way, dtype, seen)
      local key = ("%s %s %s %s"):format(name, way, dtype, seen.sms)
      local call = known[key]
      if not call then
        call = { dispatcher = name, way = way, dtype = dtype, sms = seen.sms, us = {}, rates = {} }
        known[key], calls[#calls + 1] = call, call
      end
      call.us[#call.us + 1] = seen.us
      call.rates[#call.rates + 1] = seen.gb_per_s
    end)
  end
  return calls
end

-- Returns rows and call of a way, as core.dispatch_us takes them, and the law to begin with.
local function start_of(c, call, way, at)
  local t = schema.merged(schema.picked(c, { "gpu", "ranks", "ranks_per_node", "experts", "topk",
    "hidden" }), { dispatcher = call.dispatcher, way = way, max_nodes = c.max_nodes,
    tokens = c.tokens or TOKENS[call.dispatcher] })
  local _, options = dispatch.chosen(PATH, t, { sms = call.sms,
    [way == "dispatch" and "wire" or "combine"] = call.dtype }, at)
  local rows, args = dispatch_time.load(t, call.dispatcher, options, at)
  return rows, args, dispatch_time.law_of(call.dispatcher, t, PATH, at)
end

local function scaled(law, factor)
  local made = schema.merged(law, { sm_bytes_per_s = law.sm_bytes_per_s * factor })
  for _, name in ipairs { "nic_efficiency", "nvlink_efficiency" } do
    made[name] = math.max(1e-3, math.min(1, law[name] * factor))
  end
  return made
end

-- Returns the factor with which the sum over `parts`, { rows, args, law }, takes `us`.
local function factor_for(parts, us)
  local lo, hi = 1e-3, 1e3
  for _ = 1, 60 do
    local middle, sum = math.sqrt(lo * hi), 0
    for _, p in ipairs(parts) do sum = sum + core.dispatch_us(scaled(p[3], middle), p[1], p[2]) end
    if sum > us then lo = middle else hi = middle end
  end
  return math.sqrt(lo * hi)
end

-- Returns the measured time of a call: that in the log, or by the bandwidth of logical bytes.
local function measured(call, part)
  if #call.us > 0 then return paired.median(call.us) end
  local bytes = part[2][1] * part[2][2] * part[1][5]
  return bytes / paired.median(call.rates) / 1e3
end

--- moe.dispatch_log{...}: returns a list of laws and writes them as a machine file.
function M.dispatch_log(t)
  local at = errors.here()
  local c = schema.check(M.FIELDS, t, PATH, at)
  local laws, factors = {}, {}
  for _, call in ipairs(calls_of(errors.call(at, core.read_file, c.log))) do
    local ways, parts = call.way == "both" and { "dispatch", "combine" } or { call.way }, {}
    for i, way in ipairs(ways) do parts[i] = { start_of(c, call, way, at) } end
    local us = measured(call, parts[1])
    for i, way in ipairs(ways) do
      local key = call.dispatcher .. " " .. way
      factors[key] = factors[key] or { name = call.dispatcher, way = way, law = parts[i][3] }
      table.insert(factors[key], { factor_for(parts, us), us, parts })
    end
  end
  for _, key in ipairs(schema.keys_of(factors)) do
    local of, sum, worst = factors[key], 0, 0
    for _, f in ipairs(of) do sum = sum + math.log(f[1]) / #of end
    for _, f in ipairs(of) do
      local took = 0
      for _, p in ipairs(f[3]) do
        took = took + core.dispatch_us(scaled(p[3], math.exp(sum)), p[1], p[2])
      end
      worst = math.max(worst, math.abs(took / f[2] - 1))
    end
    laws[#laws + 1] = { dispatcher = of.name, way = of.way, factor = math.exp(sum),
      residual = worst, rows = #of, nodes = c.ranks / c.ranks_per_node,
      law = scaled(of.law, math.exp(sum)) }
  end
  if #laws == 0 then
    errors.user(PATH .. ".log: has no line of DeepEP's tests, such as '[tuning] Best dispatch "
      .. "(FP8): SMs 24, ...'", at)
  end
  core.write_output(c.to, ("-- Laws of dispatchers, from %s: for the field dispatch_times of "
    .. "clusters.\nreturn %s\n"):format(c.log, lua_text.text(laws, "")))
  return laws
end

return M
