-- moebench run tests/bench/dispatch_times.lua --trust [--set write=1]: how well moe.dispatch_time
-- holds on rows that its laws were not fitted to: half of each family of gpus/dispatch_rows.csv is
-- fitted, the other half predicted, in five random halves. With write=1: fits the laws to all rows
-- and writes gpus/dispatch.lua, with the residuals of each.
local core = require "moe.core"
local dispatch = require "moe.spec.dispatch"
local moe = require "moe"
local times = require "moe.spec.dispatch_time"

local FOLDER = core.scripts_dir .. "/moe/gpus/"
local NAMES = { "latency_us", "latency_us_per_log2_nodes", "expert_us", "nic_efficiency",
  "nvlink_efficiency", "sm_bytes_per_s", "sm_power", "row_us", "token_us", "token_rows",
  "sharpness" }
-- What a fit begins with, and how far a parameter usually is from it (of its logarithm); 0: fixed.
local NORMAL = { { 25, 5, 0.001, 0.88, 0.69, 20e9, 1, 0.02, 0.05, 1, 4 },
  { 0.7, 0.7, 0, 0.08, 0.08, 0.5, 0.15, 1.5, 1.5, 1, 0.5 } }
local LOW_LATENCY = { { 18, 5, 0.05, 0.8, 0.5, 2.6e12, 0, 0.01, 0, 0, 2 },
  { 0.7, 0.7, 1.5, 0.2, 0.3, 1, 0, 1.5, 0, 0, 0.5 } }
-- The network of the rows of eight nodes reached 0.36 of its NICs.
local CROWDED = { NORMAL[1], { 0.7, 0.7, 0, 1, 0.08, 0.5, 0.15, 1.5, 1.5, 1, 0.5 } }

-- more: ways of each set, if not one each; rows_of: nodes of its rows, if not `nodes`; like: the
-- GPU whose law for two to four nodes a fit begins with.
local BOTH = { "dispatch", "combine" }
local sets = {}
local function add(dispatch_name, gpu, nodes, priors, more)
  local each = more and more.ways or { { "dispatch" }, { "combine" } }
  for _, ways in ipairs(each) do
    sets[#sets + 1] = { dispatcher = dispatch_name, gpu = gpu, nodes = nodes, priors = priors,
      ways = table.concat(ways, " "), notify = more and more.notify or false,
      rows_of = more and more.rows_of, like = more and more.like }
  end
end
for _, gpu in ipairs { "h100", "h200", "b200", "b300", "gb200", "gb300" } do
  add("deepep_v1", gpu, { 1, 1 }, NORMAL)
  add("deepep_ll", gpu, { 1, 1 }, LOW_LATENCY)
end
add("deepep_v1", "h100", { 2, 4 }, NORMAL)
add("deepep_v1", "h100", { 8, 8 }, CROWDED)
add("deepep_v1", "h100", { 8, 8 }, CROWDED, { notify = true })
add("deepep_ll", "h100", { 2, 128 }, LOW_LATENCY, { rows_of = { 1, 128 } })
add("deepep_v1", "h800", { 1, 128 }, NORMAL, { like = "h100" })
add("deepep_ll", "h800", { 1, 128 }, LOW_LATENCY, { ways = { BOTH } })
add("deepep_v2", "h100", { 1, 128 }, NORMAL, { ways = { BOTH } })
add("hybridep", "h100", { 1, 128 }, NORMAL, { ways = { BOTH } })
add("hybridep", "gb200", { 1, 128 }, NORMAL, { ways = { BOTH } })

local function read_rows()
  local rows, head = {}, nil
  for line in io.lines(FOLDER .. "dispatch_rows.csv") do
    local fields = {}
    for text in (line .. ","):gmatch "([^,]*)," do fields[#fields + 1] = tonumber(text) or text end
    if line:sub(1, 1) ~= "#" and not head then
      head = fields
    elseif head then
      local row = { id = #rows + 1 }
      for i, name in ipairs(head) do row[name] = fields[i] ~= "" and fields[i] or nil end
      local name, options = dispatch.chosen("row", row, { [row.way == "dispatch" and "wire"
        or "combine"] = row.dtype })
      row.rows, row.call = times.load(row, name, options)
      rows[#rows + 1] = row
    end
  end
  return rows
end

-- Whether a row belongs to a set. Rows of one node of an older version go with those of several.
local function belongs(row, set)
  local nodes, old = row.ranks / row.ranks_per_node, row.source >= 20
  local range = set.rows_of or set.nodes
  return row.dispatcher == set.dispatcher and nodes >= range[1] and nodes <= range[2]
    and (row.gpu == set.gpu or set.dispatcher == "deepep_v2")
    and set.ways:find(row.way, 1, true) and (not set.notify or row.notify_us)
    and (set.dispatcher ~= "deepep_ll" or set.gpu ~= "h100" or old == (set.nodes[2] > 1))
end

local function measured(row, set) return row.us + (set.notify and row.notify_us or 0) end

-- The law of engine/dispatch/law.h, a list of the numbers of NAMES; checked against it below.
local function law_us(q, row)
  local r, c = row.rows, row.call
  local bytes = 1e6 * c[1] * c[2]
  local nic, nvlink = bytes * r[3] / (q[4] * c[6]), bytes * r[4] / (q[5] * c[7])
  local sm = (c[1] * (q[9] + r[1] * q[8]) + bytes * (r[2] + q[10]) / q[6])
    / math.max(1, c[5]) ^ q[7]
  local most = math.max(nic, nvlink, sm)
  local sum = (nic / most) ^ q[11] + (nvlink / most) ^ q[11] + (sm / most) ^ q[11]
  return q[1] + q[2] * math.log(c[4]) / math.log(2) + q[3] * c[3] + most * sum ^ (1 / q[11])
end

-- Fits a law: the least sum of the residuals of logarithms in units of 5%, squared where they are
-- small and linear where they are large, and of the squares of how far parameters are from their
-- start. Levenberg and Marquardt's method.
local function fit(rows, set)
  local start, spread, n = set.priors[1], set.priors[2], #NAMES
  local function law_at(z)
    local q = {}
    for i = 1, n do q[i] = start[i] * math.exp(z[i] * spread[i]) end
    q[4], q[5] = math.min(1, q[4]), math.min(1, q[5])
    return q
  end
  local function errors_at(z)
    local q, e = law_at(z), {}
    for i, row in ipairs(rows) do
      local r = math.log(law_us(q, row) / measured(row, set)) / 0.05
      e[i] = (r < 0 and -1 or 1) * math.sqrt(2 * (math.sqrt(1 + r * r) - 1))
    end
    for i = 1, n do e[#rows + i] = z[i] end
    return e
  end
  local function square(e)
    local sum = 0
    for i = 1, #e do sum = sum + e[i] ^ 2 end
    return sum
  end
  local z, damping = {}, 1e-3
  for i = 1, n do z[i] = 0 end
  local e = errors_at(z)
  for _ = 1, 200 do
    local slopes = {}
    for j = 1, n do
      local before = z[j]
      z[j] = before + 1e-5
      slopes[j] = errors_at(z)
      z[j] = before
      for i = 1, #e do slopes[j][i] = (slopes[j][i] - e[i]) / 1e-5 end
    end
    local better = false
    while not better and damping < 1e8 do
      local a = {}  -- normal equations with their right side, solved by elimination
      for j = 1, n do
        a[j] = {}
        for k = 1, n do
          local sum = 0
          for i = 1, #e do sum = sum + slopes[j][i] * slopes[k][i] end
          a[j][k] = sum * (j == k and 1 + damping or 1)
        end
        local sum = 0
        for i = 1, #e do sum = sum - slopes[j][i] * e[i] end
        a[j][n + 1] = sum
      end
      for j = 1, n do
        for k = j + 1, n do
          local f = a[k][j] / a[j][j]
          for m = j, n + 1 do a[k][m] = a[k][m] - f * a[j][m] end
        end
      end
      local moved = {}
      for j = n, 1, -1 do
        local sum = a[j][n + 1]
        for k = j + 1, n do sum = sum - a[j][k] * (moved[k] - z[k]) end
        moved[j] = z[j] + sum / a[j][j]
      end
      local next_e = errors_at(moved)
      better = square(next_e) < square(e) * (1 - 1e-7)
      if better then z, e, damping = moved, next_e, damping / 16 else damping = damping * 4 end
    end
    if not better then break end
  end
  return law_at(z)
end

local function law_of(q)
  local law = {}
  for i, name in ipairs(NAMES) do law[name] = tonumber(("%.4g"):format(q[i])) end
  return law
end

local function quantile(list, q)
  table.sort(list)
  return list[math.max(1, math.floor(q * (#list - 1) + 1.5))]
end

-- Returns the median time of the exchange of counts, and its growth per doubling of the nodes.
local function counts_of(own, nodes)
  local at = { {}, {} }
  for _, row in ipairs(own) do
    for i, n in ipairs(nodes) do
      if row.notify_us and row.ranks == n * row.ranks_per_node then
        at[i][#at[i] + 1] = row.notify_us
      end
    end
  end
  if #at[1] == 0 or #at[2] == 0 then return 0, 0 end
  local low, high = quantile(at[1], 0.5), quantile(at[2], 0.5)
  local doublings = math.log(nodes[2] / nodes[1]) / math.log(2)
  local slope = doublings > 0 and (high - low) / doublings or 0
  return low - slope * math.log(nodes[1]) / math.log(2), slope
end

-- Returns the laws fitted to the rows, as gpus/dispatch.lua has them.
local function laws_of(rows)
  local laws = {}
  for _, set in ipairs(sets) do
    local own, off = {}, {}
    for _, row in ipairs(rows) do if belongs(row, set) then own[#own + 1] = row end end
    if #own > 0 then
      for _, one in ipairs(laws) do
        if set.like == one.gpu and one.dispatcher == set.dispatcher and one.nodes[2] == 4
            and one.ways == set.ways and not one.notify then
          local start = {}
          for i, name in ipairs(NAMES) do start[i] = one.law[name] end
          set.priors = { start, set.priors[2] }
        end
      end
      local q = fit(own, set)
      local law = law_of(q)
      for i, row in ipairs(own) do
        local us = core.dispatch_us(law, row.rows, row.call)
        assert(math.abs(us / law_us(q, row) - 1) < 0.01, "the two laws differ")
        off[i] = math.abs(us / measured(row, set) - 1)
      end
      local counts, slope = counts_of(own, set.nodes)
      laws[#laws + 1] = { counts = counts, slope = slope, dispatcher = set.dispatcher,
        gpu = set.gpu, ways = set.ways, nodes = set.nodes, notify = set.notify, rows = #own,
        median = quantile(off, 0.5), p90 = quantile(off, 0.9), p95 = quantile(off, 0.95),
        law = law }
    end
  end
  return laws
end

local function write(laws)
  local file = assert(io.open(FOLDER .. "dispatch.lua", "w"))
  file:write [[
-- Parameters of the law of engine/dispatch/law.h, fitted to dispatch_rows.csv by
-- tests/bench/dispatch_times.lua. Each entry: dispatcher, GPU, ways, least and most nodes, whether
-- the exchange of counts is included; rows; median, 90th and 95th percentile of the error over
-- these rows; us of the exchange of counts alone, and by how much it grows per doubling of the
-- nodes; and the numbers of the law in the order of NAMES.
local NAMES = {]]
  for i, name in ipairs(NAMES) do
    file:write(i % 4 == 1 and "\n  " or " ", ('"%s",'):format(name))
  end
  file:write " }\n\nreturn { names = NAMES,\n"
  for _, one in ipairs(laws) do
    file:write(('  { "%s", "%s", "%s", %d, %d, %s, %d, %.3f, %.3f, %.3f, %.4g, %.4g,\n    {')
      :format(one.dispatcher, one.gpu, one.ways, one.nodes[1], one.nodes[2], tostring(one.notify),
        one.rows, one.median, one.p90, one.p95, one.counts, one.slope))
    for i, name in ipairs(NAMES) do
      file:write(i > 1 and ", " or " ", (("%.4g"):format(one.law[name]):gsub("e%+", "e")))
    end
    file:write " } },\n"
  end
  file:write "}\n"
  file:close()
end

local function of_h800(row) return row.gpu == "h800" end
-- Families: name, whether a row belongs, and the goals in %; notify: with the exchange of counts.
local FAMILIES = {
  { "V1, H800, published", function(r) return of_h800(r) and r.dispatcher == "deepep_v1" end,
    6, 12 },
  { "V2, published", function(r) return r.dispatcher == "deepep_v2" end, 6, 12 },
  { "HybridEP, H100", function(r) return r.dispatcher == "hybridep" and r.gpu == "h100" end,
    6, 25 },
  { "HybridEP, GB200", function(r) return r.dispatcher == "hybridep" and r.gpu == "gb200" end },
}
for _, way in ipairs(BOTH) do
  FAMILIES[#FAMILIES + 1] = { "normal, one node, 1,024 tokens on, " .. way, function(r)
    return r.dispatcher == "deepep_v1" and r.ranks == r.ranks_per_node and not of_h800(r)
      and r.way == way and r.tokens >= 1024
  end, way == "dispatch" and 5 or 7, way == "dispatch" and 13 or 18 }
end
for _, nodes in ipairs { 2, 4, 8 } do
  FAMILIES[#FAMILIES + 1] = { ("normal, %d nodes%s"):format(nodes, nodes == 8 and ", with counts"
    or ""), function(r)
    return r.dispatcher == "deepep_v1" and r.ranks == nodes * r.ranks_per_node and not of_h800(r)
  end, nodes == 8 and 5 or 9, nodes == 8 and 17 or 22, notify = nodes == 8 }
end
FAMILIES[#FAMILIES + 1] = { "low latency, 128 experts on", function(r)
  return r.dispatcher == "deepep_ll" and r.experts >= 128
end, 6, 20 }

local function predict(row, notify)
  return moe.dispatch_time { dispatcher = row.dispatcher, gpu = row.gpu, ranks = row.ranks,
    ranks_per_node = row.ranks_per_node, experts = row.experts, topk = row.topk,
    hidden = row.hidden, tokens = row.tokens, dtype = row.dtype, way = row.way, sms = row.sms,
    max_nodes = row.max_nodes, notify = notify }
end

local rows = read_rows()
if core.args.set.write then
  write(laws_of(rows))
else
  local found = {}
  for half = 1, 5 do
    local fitted, left, seen, state, order = {}, {}, {}, half, {}
    for i, row in ipairs(rows) do
      state = (state * 48271) % 2147483647
      order[i] = { state, row }
    end
    table.sort(order, function(x, y) return x[1] < y[1] end)
    for _, one in ipairs(order) do  -- half of each source
      local source = one[2].dispatcher .. one[2].gpu .. (one[2].source >= 8 and one[2].source or "")
      seen[source] = (seen[source] or 0) + 1
      local to = seen[source] % 2 == 1 and fitted or left
      to[#to + 1] = one[2]
    end
    times.laws = laws_of(fitted)
    for f, family in ipairs(FAMILIES) do
      found[f] = found[f] or { all = {}, law = {} }
      for _, row in ipairs(left) do
        if family[2](row) then
          local us = row.us + (family.notify and row.notify_us or 0)
          local list = found[f]
          local time = predict(row, family.notify)
          list.all[#list.all + 1] = math.abs(time.us / us - 1)
          if time.source == "fitted" then list.law[#list.law + 1] = math.abs(time.us / us - 1) end
        end
      end
    end
  end
  local shown = { { "family", "rows", "median %", "p95 %", "goal", "by the law", "median %",
    "p95 %" } }
  local function percent(list, q)
    return #list > 0 and ("%.1f"):format(100 * quantile(list, q)) or ""
  end
  for f, family in ipairs(FAMILIES) do
    local all, law = found[f].all, found[f].law
    shown[#shown + 1] = { family[1], #all, percent(all, 0.5), percent(all, 0.95),
      family[3] and ("%d, %d"):format(family[3], family[4]) or "", #law, percent(law, 0.5),
      percent(law, 0.95) }
  end
  print(moe.table(shown))
end
os.exit(0)
