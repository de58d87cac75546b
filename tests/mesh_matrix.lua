-- moebench run tests/mesh_matrix.lua --trust [--set every=1] [--set seed=7]: pipeline ranks,
-- executed in float64, against one pipeline rank with the same micro-batches and data ranks. The
-- four schedules of the engine over pipeline ranks, data ranks and micro-batches, those with pairs
-- of turns with hide_a2a, then draws over all schedules, models, systems and layouts. Then draws of
-- meshes with tp and cp, against one rank that has the rows of data rank d of D in micro-batch m as
-- its micro-batch m D + d. Every 20th case is run, from one on that the seed chooses; `every=1`:
-- all, `from=N`: those from case N on. The status is 1 when one fails.
--
-- Losses are equal to the last bit where a schedule sums them in the order of micro-batches, and so
-- are all parameters where none is held twice (a head tied to the embedding, MTP layers, dualpipe),
-- gradients are added in ascending order (not looped_bfs) and are not clipped. All else is equal to
-- 1e-9. With dispatched=20 so many of the draws run on four ranks per pipeline rank, two per
-- emulated node, under each dispatcher in place of that, and are compared with alltoallv.
local core = require "moe.core"
local moe = require "moe"

local DRAWS = 60  -- of pipelines, and of meshes

local LAYERS = 8
local SIZES = { vocab = 96, layers = LAYERS, hidden = 16, heads = 2, seq = 8, batch_per_device = 2 }

local function with(fields, sizes)
  local t = {}
  for key, value in pairs(sizes or SIZES) do t[key] = value end
  for key, value in pairs(fields) do t[key] = value end
  return t
end

local MODELS = {
  gpt2 = { tied = true, make = function(ep)
    return moe.model.gpt2_moe(with { experts = 4, gate = "switch", capacity_factor = 1.25, ep = ep,
      balance_loss = { coefficient = 0.01 }, z_loss = 0.001 })
  end },
  mixtral = { make = function(ep)
    return moe.model.mixtral_8x7b(with { kv_heads = 1, ffn = 24, expert_ffn = 24, experts = 4,
      k = 2, ep = ep, capacity = "none" })
  end },
  deepseek = { biased = true, make = function(ep)
    return moe.model.deepseek_v3(with { dense_layers = 1, q_rank = 8, kv_rank = 8, nope = 8,
      rotary = 4, value_dim = 8, experts = 8, k = 2, expert_ffn = 8, shared_ffn = 8, ffn = 24,
      ep = ep, capacity = "none", router = { groups = 2, top_groups = 1 },
      bias_balance = { rate = 0.001 } })
  end },
}
-- DeepSeek-V3 with MTP layers, in a stage of their own or in that of the loss.
MODELS.mtp = { tied = true, layouts = { [2] = { "Etttttttt|mmL", "Ettt|tttttmmL" },
  [4] = { "Ett|ttt|tttmm|L", "E|tttt|tttt|mmL" } },
  make = function(ep)
    return moe.model.deepseek_v3(with { dense_layers = 1, q_rank = 8, kv_rank = 8, nope = 8,
      rotary = 4, value_dim = 8, experts = 8, k = 2, expert_ffn = 8, shared_ffn = 8, ffn = 24,
      ep = ep, capacity = "none", router = { groups = 2, top_groups = 1 }, mtp_layers = 2,
      bias_balance = { rate = 0.001 } })
  end }
-- Of meshes, with heads for four ranks; by ep and capacity.
local WIDE = { vocab = 96, layers = 4, hidden = 16, heads = 4, seq = 16, batch_per_device = 2,
  experts = 8 }
local function wide(t, fields) return with(t, with(fields, WIDE)) end
local GATED = { kv_heads = 2, k = 2, ffn = 24, expert_ffn = 8 }
local function gated(t, fields) return with(t, with(fields, with(GATED, WIDE))) end
local MESH_MODELS = {
  gpt2 = function(t)
    return moe.model.gpt2_moe(wide(t, { gate = "top_k", k = 2, z_loss = 0.001,
      balance_loss = { coefficient = 0.01 } }))
  end,
  mixtral = function(t) return moe.model.mixtral_8x7b(gated(t, { kv_heads = 1 })) end,
  qwen3 = function(t)
    return moe.model.qwen3_30b_a3b(gated(t, { head_dim = 6,
      balance_loss = { coefficient = 0.01 } }))
  end,
  olmoe = function(t) return moe.model.olmoe_1b_7b(gated(t, { kv_heads = 4 })) end,
  gpt_oss = function(t) return moe.model.gpt_oss_20b(gated(t, { head_dim = 4 })) end,
  deepseek = function(t)
    return moe.model.deepseek_v3(wide(t, { dense_layers = 1, q_rank = 8, kv_rank = 8, nope = 8,
      rotary = 4, value_dim = 8, k = 2, expert_ffn = 8, shared_ffn = 8, ffn = 24,
      router = { groups = 2, top_groups = 1 }, bias_balance = { rate = 0.001 } }))
  end,
}
MESH_MODELS.mtp = function(t)
  return moe.model.deepseek_v3(wide(t, { dense_layers = 1, q_rank = 8, kv_rank = 8, nope = 8,
    rotary = 4, value_dim = 8, k = 2, expert_ffn = 8, shared_ffn = 8, ffn = 24,
    router = { groups = 2, top_groups = 1 }, mtp_layers = 1,
    balance_loss = { coefficient = 0.01 } }))
end
-- Techniques of meshes, of which two are drawn.
local PARTS = {
  zero = { moe.pass.zero {} }, recompute = { moe.pass.recompute {} },
  rows = { moe.pass.irregular_a2a {}, moe.pass.used_rows {} },
  partition = { moe.pass.irregular_a2a {}, moe.pass.used_rows {},
    moe.pass.partition { parts = 2 } },
  prophet = { moe.pass.prophet { use = "now", shadows = 1, hidden = 0 } },
  balancer = { moe.pass.top_k { k = 1 } },
  none = {},
}
local SYSTEMS = {
  plain = {}, lancet_dw = { moe.pass.dw_schedule {} }, zero = { moe.pass.zero {} },
  recompute = { moe.pass.recompute {} },
  partition = { moe.pass.irregular_a2a {}, moe.pass.used_rows {},
    moe.pass.partition { parts = 2 } },
  now = { places = true, moe.pass.prophet { use = "now", shadows = 1, hidden = 0 } },
  next = { places = true, moe.pass.prophet { use = "next", shadows = 1, hidden = 0 } },
  copies = { places = true, moe.pass.top_k { k = 1 },
    moe.pass.hide_a2a { search = false } },
  segments = { moe.pass.hide_a2a { search = false, delay_dw = false } },
  hidden = { moe.pass.zero {}, moe.pass.hide_a2a { search = false } },
  hidden_parts = { moe.pass.irregular_a2a {}, moe.pass.partition { parts = 2 },
    moe.pass.dw_schedule {}, moe.pass.priority {}, moe.pass.hide_a2a {} },
}
local SCHEDULES = { "1f1b", "combined_1f1b", "dualpipe", "dualpipev", "gpipe", "interleaved",
  "interleaved_torch", "looped_bfs", "paired_1f1b", "v_half", "v_min", "zb_h1", "zb_h2", "zb_v" }

-- Adamw hides a factor of all gradients.
local function optimizer(c)
  return c.clip and { name = "sgd", lr = 0.1, momentum = 0.9, clip_norm = 0.01 }
    or { name = "adamw" }
end

local function run(c, pp, dispatcher)
  local stages = { unpack(SYSTEMS[c.system]) }
  if dispatcher then table.insert(stages, 1, dispatcher) end
  if pp > 1 then stages[#stages + 1] = moe.pipeline[c.schedule] {} end
  return moe.train { model = MODELS[c.model].make(c.ep), ranks = c.data * pp, steps = 2,
    precision = "f64", init = "reference", tokens = "reference", poison = true,
    link = dispatcher and { bytes_per_s = 1e12, devices_per_node = 2 },
    grid = moe.grid { pp = pp, micro_batches = c.micro, layout = pp > 1 and c.layout or nil },
    system = moe.system "plain" (stages), optimizer = optimizer(c) }
end

-- Runs a mesh, or (`one`) one rank with the same rows.
local function run_mesh(c, one)
  local stages, seen = {}, {}
  for _, part in ipairs(one and {} or c.parts) do
    for _, stage in ipairs(PARTS[part]) do
      if not seen[stage.name] then stages[#stages + 1] = stage end
      seen[stage.name] = true
    end
  end
  local many = not one
  if many and c.pp > 1 then stages[#stages + 1] = moe.pipeline[c.schedule] {} end
  local room = c.tight and { capacity_factor = 0.6 } or { capacity = "none" }
  room.ep = one and 1 or c.ep
  return moe.train { model = MESH_MODELS[c.model](room),
    ranks = one and 1 or c.tp * c.cp * c.data * c.pp, steps = 3, precision = "f64",
    init = "reference", tokens = "reference", poison = true,
    grid = moe.grid { pp = many and c.pp or 1, tp = many and c.tp or 1, cp = many and c.cp or 1,
      cp_comm = many and c.ring and "p2p" or nil,
      route_over = many and c.tight and c.tp * c.cp > 1 and "sequence" or nil,
      etp = many and c.etp or 1, micro_batches = one and c.micro * c.data or c.micro },
    system = moe.system "plain" (stages), optimizer = optimizer(c) }
end

local function apart(a, b)
  local worst = 0
  for _, key in ipairs { "grad_l2", "param_l2" } do
    for name, x in pairs(a[key]) do
      worst = math.max(worst, math.abs(x - b[key][name]) / math.max(1e-12, math.abs(x)))
    end
  end
  for i, loss in ipairs(a.losses) do
    worst = math.max(worst, math.abs(loss - b.losses[i]))
    for k, more in ipairs(a.mtp_losses[i]) do
      worst = math.max(worst, math.abs(more - b.mtp_losses[i][k]))
    end
  end
  return worst
end

local function text(c)
  local clip = c.clip and " clip" or ""
  if c.tp then
    return ("%s %s tp=%d cp=%d%s pp=%d data=%d etp=%d ep=%d micro=%d %s"):format(c.model,
      c.schedule, c.tp, c.cp, c.ring and "r" or "", c.pp, c.data, c.etp, c.ep, c.micro,
      table.concat(c.parts, "+")) .. clip .. (c.tight and " capacity" or "")
  end
  return ("%s %s pp=%d data=%d ep=%d micro=%d %s%s"):format(c.model, c.schedule, c.pp, c.data, c.ep,
    c.micro, c.system, c.layout and " " .. c.layout or "") .. clip
end

-- Returns the list of cases, which a seed makes.
local function cases(seed)
  local list = {}
  for _, schedule in ipairs { "1f1b", "interleaved", "zb_h1", "dualpipev" } do
    for _, pp in ipairs { 2, 4 } do
      for _, micro in ipairs { 1, 4, 8, 10 } do
        for _, ranks in ipairs { { 1, 1 }, { 2, 1 }, { 2, 2 } } do
          list[#list + 1] = { model = "gpt2", schedule = schedule, pp = pp, micro = micro,
            data = ranks[1], ep = ranks[2], system = "plain" }
        end
      end
    end
  end
  local pairs_of = { "segments", "hidden", "hidden_parts", "copies" }
  for i, schedule in ipairs { "combined_1f1b", "paired_1f1b", "dualpipe", "dualpipev" } do
    for k, model in ipairs { "gpt2", "mixtral", "deepseek" } do
      list[#list + 1] = { model = model, schedule = schedule, pp = k == 1 and 4 or 2,
        micro = 8, data = 2, ep = 2, system = pairs_of[(i + k) % 4 + 1] }
    end
  end
  local state = seed
  local function draw(from)
    state = (state * 1103515245 + 12345) % 2 ^ 31
    return from[math.floor(state / 2 ^ 16) % #from + 1]
  end
  local names, systems = { "gpt2", "mixtral", "deepseek", "mtp" },
    { "copies", "lancet_dw", "next", "now", "partition", "plain", "recompute", "zero" }
  for _ = 1, DRAWS do
    local data = draw { 1, 2 }
    local c = { model = draw(names), schedule = draw(SCHEDULES), pp = draw { 2, 4 },
      micro = draw { 2, 4, 8, 9 }, data = data, ep = data == 1 and 1 or draw { 1, 2 },
      system = draw(systems), clip = draw { true, false } }
    if SYSTEMS[c.system].places then c.ep = c.data end
    local uneven = draw { true, false }
    if uneven and (c.schedule == "1f1b" or c.schedule == "zb_h1") then
      c.layout = c.model == "mtp" and draw(MODELS.mtp.layouts[c.pp])
        or c.pp == 2 and "Ettt|tttttL" or "E|tttt|ttt|tL"
    end
    list[#list + 1] = c
  end
  local meshes, parts = { "gpt2", "mixtral", "qwen3", "olmoe", "gpt_oss", "deepseek", "mtp" },
    { "zero", "recompute", "rows", "partition", "prophet", "balancer", "none" }
  for _ = 1, DRAWS do
    local tp, cp, data, pp = draw { 1, 2, 4 }, draw { 1, 2, 4 }, draw { 1, 2, 4 }, draw { 1, 2, 4 }
    while tp * cp > 8 or tp * cp * pp > 16 do cp = cp / 2 end
    while tp * cp * data * pp > 16 do data = data / 2 end
    local ep = draw { 1, 2, 4 }
    while tp * cp * data % ep ~= 0 do ep = ep / 2 end
    local etp = draw { 1, 2, 4 }
    while tp * cp * data / ep % etp ~= 0 do etp = etp / 2 end
    local ring = draw { true, false }
    local c = { etp = etp, model = draw(meshes), tp = tp, cp = cp, data = data, pp = pp, ep = ep,
      schedule = pp == 1 and "-" or pp == 4 and "1f1b" or draw { "1f1b", "interleaved" },
      micro = draw { 2, 4 }, parts = { draw(parts), draw(parts) }, clip = draw { true, false } }
    c.ring = ring and cp > 1 and c.model ~= "gpt_oss"  -- which has windows
    local placed = { prophet = true, balancer = true }
    if placed[c.parts[1]] or placed[c.parts[2]] then
      c.ep, c.etp = math.min(8, tp * cp * data), 1  -- placements are refused beside etp
      if placed[c.parts[1]] and placed[c.parts[2]] then c.parts[2] = "none" end
    end
    c.tight = draw { true, false }
    list[#list + 1] = c
  end
  return list
end

-- Whether the schedule, or a technique in it, does not exist for these numbers.
local function refused(message)
  return message:find "%l_%l+:" or message:find "is not planned on several"
    or message:find "two_way"
end

local D = moe.dispatcher
local DISPATCHERS = { D.two_level, D.rank_dedup, D.deepep_v1, D.deepep_v2, D.deepep_v2_direct,
  D.deepep_ll, D.hybridep, D.allgather }

-- Trains under each dispatcher, with rows in the run's own numbers.
local function check_dispatched(c)
  local whole, worst = { wire = "fp32", combine = "fp32" }, 0
  local ok, one = pcall(run, c, c.pp, D.alltoallv(whole))
  if not ok then
    local message = tostring(one.message or one)
    return refused(message) and "refused" or "FAILED: " .. message
  end
  for _, d in ipairs(DISPATCHERS) do
    local good, many = pcall(run, c, c.pp, d(whole))
    local far = good and apart(one, many) or 0
    if not good or far > 1e-9 then
      local why = good and far or many.message or many
      return ("FAILED: %s: %s"):format(d {}.name, tostring(why))
    end
    worst = math.max(worst, far)
  end
  return ("%d dispatchers, %.1e"):format(#DISPATCHERS, worst)
end

local ones = {}  -- results of one pipeline rank

local function check_mesh(c)
  local ok, many = pcall(run_mesh, c)
  if not ok then return "FAILED: " .. tostring(many.message or many) end
  local key = ("%s %d %s %s"):format(c.model, c.micro * c.data, c.clip, c.tight)
  ones[key] = ones[key] or run_mesh(c, true)
  local d = apart(ones[key], many)
  return d > 1e-9 and ("FAILED: %g apart"):format(d) or ("%.1e"):format(d)
end

local function check(c)
  if c.tp then return check_mesh(c) end
  local ok, many = pcall(run, c, c.pp)
  if not ok then
    local message = tostring(many.message or many)
    return refused(message) and "refused" or "FAILED: " .. message
  end
  local key = ("%s %s %d %d %d %s"):format(c.model, c.system, c.data, c.ep, c.micro, c.clip)
  ones[key] = ones[key] or run(c, 1)
  local one = ones[key]
  local d = apart(one, many)
  local exact = not MODELS[c.model].tied and not c.clip and c.schedule ~= "dualpipe"
    and c.schedule ~= "looped_bfs"
  if d > 1e-9 then return ("FAILED: %g apart"):format(d) end
  if exact and many.digest ~= one.digest then return "FAILED: other bits" end
  if c.schedule ~= "dualpipe" and many.losses[1] ~= one.losses[1] then
    return "FAILED: another loss in the first step"
  end
  return exact and "same bits" or ("%.1e"):format(d)
end

local every, seed = tonumber(core.args.set.every or 20), tonumber(core.args.set.seed or 1)
local dispatched = tonumber(core.args.set.dispatched or 0)
local counts = { ran = 0, refused = 0, failed = 0 }
local list = cases(seed)
local function count(i, c, outcome)
  print(("%3d %s: %s"):format(i, text(c), outcome))
  local kind = outcome == "refused" and outcome or outcome:find "FAILED" and "failed" or "ran"
  counts[kind] = counts[kind] + 1
end
if dispatched > 0 then
  for i = #list - 2 * DRAWS + 1, #list - DRAWS do  -- those of pipelines
    local c = list[i]
    c.data, c.ep, c.pp, c.layout = 4, 4, 2, nil
    if counts.ran + counts.failed < dispatched then count(i, c, check_dispatched(c)) end
  end
else
  local from = tonumber(core.args.set.from or 1)
  for i = from + seed % every, #list, every do count(i, list[i], check(list[i])) end
end
print(("seed %d: %d ran, %d failed, %d refused"):format(seed, counts.ran, counts.failed,
  counts.refused))
os.exit(counts.failed == 0 and counts.ran > 0 and 0 or 1)
