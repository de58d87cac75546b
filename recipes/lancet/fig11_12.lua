-- Figures 11 and 12 of Lancet: how much faster is a step than under the fastest of RAF, DeepSpeed
-- and Tutel, with the Switch gate and with Batch Prioritized Routing? Also shown is how much of the
-- gain comes from overlap, how much from padding that is not sent or computed, and how much from
-- the all-reduce policy.
local moe = require "moe"

local BUCKET = 25 * 2 ^ 20
-- All-reduce policies: AFTER is that of raf and lancet, DDP that of deepspeed and tutel.
local AFTER = { lane = "comm", place = "after", bucket_bytes = BUCKET }
local DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = BUCKET }

-- Returns Lancet's passes. more.rows: whether its experts compute only real rows; more.all_reduce:
-- its policy.
local function lancet(more)
  local passes = { moe.fallback(moe.pass.partition, { max_parts = { 8, 4, 2 } }),
    moe.pass.dw_schedule {} }
  if more.rows then table.insert(passes, 1, moe.pass.used_rows {}) end
  table.insert(passes, 1, moe.pass.irregular_a2a {})
  passes.all_reduce = more.all_reduce
  return passes
end

local systems = { moe.system "raf" {}, moe.system "deepspeed" { stack = "deepspeed_2021" },
  moe.system "tutel" { stack = "tutel_2022" }, moe.system "lancet" {},
  moe.system "raf_irregular" {}, moe.system "raf_rows" {},
  moe.system "deepspeed_after" { moe.pass.blocking_a2a {}, all_reduce = AFTER,
    stack = "deepspeed_2021" },
  moe.system "tutel_after" { all_reduce = AFTER, stack = "tutel_2022",
    moe.best(moe.pass.capacity_pipeline, { degree = { 1, 2, 4, 8 } }) },
  moe.system "lancet_ddp"(lancet { rows = true, all_reduce = DDP }),
  moe.system "lancet_padded"(lancet { all_reduce = AFTER }) }

-- The clusters for which claims are evaluated.
local SETS = {
  { label = "A100", gpu = "p4de" },
  { label = "V100", gpu = "p3dn" },
}

local function of(R, set, padding)
  return R:where { gpu = set.gpu, padding = padding or "assumed" }
end

-- Returns the speed-ups of lancet over the fastest baseline, one value per point. The suffixes of
-- the systems' names state which all-reduce policy they have.
local function speedups(R, suffix, baselines_suffix)
  local other = baselines_suffix or ""
  return R:ratio { "iteration_ms", of = "lancet" .. (suffix or ""),
    to = { "raf", "deepspeed" .. other, "tutel" .. other } }
end

local function ms(run) return run.oom and "OOM" or ("%.0f"):format(run.iteration_ms) end
local function mean_text(values) return values[1] and ("%.3fx"):format(values:mean()) or "-" end

local function show(R)
  local rows = { { "cluster", "model", "batch", "GPUs", "raf ms", "deepspeed ms", "tutel ms",
    "lancet ms", "over best", "over raf", "bound ms" } }
  for _, group in R:where { padding = "assumed" }:by { "gpu", "size", "nodes" } do
    local by = {}
    for run in group:each() do by[run.system] = run end
    rows[#rows + 1] = { by.raf.cluster, by.raf.model,
      by.raf.parameters.batch_per_device, by.raf.devices,
      ms(by.raf), ms(by.deepspeed), ms(by.tutel), ms(by.lancet),
      mean_text(speedups(group)),
      mean_text(group:ratio { "iteration_ms", of = "lancet", to = "raf" }),
      ("%.0f"):format(by.lancet.lower_bound_ms) }
  end
  print(moe.table(rows))

  print "\nWhere lancet's gain comes from, means over models and GPUs"
  local shares = { { "", "over best", "experts padded", "without any padding",
    "all-reduce after, all", "as DDP, all", "raf: padding not sent", "nor computed" } }
  for i, set in ipairs(SETS) do
    local S = of(R, set)
    local values = { speedups(S), speedups(S, "_padded"), speedups(of(R, set, "none")),
      speedups(S, "", "_after"), speedups(S, "_ddp"),
      S:ratio { "iteration_ms", of = "raf_irregular", to = "raf" },
      S:ratio { "iteration_ms", of = "raf_rows", to = "raf_irregular" } }
    shares[i + 1] = { set.label }
    for j, v in ipairs(values) do shares[i + 1][j + 1] = mean_text(v) end
  end
  print(moe.table(shares))
  print "experts padded: they compute whole slots; the partition then leaves them uncut"
  print "without any padding: capacity factor 1, every slot in use, under all systems"
  print "all-reduce after, all; as DDP, all: one policy for lancet and its baselines"
  print "raf: what a step without overlap gains when padding is not sent, and then not computed"
end

local function figure(number, gate, a100, v100)
  local claims = {}
  for i, set in ipairs(SETS) do
    for _, kind in ipairs { "mean", "max" } do
      claims[2 * i + (kind == "mean" and -1 or 0)] = moe.claim {
        id = (set.gpu == "p4de" and a100 or v100) .. (kind == "max" and "-max" or ""),
        neutral = 1, within = 0.25,
        value = function(R) local v = speedups(of(R, set)) return v[kind](v) end }
    end
  end
  return moe.experiment {
    name = "lancet_fig" .. number, title = "iteration time, weak scaling, gate " .. gate,
    over = { gpu = { "p4de", "p3dn" }, size = { "S", "L" }, nodes = { 2, 4, 8 },
      padding = { "assumed", "none" } },
    params = { reading = "artifact" },
    case = function(p)
      local model = moe.model.lancet { size = p.size, gpu = p.gpu, reading = p.reading, gate = gate,
        capacity_factor = p.padding == "none" and 1 or nil,
        fill = p.padding == "none" and 1 or nil }
      return { model = model, cluster = moe.cluster[p.gpu] { nodes = p.nodes },
        systems = systems }
    end,
    show = show, claims = claims,
  }
end

return { figure(11, "switch", "lancet-034", "lancet-035"),
  figure(12, "bpr", "lancet-036", "lancet-037") }
