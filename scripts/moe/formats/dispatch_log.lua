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

-- Reads a line of one of the forms; calls add(dispatcher, way, dtype, seen), with seen.us or
-- seen.gb_per_s, and of normal kernels seen.sms.
local function read_line(line, state, add)
  local what, rest = line:match "%[tuning%] Best ([^:]-):(.*)"
  if what then
    local way, dtype = what:match "^(%a+)", (what:match "%((%w+)%)" or "BF16"):lower()
    add("deepep_v1", way, dtype, { sms = rest:match "SMs (%d+)",
      us = rest:match "transmit: ([%d.]+) us",
      gb_per_s = rest:match "([%d.]+) GB/s %(RDMA%)" or rest:match "([%d.]+) GB/s" })
  end
  for name, time in line:gmatch "(%a[%a +]*) bandwidth:([^|]*)" do
    add("deepep_ll", name == "Dispatch + combine" and "both" or name:lower(), name == "Combine"
      and "bf16" or "fp8", { us = time:match "avg_t=([%d.]+) us" })
  end
  local fp8 = line:match "use_fp8_dispatch=(%d)"
  state.dtype = fp8 and (fp8 == "1" and "fp8" or "bf16") or state.dtype
  local of, time = line:match "EP:%s*%d+/%d+ | (%a+):(.*)"
  if of == "dispatch" or of == "combine" then
    add("deepep_v2", of, of == "dispatch" and state.dtype or "bf16",
      { us = time:match "([%d.]+) us, %d+ bytes" })
  end
end

-- What times of one call may differ by, of which each rank or node prints one.
local APART = 1.5
-- The option of a dispatcher that is the element type of a way.
local OPTION = { dispatch = "wire", combine = "combine" }

-- Returns the calls of a log as { dispatcher, way, dtype, sms, line, us = list, gb_per_s = list }.
local function calls_of(text, fail)
  local calls, known, state, number = {}, {}, { dtype = "bf16" }, 0
  for line in text:gmatch "([^\n]*)\n?" do
    number = number + 1
    read_line(line, state, function(name, way, dtype, seen)
      local key = ("%s %s %s %s"):format(name, way, dtype, seen.sms)
      local call = known[key] or { dispatcher = name, way = way, dtype = dtype, line = number,
        sms = tonumber(seen.sms), us = {}, gb_per_s = {} }
      local kind = seen.us and "us" or "gb_per_s"
      local value = tonumber(seen[kind])
      if not value or value <= 0 or name == "deepep_v1" and not (call.sms and OPTION[way]) then
        fail(("line %d has no time of its call; is it whole? '%s'"):format(number, line:sub(1, 80)))
      end
      local first = call[kind][1] or value
      if math.max(value / first, first / value) > APART then
        fail(("line %d has %g and line %d %g of the same call, so they are of several runs; give "
          .. "a log of one"):format(number, value, call.line, first))
      end
      if not known[key] then known[key], calls[#calls + 1] = call, call end
      table.insert(call[kind], value)
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
    [OPTION[way]] = call.way == "both" and way == "combine" and "bf16" or call.dtype }, at)
  local rows, args = dispatch_time.load(t, call.dispatcher, options, PATH, at)
  return rows, args, dispatch_time.law_of(call.dispatcher, t, PATH, at)
end

local function scaled(law, factor)
  local made = schema.merged(law, { sm_bytes_per_s = law.sm_bytes_per_s * factor })
  for _, name in ipairs { "nic_efficiency", "nvlink_efficiency" } do
    made[name] = math.max(1e-3, math.min(1, law[name] * factor))
  end
  return made
end

-- Returns the time of the parts { rows, args, law } with rates times a factor.
local function time_of(parts, factor)
  local sum = 0
  for _, p in ipairs(parts) do sum = sum + core.dispatch_us(scaled(p[3], factor), p[1], p[2]) end
  return sum
end

-- Returns the factor with which the parts take `us`, or the nearest.
local function factor_for(parts, us)
  local lo, hi = 1e-3, 1e3
  for _ = 1, 60 do
    local middle = math.sqrt(lo * hi)
    if time_of(parts, middle) > us then lo = middle else hi = middle end
  end
  return math.sqrt(lo * hi)
end

-- Returns the measured time of a call: that in the log, or by the bandwidth of logical bytes.
local function measured(call, part)
  if #call.us > 0 then return paired.median(call.us) end
  local bytes = part[2][1] * part[2][2] * part[1][5]
  return bytes / paired.median(call.gb_per_s) / 1e3
end

--- moe.dispatch_log{...}: returns a list of laws and writes them as a machine file.
function M.dispatch_log(t)
  local at = errors.here()
  local c = schema.check(M.FIELDS, t, PATH, at)
  local laws, factors = {}, {}
  local function fail(text) errors.user(PATH .. ".log: " .. text, at) end
  for _, call in ipairs(calls_of(errors.call(at, core.read_file, c.log), fail)) do
    local ways, parts = call.way == "both" and { "dispatch", "combine" } or { call.way }, {}
    for i, way in ipairs(ways) do parts[i] = { start_of(c, call, way, at) } end
    local us = measured(call, parts[1])
    local factor = factor_for(parts, us)
    if math.abs(time_of(parts, factor) / us - 1) > 0.01 then
      fail(("line %d: no rates of links and SMs give %.1f us (the law from %.1f on) for ranks = %d "
        .. "and tokens = %d; give the sizes of the test: ranks, tokens, topk, experts, hidden")
        :format(call.line, us, time_of(parts, 1e3), c.ranks, parts[1][2][1]))
    end
    for i, way in ipairs(ways) do
      local key = call.dispatcher .. " " .. way
      factors[key] = factors[key] or { name = call.dispatcher, way = way, law = parts[i][3] }
      table.insert(factors[key], { factor, us, parts })
    end
  end
  for _, key in ipairs(schema.keys_of(factors)) do
    local of, sum, worst = factors[key], 0, 0
    for _, f in ipairs(of) do sum = sum + math.log(f[1]) / #of end
    for _, f in ipairs(of) do
      worst = math.max(worst, math.abs(time_of(f[3], math.exp(sum)) / f[2] - 1))
    end
    laws[#laws + 1] = { dispatcher = of.name, way = of.way, factor = math.exp(sum),
      residual = worst, rows = #of, nodes = c.ranks / c.ranks_per_node,
      law = scaled(of.law, math.exp(sum)) }
  end
  if #laws == 0 then
    fail "has no line of DeepEP's tests, such as '[tuning] Best dispatch (FP8): SMs 24, ...'"
  end
  core.write_output(c.to, ("-- Laws of dispatchers, from %s: for the field dispatch_times of "
    .. "clusters.\nreturn %s\n"):format(c.log, lua_text.text(laws, "")))
  return laws
end

return M
