-- The question of Lancet's figure 14 on this machine: how far is a step's predicted time from the
-- executed time? Fourteen configurations run on CPU ranks over an emulated link; each prediction is
-- frozen before its run begins. A prediction uses ops profiled alone and in-step factors from
-- rehearsed steps of the plain program over another link (README.md in this folder states on which
-- measurements each prediction is based); the prediction without these factors is shown too. The
-- runs are emulated, so their errors are not comparable with the paper's 3.83% on GPUs.
local moe = require "moe"

local MODELS = {
  wide = { layers = 4, hidden = 256, heads = 8, seq = 128, batch_per_device = 8 },
  long = { layers = 4, hidden = 128, heads = 4, seq = 128, batch_per_device = 32 },
  deep = { layers = 8, hidden = 128, heads = 4, seq = 64, batch_per_device = 16 },
}

-- Cases: model, gate, ranks, bytes per second of the link.
local CASES = {
  { "wide", "random", 1 }, { "long", "switch", 1 },
  { "wide", "random", 2, 4e8 }, { "wide", "random", 2, 1e8 }, { "wide", "bpr", 2, 1e8 },
  { "wide", "switch", 2, 2e8 }, { "long", "random", 2, 4e8 }, { "long", "random", 2, 1e8 },
  { "long", "random", 2, 5e7 }, { "long", "switch", 2, 1e8 }, { "deep", "random", 2, 2e8 },
  { "deep", "random", 2, 1e8 }, { "deep", "random", 2, 5e7 }, { "deep", "bpr", 2, 1e8 },
}
local STEPS, EXPERTS = 12, 4

local function model_of(name, gate)
  return moe.model.gpt2_moe(moe.merged(MODELS[name],
    { name = name, vocab = 256, experts = EXPERTS, gate = gate }))
end

-- Errors of predictions in percent: of the step's time (all systems, raf, lancet), of the exposed
-- communication, and of the step's time when predicted from ops alone, without in-step factors.
local errors = {}
for _, of in ipairs { "all", "raf", "lancet", "exposed", "alone" } do errors[of] = moe.values {} end
local function percent_off(executed, predicted) return 100 * (executed / predicted - 1) end
local function note(list, off) list[#list + 1] = math.abs(off) end

local rows, much_comm = {}, 0
for _, case in ipairs(CASES) do
  local name, gate, ranks, rate = unpack(case)
  local R = moe.run(moe.experiment { name = ("fig14_%s_%s_%d"):format(name, gate, ranks),
    model = model_of(name, gate), optimizer = { lr = 0.02 },
    systems = { moe.system "raf" {}, moe.system "lancet" {} },
    run = { { "cpu", ranks = ranks, steps = STEPS,
      link = rate and { bytes_per_s = rate, latency_us = 20 } or nil } } })
  local heavy = false
  for run in R:each() do
    local p = run.prediction
    local off = percent_off(run.iteration_ms, p.iteration_ms)
    local alone = percent_off(run.iteration_ms, p.ops_alone.iteration_ms)
    local share = run.comm_ms / run.iteration_ms
    heavy = heavy or share >= 0.3
    note(errors.all, off)
    note(errors[run.system], off)
    note(errors.alone, alone)
    if rate then note(errors.exposed, percent_off(run.exposed_comm_ms, p.exposed_comm_ms)) end
    rows[#rows + 1] = ("%-5s %-7s %d %7s  %-7s %4.0f%%  %8.1f %9.1f %+6.1f%% %+6.1f%%  %8.1f %9.1f")
      :format(name, gate, ranks, rate and ("%.0f"):format(rate / 1e6) or "-", run.system,
        100 * share, run.iteration_ms, p.iteration_ms, off, alone, run.exposed_comm_ms,
        p.exposed_comm_ms)
  end
  much_comm = much_comm + (heavy and 1 or 0)
end

print "\nEmulated on this machine; medians over the steps after the first, ms"
print "model gate ranks  MB/s  system  comm  executed predicted   error   alone   exposed predicted"
print(table.concat(rows, "\n"))
print(("\n%d configurations, %d of them with 30%% communication or more, %d runs")
  :format(#CASES, much_comm, #errors.all))
print(("Median error of the iteration time: %.1f%%, worst %.1f%% (paper, on GPUs: 3.83%%)")
  :format(errors.all:median(), errors.all:max()))
print(("raf, whose kinds of op were rehearsed: %.1f%%; lancet, whose parts were not: %.1f%%")
  :format(errors.raf:median(), errors.lancet:median()))
print(("From ops alone, without in-step factors: %.1f%%, worst %.1f%%")
  :format(errors.alone:median(), errors.alone:max()))
print(("Median error of the exposed communication on links: %.1f%%")
  :format(errors.exposed:median()))
