-- What does balancing save, on loads that real training had? The public artifact of LAER-MoE
-- (PKU-DAIR/Hetu-Galvatron, branch laer-moe, Apache-2.0) has a file of the rows that each of 32
-- A100s computed, by iteration and layer: after FSDP with fixed experts, FlexMoE, and LAER, for two
-- models trained without a balance loss. Get its token_analysis_backup.csv and run
--   moebench run --read FOLDER recipes/rank_loads.lua
-- Assumed, as the file does not say it: one iteration is one step of one micro-batch (the rows are
-- 16,384 tokens per GPU); the e8k2 model is Mixtral 8x7B; the e16k4 model has experts of half its
-- width, so that a layer is as large, two per GPU with equal loads, and the file's 24 layers.
-- Where rows come from: the rows of the four nodes are equally many in all layers of FSDP and
-- FlexMoE, and in 85% (e8k2) and 97% (e16k4) of those of LAER. So each node of FSDP and FlexMoE has
-- all experts and computes its own tokens, and its 8 GPUs exchange rows among themselves (ep = 8).
-- LAER's 32 GPUs exchange rows, since any may compute any expert's: a node computes its own tokens
-- as far as it can, and what it computes beyond comes from nodes that compute less. A GPU of a node
-- sends equally many rows as each other one. Gradients are reduced under compute; LAER's experts
-- have no copies here and so no gradients to reduce, which on p4de makes its steps too short. The
-- parameters that the methods gather or move are left out: FSDP and LAER move the same number of
-- bytes per layer, under compute. Where they are gathered from all nodes, nodes also wait for each
-- other: if all met in each exchange (all methods in ACROSS), FSDP's steps are 3 to 6% longer, and
-- LAER 1.14 and 1.26 times as fast. So is the limit of memory: these systems shard parameters and
-- states, while here each GPU keeps the experts that compute its rows.
local moe = require "moe"

local FILE = "token_analysis_backup.csv"
local MODELS = { "mixtral-8x7b-e8k2", "mixtral-8x7b-e16k4" }
-- held: experts per GPU, if the node has each once.
local FIELDS = { ["mixtral-8x7b-e8k2"] = { k = 2, expert_ffn = 14336, held = 1 },
  ["mixtral-8x7b-e16k4"] = { k = 4, expert_ffn = 7168, held = 2 } }
local SEQ, EVEN, NODE = 8192, "even", 8  -- NODE: GPUs of a node
local METHODS = { "FSDP", "FLEX", "LAER" }
local ACROSS = { LAER = true }  -- methods whose rows leave their node
local ROWS = { METHODS[1], METHODS[2], METHODS[3], EVEN }
-- GPUs of 8 per node with 200 Gb/s each, and with 50 Gb/s each.
local CLUSTERS = { "a100", "p4de" }

local HIDDEN = { place = "ready", lane = "comm_reduce" }  -- gradients are reduced under compute

local STEPS = 1
-- trace_of[model][method] = { file, sizes } of the trace of its loads.
local trace_of = {}
for _, model in ipairs(MODELS) do
  trace_of[model] = {}
  for _, method in ipairs(ROWS) do
    local even = method == EVEN
    local file = moe.trace.import { format = "rank_loads", files = { FILE }, k = FIELDS[model].k,
      node = NODE, experts_per_rank = FIELDS[model].held,
      experts = not ACROSS[method] and NODE * FIELDS[model].held or nil,
      where = { method = even and METHODS[1] or method, model_name = model }, even = even or nil,
      to = model .. "_" .. method .. ".trace" }
    trace_of[model][method] = { file = file, sizes = moe.trace.read(file) }
    -- All iterations: the file has 10 and 30, and a trace of 10 is simulated three times.
    STEPS = math.max(STEPS, trace_of[model][method].sizes.steps)
  end
end

local function model_of(name, method)
  local sizes = trace_of[name][method].sizes
  return moe.model.mixtral_8x7b { layers = sizes.layers, experts = sizes.experts,
    ep = not ACROSS[method] and NODE or nil,
    k = FIELDS[name].k, expert_ffn = FIELDS[name].expert_ffn, seq = SEQ,
    batch_per_device = sizes.tokens / SEQ,
    routing = moe.trace(trace_of[name][method].file) { cycle = true } }
end

-- Returns the largest over the mean load of the ranks, mean over iterations and layers.
local function uneven(name, method)
  local all, t = moe.values {}, trace_of[name][method].sizes
  for step = 1, t.steps do
    for layer = 1, t.layers do
      local rows = moe.values {}
      for source, row in ipairs(moe.loads { routing = moe.trace(trace_of[name][method].file) {},
          ranks = t.ranks, tokens = t.tokens, experts = t.experts, k = t.k, step = step,
          layer = layer }) do
        for e, n in ipairs(row) do
          local first = ACROSS[method] and 0 or math.floor((source - 1) / NODE) * NODE
          local rank = first + math.ceil(e / FIELDS[name].held)
          rows[rank] = (rows[rank] or 0) + n
        end
      end
      all[#all + 1] = rows:max() / rows:mean()
    end
  end
  return all:mean()
end

moe.run(moe.experiment { name = "rank_loads",
  over = { checkpoint = MODELS, cluster = CLUSTERS, recompute = { "none", "blocks" },
    method = ROWS },
  case = function(p)
    local again = p.recompute ~= "none" and p.recompute or nil
    return { model = model_of(p.checkpoint, p.method),
      cluster = moe.cluster[p.cluster] { nodes = 4 },
      systems = { moe.system "rows" { moe.pass.irregular_a2a {}, moe.pass.used_rows {},
        all_reduce = HIDDEN, recompute = again } } }
  end,
  run = { { "simulate", steps = STEPS } },
  show = function(R)
    for _, name in ipairs(MODELS) do
      print(("\n%s on 32 A100: milliseconds per step, and times faster than FSDP"):format(name))
      local rows, ms = { { "", "max/mean" } }, {}
      for run in R:where { checkpoint = name }:each() do
        local p = run.point
        local column = p.cluster .. (p.recompute == "none" and "" or ", recompute")
        if not ms[column] then
          ms[column] = {}
          table.insert(rows[1], column)
          table.insert(rows[1], "")
        end
        ms[column][p.method] = moe.values(run.samples_ms):mean()
      end
      for _, method in ipairs(ROWS) do
        local row = { method, ("%.2f"):format(uneven(name, method)) }
        for i = 3, #rows[1], 2 do
          local by = ms[rows[1][i]]
          row[i], row[i + 1] = ("%.0f"):format(by[method]), ("%.2fx"):format(by.FSDP / by[method])
        end
        rows[#rows + 1] = row
      end
      print(moe.table(rows))
    end
  end })
