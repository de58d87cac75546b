-- Lina's scheduler, executed: two CPU ranks over an emulated link that all-to-alls and all-reduces
-- share, with several sharing efficiencies of the link. Each variant's step is predicted first,
-- then the variant and the baseline are executed in turns. The first four variants differ only in
-- the order of ops, so their losses are equal in every bit. In the paper a micro-op of 30 MB takes
-- 3 ms on the NIC; the size of micro-ops here is chosen so that they take as long.
local moe = require "moe"

local PAIRS, STEPS, EFFICIENCIES = 10, 3, { 1, 0.7, 0.48 }
local LINK_BYTES_PER_S, MICRO_OP_BYTES = 1e8, 3e5

local GRADIENT = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }
-- Buckets as PyTorch's DDP has them (25 MiB), scaled down in the same proportion.
local BUCKET = { lane = "comm_reduce", place = "ready", bucket_bytes = 2.6e5 }

local chunked = moe.pass.chunked { bytes = MICRO_OP_BYTES }
local micro_ops = moe.pass.micro_ops { bytes = MICRO_OP_BYTES }

local VARIANTS = {
  moe.system "lina_baseline" { all_reduce = BUCKET },
  moe.system "lina_fixed" {},
  moe.system "lina_priority" {},
  moe.system "lina_partition" { moe.pass.priority {}, chunked, all_reduce = GRADIENT },
  moe.system "lina_pipelining" { moe.pass.priority {}, chunked, micro_ops, all_reduce = GRADIENT },
}
local ONLY_ORDER = 4  -- number of first variants that differ only in the order of ops

local model = moe.model.gpt2_moe { name = "wide", vocab = 256, layers = 4, hidden = 256, heads = 4,
  seq = 64, batch_per_device = 16, experts = 2, gate = "random", capacity_factor = 1.25 }

local function link(efficiency)
  return { bytes_per_s = LINK_BYTES_PER_S, latency_us = 20, sharing_efficiency = efficiency }
end

-- The predictions of all variants, which are frozen in results.json before the first run of each.
local function predicted(efficiency)
  local by = {}
  local R = moe.run(moe.experiment { name = ("lina_executed_%.2f"):format(efficiency),
    model = model, systems = VARIANTS, optimizer = { lr = 0.02 },
    run = { { "cpu", ranks = 2, steps = STEPS, link = link(efficiency) } } })
  for run in R:each() do by[run.system] = run.prediction end
  return by
end

local function train(system, efficiency)
  return moe.train { model = model, system = system, ranks = 2, steps = STEPS,
    link = link(efficiency), optimizer = { lr = 0.02 } }
end

-- Returns the median of `key` in the steps of a run after the first, which is slower since it
-- touches every page of memory.
local function of_steps(r, key)
  local list = moe.values {}
  for i = 2, #r.metrics do list[#list + 1] = r.metrics[i][key] end
  return list:median()
end

-- Returns, for each variant: its metrics over all pairs of runs, the ratios of steps to the
-- baseline's, and the digest of its results.
local function executed(efficiency)
  local by = {}
  for _, system in ipairs(VARIANTS) do
    by[system.name] = { ratio = moe.values {}, step = moe.values {}, wait = moe.values {},
      transfer = moe.values {}, busy = moe.values {} }
  end
  local function note(name, r)
    local v = by[name]
    v.digest, v.loss = r.digest, r.losses[#r.losses]
    v.step[#v.step + 1] = of_steps(r, "iteration_ms")
    v.wait[#v.wait + 1] = of_steps(r, "a2a_wait_ms")
    v.transfer[#v.transfer + 1] = of_steps(r, "a2a_transfer_ms")
    v.busy[#v.busy + 1] = 100 * of_steps(r, "pipelining_efficiency")
    return v.step[#v.step]
  end
  for _ = 1, PAIRS do
    for i = 2, #VARIANTS do
      local base = note("lina_baseline", train(VARIANTS[1], efficiency))
      local v = by[VARIANTS[i].name]
      v.ratio[#v.ratio + 1] = base / note(VARIANTS[i].name, train(VARIANTS[i], efficiency))
    end
  end
  return by
end

local rows = { { "sharing efficiency", "variant", "step ms", "predicted", "speed-up",
  "least..most", "predicted", "a2a wait ms", "predicted", "transfer", "predicted", "efficiency",
  "predicted" } }
local losses = {}
for _, efficiency in ipairs(EFFICIENCIES) do
  local p, x = predicted(efficiency), executed(efficiency)
  for i, system in ipairs(VARIANTS) do
    local v, of = x[system.name], p[system.name]
    local least_most, speedup, expected = "", "", ""
    if i > 1 then
      speedup = v.ratio:median()
      least_most = ("%.3f..%.3f"):format(v.ratio:min(), v.ratio:max())
      expected = p.lina_baseline.iteration_ms / of.iteration_ms
      if v.ratio:median() < 1 then
        losses[#losses + 1] = ("%s at %.2f"):format(system.name, efficiency)
      end
    end
    rows[#rows + 1] = { efficiency, system.name, v.step:median(), of.iteration_ms, speedup,
      least_most, expected, v.wait:median(), of.a2a_wait_ms, v.transfer:median(),
      of.a2a_transfer_ms, v.busy:median(), 100 * of.pipelining_efficiency }
    local first = x.lina_baseline
    if i <= ONLY_ORDER and v.digest ~= first.digest then
      error(("%s: parameters differ from the baseline's"):format(system.name))
    end
    if math.abs(v.loss - first.loss) > 1e-5 * first.loss then
      error(("%s: a loss of %.9g, the baseline's is %.9g"):format(system.name, v.loss, first.loss))
    end
  end
  rows[#rows + 1] = {}
end

print(("\nEmulated: medians of %d interleaved pairs, %d steps each less the first"):format(PAIRS,
  STEPS))
print(moe.table(rows, { "%.2f", "", "%.1f", "%.1f", "%.3fx", "", "%.3fx", "%.1f", "%.1f", "%.1f",
  "%.1f", "%.0f%%", "%.0f%%" }))
print(("The first %d variants end with the same parameters, bit by bit; pipelining within rounding")
  :format(ONLY_ORDER))
print("Slower than the baseline: " .. (#losses > 0 and table.concat(losses, ", ") or "none"))
