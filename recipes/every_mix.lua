-- Which mixes of techniques can be planned? All 2,160 combinations of rows, cut, placement,
-- schedule of weight gradients, discipline and two-step exchange, on two nodes of A100, skewed
-- routing, no capacity. Prints how many are planned and the reasons for which others are refused.
-- Each list of passes is planned again in ORDERS random orders, which must give the same plan.
-- With --set draws=300 so many of them, drawn at random, are planned on pipeline ranks instead, and
-- --set executed=60 trains so many of these in float64 and compares them with the plain program on
-- one pipeline rank. With --set dispatched=40 so many drawn ones are trained for three steps on
-- four ranks, two per emulated node, under every dispatcher, and compared with alltoallv: with rows
-- in the run's own numbers, and in those of each dispatcher on the wire (fp8, bf16). With
-- --set pipelines=20 so many drawn pipelines of two such groups of ranks are, too.
local moe = require "moe"
local pass = moe.pass

local ORDERS = 10
local set = moe.options { draws = 0, executed = 0, dispatched = 0, pipelines = 0, seed = 1 }
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
local mesh = moe.cluster.p4de { nodes = 8 }
local function model_of(layers)
  return moe.model.gpt2_moe { vocab = 256, layers = layers, hidden = 256, heads = 4, seq = 256,
    batch_per_device = 4, experts_per_device = 1, gate = "switch", capacity = "none",
    routing = moe.workload "zipf" { s = 1.2 } }
end
local model, mesh_model = model_of(4), model_of(8)

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
local seed = set.seed
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

local planned, refused, reasons = 0, 0, {}
local function each(i, names, passes, call)
  if i > #axes then return call(names, passes) end
  for _, choice in ipairs(axes[i][2]) do
    local named, more = { unpack(names) }, { unpack(passes) }
    named[i] = choice[1]
    for _, s in ipairs(choice[2]) do more[#more + 1] = s end
    each(i + 1, named, more, call)
  end
end

local function refuse(name, message)
  local why = reason(message)
  reasons[why] = reasons[why] or { n = 0, first = name }
  reasons[why].n, refused = reasons[why].n + 1, refused + 1
end
local function print_reasons()
  local rows = {}
  for why, r in pairs(reasons) do rows[#rows + 1] = { r.n, why, r.first } end
  table.sort(rows, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  for _, r in ipairs(rows) do print(("%6d  %s\n        first: %s"):format(r[1], r[2], r[3])) end
end

local function plan_all()
  local orders = 0
  each(1, {}, {}, function(names, passes)
    local name = table.concat(names, "+")
    local ok, result = plan(name, passes)
    if not ok then return refuse(name, result) end
    planned = planned + 1
    for _ = 1, ORDERS do
      local good, again = plan(name, shuffled(passes))
      if not good or again:info().hash ~= result:info().hash then
        orders = orders + 1
        print("other order: " .. name .. ": " .. tostring(good and "another hash" or again))
      end
    end
  end)
  print(("%d of %d combinations planned, %d refused"):format(planned, planned + refused, refused))
  print_reasons()
  print(("%d orders gave another plan"):format(orders))
end

local SCHEDULES = { moe.pipeline["1f1b"] {}, moe.pipeline.interleaved {}, moe.pipeline.zb_h1 {},
  moe.pipeline.dualpipev {} }

local function train(passes, pp, micro_batches)
  return moe.train { ranks = 4 * pp, steps = 2, precision = "f64", init = "reference",
    tokens = "reference", system = system("mix", passes),
    grid = moe.grid { pp = pp, micro_batches = micro_batches },
    link = { bytes_per_s = 1e12, devices_per_node = 2 },
    model = moe.model.gpt2_moe { vocab = 64, layers = 8, hidden = 16, heads = 2, seq = 8,
      batch_per_device = 2, experts_per_device = 2, ep = 4, gate = "switch", capacity = "none" } }
end
--- The largest relative difference of losses, gradients and parameters of two runs.
local function apart(one, many)
  local worst = 0
  for _, key in ipairs { "losses", "grad_l2", "param_l2" } do
    for name, x in pairs(one[key]) do
      worst = math.max(worst, math.abs(x - many[key][name]) / math.max(1e-9, math.abs(x)))
    end
  end
  return worst
end
local plain = {}  -- by number of micro-batches
local function difference(passes, pp, micro_batches)
  plain[micro_batches] = plain[micro_batches] or train({}, 1, micro_batches)
  return apart(plain[micro_batches], train(passes, pp, micro_batches))
end
local function all_mixes()
  local all = {}
  each(1, {}, {}, function(names, passes)
    local rounds = names[2] == "fastermoe_pipeline" and names[6] == "hierarchical_a2a"
    if not rounds then all[#all + 1] = { table.concat(names, "+"), passes } end
  end)
  return all
end

local function plan_drawn()
  local all, ran, worst, wrong = all_mixes(), 0, 0, 0
  for i = 1, set.draws do
    local mix = table.remove(all, pick(#all))
    local schedule, pp, micro_batches = SCHEDULES[pick(#SCHEDULES)], 2 * pick(2), 4 * (1 + pick(2))
    local name = ("%s+%s pp=%d micro_batches=%d"):format(mix[1], schedule.name, pp, micro_batches)
    local passes = { schedule, unpack(mix[2]) }
    local ok, result = pcall(moe.plan, { model = mesh_model, cluster = mesh,
      system = system("mix", passes), grid = moe.grid { pp = pp, micro_batches = micro_batches } })
    if ok then planned = planned + 1 else refuse(name, result) end
    if ok and ran < set.executed and i % 2 == 0 then
      local good, d = pcall(difference, passes, pp, micro_batches)
      ran, worst = ran + 1, good and math.max(worst, d) or worst
      if not good or d > 1e-9 then
        wrong = wrong + 1
        print(("%s: %s"):format(name, good and ("%.1e apart"):format(d) or tostring(d)))
      end
    end
  end
  print(("%d of %d drawn mixes planned, %d refused; %d executed, %d of them failed or more than "
    .. "1e-9 apart, the others at most %.1e"):format(planned, set.draws, refused, ran, wrong,
    worst))
  print_reasons()
end

-- Dispatchers with n, the roundings of bf16 between a row at the experts and its sum at the source:
-- on the wire and at the end, where nodes add once more, where a sum passes all ranks at each.
local D = moe.dispatcher
local DISPATCHERS = { { D.two_level, {}, 2 }, { D.two_level, { order = "inter_first" }, 2 },
  { D.rank_dedup, {}, 2 }, { D.deepep_v1, {}, 3 }, { D.deepep_v2, {}, 3 },
  { D.deepep_v2, { multiple_reduction = false }, 2 }, { D.deepep_v2_direct, {}, 2 },
  { D.deepep_ll, {}, 2 }, { D.hybridep, {}, 3 }, { D.allgather, {}, 2 },
  { D.allgather, { algorithm = "two_level" }, 3 }, { D.allgather, { algorithm = "ring" }, 5 } }
local SIZES = { vocab = 64, hidden = 128, heads = 2, seq = 8,
  experts = 8, ep = 4, capacity = "none" }
local MODELS = {
  function(own) return moe.model.gpt2_moe(moe.merged(SIZES, { gate = "top2" }, own)) end,
  function(own) return moe.model.mixtral_8x7b(moe.merged(SIZES, { kv_heads = 2, k = 4,
    expert_ffn = 32, ffn = 32 }, own)) end,
}

local function dispatched(passes, of, d, options, grid, precision)
  local with = { d(options), unpack(passes) }
  return moe.train { ranks = 4 * grid.pp, steps = 3, precision = precision, init = "reference",
    poison = true, tokens = "reference", system = system("mix", with), model = of,
    grid = moe.grid(grid),
    link = { bytes_per_s = 1e12, devices_per_node = 2 } }
end

--- Trains a mix on a grid under each dispatcher. Returns how many ran, and the largest differences
--- in the run's own numbers and, as shares of n / 256, in those of the wire; or nil and why none
--- can run.
local function train_dispatched(name, passes, grid)
  local make = MODELS[pick(#MODELS)]
  -- Where choices follow from drawn popularities, a rounding moves no token to another expert.
  local more = { layers = 2 * grid.pp, batch_per_device = 2 / grid.pp }
  local own = make(more)
  local fixed = make(moe.merged(more, { routing = moe.workload "zipf" { s = 0.5 } }))
  local whole = { wire = "fp32", combine = "fp32" }
  local ok, reference = pcall(dispatched, passes, own, D.alltoallv, whole, grid, "f64")
  if not ok then return nil, reference end
  local ran, exact, narrow, wires = 0, 0, 0, {}
  for _, row in ipairs(DISPATCHERS) do
    local d, options, n = unpack(row)
    local wire = d(options).options
    local narrower = { wire = wire.wire, combine = wire.combine }
    local good, one = pcall(dispatched, passes, own, d, moe.merged(options, whole), grid,
      "f64")
    if good then
      exact = math.max(exact, apart(reference, one))
      local key = wire.wire .. wire.combine
      -- Roundings of rows are far above those of f32, whose fast products take a fifth of the time.
      wires[key] = wires[key] or dispatched(passes, fixed, D.alltoallv, narrower, grid, "f32")
      local two = dispatched(passes, fixed, d, moe.merged(options, narrower), grid, "f32")
      narrow, ran = math.max(narrow, apart(wires[key], two) * 256 / n), ran + 1
    else
      refuse(name .. " " .. d(options).name, one)
    end
  end
  return ran, exact, narrow
end

local function train_drawn()
  local all, left = all_mixes(), { mixes = set.dispatched, pipelines = set.pipelines }
  local mixes, runs, exact, narrow, wrong = 0, 0, 0, 0, 0
  while left.mixes + left.pipelines > 0 do
    local kind, grid, drawn = "mixes", { pp = 1, micro_batches = pick(2) }
    if left.mixes > 0 then
      drawn = table.remove(all, pick(#all))
    else
      local schedule = SCHEDULES[pick(#SCHEDULES)]
      kind, grid = "pipelines", { pp = 2, micro_batches = 2 + 2 * pick(2) }
      drawn = { ("%s micro_batches=%d"):format(schedule.name, grid.micro_batches),
        { schedule, pass.irregular_a2a {}, pass.used_rows {} } }
    end
    local ran, e, w = train_dispatched(drawn[1], drawn[2], grid)
    if ran then
      left[kind], mixes, runs = left[kind] - 1, mixes + 1, runs + ran
      exact, narrow = math.max(exact, e), math.max(narrow, w)
      local good = e < 1e-9 and w <= 1
      wrong = wrong + (good and 0 or 1)
      print(("%-90s %2d dispatchers, %.1e, %.2f of the bound%s"):format(drawn[1], ran, e, w,
        good and "" or " WRONG"))
    else
      refuse(drawn[1], e)
    end
  end
  print(("seed %d: %d systems, %d trainings against alltoallv: %d systems wrong; at most %.1e "
    .. "apart in f64, %.2f of n / 256 with rows in fp8 and bf16; %d refused"):format(set.seed,
    mixes, runs, wrong, exact, narrow, refused))
  print_reasons()
  assert(wrong == 0, "trainings under dispatchers are apart")
end

if set.dispatched + set.pipelines > 0 then
  train_drawn()
elseif set.draws > 0 then
  plan_drawn()
else
  plan_all()
end
