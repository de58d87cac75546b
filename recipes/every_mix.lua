-- Which mixes of techniques can be planned? All 2,160 combinations of rows, cut, placement,
-- schedule of weight gradients, discipline and two-step exchange, on two nodes of A100, skewed
-- routing, no capacity. Prints how many are planned and the reasons for which others are refused.
-- Each list of passes is planned again in ORDERS random orders, which must give the same plan.
local moe = require "moe"
local pass = moe.pass

local ORDERS = 10
local NONE = {}
local axes = {
  { "rows", { { "padded", NONE }, { "irregular_a2a", { pass.irregular_a2a {} } },
    { "used_rows", { pass.irregular_a2a {}, pass.used_rows {} } } } },
  { "cut", { { "whole", NONE },
    { "capacity_pipeline", { pass.capacity_pipeline { degree = 2 } } },
    { "pipemoe", { pass.pipemoe { degrees = "2" } } },
    { "micro_ops", { pass.micro_ops { bytes = 2 ^ 20 } } },
    { "fastermoe_pipeline", { pass.fastermoe_pipeline {} } },
    { "partition", { pass.partition { parts = 2 } } } } },
  { "placement", { { "fixed_placement", NONE }, { "prophet", { pass.prophet {} } },
    { "fastermoe_shadowing", { pass.fastermoe_shadowing {} } },
    { "top_k", { pass.top_k { k = 2 } } },
    { "eplb", { pass.eplb {} } }, { "swap", { pass.swap {} } } } },
  { "weights", { { "in_order", NONE }, { "dw_schedule", { pass.dw_schedule {} } } } },
  { "discipline", { { "none", NONE }, { "priority", { pass.priority { hold = false } } },
    { "chunked", { pass.priority { hold = false }, pass.chunked { bytes = 2 ^ 20 } } },
    { "fixed", { pass.fixed {} } }, { "blocking_a2a", { pass.blocking_a2a {} } } } },
  { "steps", { { "one_step", NONE }, { "hierarchical_a2a", { pass.hierarchical_a2a {} } } } },
}

local cluster = moe.cluster.p4de { nodes = 2 }
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 256, heads = 4, seq = 256,
  batch_per_device = 4, experts_per_device = 1, gate = "switch", capacity = "none",
  routing = moe.workload "zipf" { s = 1.2 } }

local function system(name, passes)
  local t = { all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 2 ^ 20 } }
  for i, s in ipairs(passes) do t[i] = s end
  return moe.system(#passes > 0 and name or "lina_baseline")(t)
end
local function plan(name, passes)
  return pcall(moe.plan, { model = model, cluster = cluster, system = system(name, passes) })
end
--- A number from 1 to n: the next of a fixed sequence (Lehmer's generator with the factor of Park
--- and Miller, 1988), since recipes have no math.random.
local seed = 1
local function pick(n)
  seed = seed * 16807 % 2147483647
  return seed % n + 1
end
local function shuffled(list)
  local t = {}
  for i, v in ipairs(list) do t[i] = v end
  for i = #t, 2, -1 do
    local j = pick(i)
    t[i], t[j] = t[j], t[i]
  end
  return t
end
--- The reason without the names of ops; of a cycle of ops, the stages that made its order.
local function reason(text)
  text = tostring(text):gsub("^[^:]*:%d+: ", ""):gsub(" %(after stage.*", "")
    :gsub("'b%d[^']*'", "'...'")
  local stages = {}
  for stage in text:gmatch("order edge of stage '([%w_]+)'") do stages[stage] = true end
  if not next(stages) then return text end
  local names = {}
  for stage in pairs(stages) do names[#names + 1] = stage end
  table.sort(names)
  return "ops wait for each other by the order of " .. table.concat(names, " and ")
end

local planned, refused, reasons, orders = 0, 0, {}, 0
local function try(names, passes)
  local name = table.concat(names, "+")
  local ok, result = plan(name, passes)
  if not ok then
    refused = refused + 1
    local why = reason(result)
    reasons[why] = reasons[why] or { n = 0, first = name }
    reasons[why].n = reasons[why].n + 1
    return
  end
  planned = planned + 1
  for _ = 1, ORDERS do
    local good, again = plan(name, shuffled(passes))
    if not good or again:info().hash ~= result:info().hash then
      orders = orders + 1
      print("other order: " .. name .. ": " .. tostring(good and "another hash" or again))
    end
  end
end

local function each(i, names, passes)
  if i > #axes then return try(names, passes) end
  for _, choice in ipairs(axes[i][2]) do
    local named, more = { unpack(names) }, { unpack(passes) }
    named[i] = choice[1]
    for _, s in ipairs(choice[2]) do more[#more + 1] = s end
    each(i + 1, named, more)
  end
end
each(1, {}, {})

print(("%d of %d combinations planned, %d refused"):format(planned, planned + refused, refused))
local rows = {}
for why, r in pairs(reasons) do rows[#rows + 1] = { r.n, why, r.first } end
table.sort(rows, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] < b[2]) end)
for _, r in ipairs(rows) do print(("%6d  %s\n        first: %s"):format(r[1], r[2], r[3])) end
print(("%d orders gave another plan"):format(orders))
