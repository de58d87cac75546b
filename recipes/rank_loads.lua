-- What does balancing save, on loads that real training had? The public artifact of LAER-MoE
-- (PKU-DAIR/Hetu-Galvatron, branch laer-moe, Apache-2.0) has a file of the rows that each of 32
-- A100s computed, by iteration and layer: after FSDP with fixed experts, FlexMoE, and LAER, for two
-- models trained without a balance loss. Get its token_analysis_backup.csv and run
--   moebench run --read FOLDER recipes/rank_loads.lua
-- Assumed, as the file does not say it: one iteration is one step of one micro-batch (the rows are
-- 16,384 tokens per GPU); the e8k2 model is Mixtral 8x7B; the e16k4 model has experts of half its
-- width, so that a layer is as large, and the file's 24 layers; every GPU sends equally many rows
-- to every other for its share of the load. The parameters that the methods gather, scatter or move
-- are left out: FSDP and LAER move the same number of bytes per layer, under compute. So is the
-- limit of memory: these systems shard parameters and states, while here each GPU keeps the expert
-- that computes its rows.
local moe = require "moe"

local FILE = "token_analysis_backup.csv"
local MODELS = { "mixtral-8x7b-e8k2", "mixtral-8x7b-e16k4" }
local FIELDS = { ["mixtral-8x7b-e8k2"] = { k = 2, expert_ffn = 14336 },
  ["mixtral-8x7b-e16k4"] = { k = 4, expert_ffn = 7168 } }
local SEQ, EVEN = 8192, "even"
local METHODS = { "FSDP", "FLEX", "LAER" }
local ROWS = { METHODS[1], METHODS[2], METHODS[3], EVEN }
-- GPUs of 8 per node with 200 Gb/s each, and with 50 Gb/s each.
local CLUSTERS = { "a100", "p4de" }

-- trace_of[model][method] = { file, sizes } of the trace of its loads.
local trace_of = {}
for _, model in ipairs(MODELS) do
  trace_of[model] = {}
  for _, method in ipairs(METHODS) do
    local file = moe.trace.import { format = "rank_loads", files = { FILE }, k = FIELDS[model].k,
      where = { method = method, model_name = model }, to = model .. "_" .. method .. ".trace" }
    trace_of[model][method] = { file = file, sizes = moe.trace.read(file) }
  end
end

local function model_of(name, method)
  local sizes = trace_of[name][METHODS[1]].sizes
  return moe.model.mixtral_8x7b { layers = sizes.layers, experts = sizes.experts,
    k = FIELDS[name].k, expert_ffn = FIELDS[name].expert_ffn, seq = SEQ,
    batch_per_device = sizes.tokens / SEQ,
    routing = method == EVEN and moe.workload "balanced" {}
      or moe.trace(trace_of[name][method].file) { cycle = true } }
end

local function mean(list)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x end
  return sum / #list
end

-- Returns the largest over the mean load of the ranks, mean over iterations and layers.
local function uneven(name, method)
  if method == EVEN then return 1 end
  local all, t = {}, trace_of[name][method].sizes
  for step = 1, t.steps do
    for layer = 1, t.layers do
      local rows = {}
      for _, row in ipairs(moe.loads { routing = moe.trace(trace_of[name][method].file) {},
          ranks = t.ranks, tokens = t.tokens, experts = t.experts, k = t.k, step = step,
          layer = layer }) do
        for e, n in ipairs(row) do rows[e] = (rows[e] or 0) + n end
      end
      all[#all + 1] = math.max(unpack(rows)) / mean(rows)
    end
  end
  return mean(all)
end

moe.run(moe.experiment { name = "rank_loads",
  over = { checkpoint = MODELS, cluster = CLUSTERS, recompute = { "none", "blocks" },
    method = ROWS },
  case = function(p)
    local again = p.recompute ~= "none" and p.recompute or nil
    return { model = model_of(p.checkpoint, p.method),
      cluster = moe.cluster[p.cluster] { nodes = 4 },
      systems = { moe.system "raf_rows" { recompute = again } } }
  end,
  run = { { "simulate", steps = 10 } },
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
        ms[column][p.method] = mean(run.samples_ms)
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
