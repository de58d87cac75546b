-- The executor "cuda" against CPU ranks, in one process: the reference model with every gate, the
-- systems that recipes/lancet_gpt2.lua compares and what they cost, Lina's inference. Prints a line
-- a check and ends with an error where one fails. run.sh runs it; MOEBENCH_CUDA_PLUGIN may name
-- another plugin.
local moe = require "moe"

local RANKS, STEPS = 2, 3
local GATES = { "switch", "bpr", "top2", "top2_c1", "expert_choice", "hash", "random" }
-- Systems whose steps hold the same sums, in another order at most: the same bits.
local SAME_BITS = { "raf_rows", "lancet_dw" }
local OTHERS = { "deepspeed", "tutel", "lancet" }

local failed = 0

local function report(holds, what, ...)
  if not holds then failed = failed + 1 end
  print(("%-6s %s"):format(holds and "ok" or "FAILED", what:format(...)))
end

local function model(gate)
  return moe.model.gpt2_moe { vocab = 512, layers = 4, hidden = 128, heads = 4, seq = 64, batch = 8,
    experts = 4, gate = gate, capacity_factor = 1.25 }
end

local function train(t)
  return moe.train { model = model(t.gate), ranks = RANKS, steps = t.steps or STEPS,
    init = "reference", tokens = "reference", executor = t.executor, precision = t.precision,
    attention = t.attention, system = t.system and moe.system(t.system) {}, link = t.link,
    optimizer = { name = "sgd", lr = 0.1, momentum = 0.9 } }
end

-- The largest difference of losses; whether all assignments and drops are equal.
local function compare(a, b)
  local worst, same = 0, true
  for step, loss in ipairs(a.losses) do
    worst = math.max(worst, math.abs(loss - b.losses[step]))
    for layer, stats in ipairs(a.moe[step]) do
      local other = b.moe[step][layer]
      same = same and stats.checksum == other.checksum and stats.dropped == other.dropped
    end
  end
  return worst, same
end

local function check_gates()
  for _, gate in ipairs(GATES) do
    local reference = train { gate = gate, executor = "cpu", precision = "f64" }
    local worst, same = compare(train { gate = gate, executor = "cuda" }, reference)
    report(worst < 1e-5 and same, "%s: losses within %.1e of float64 (limit 1e-5), routing %s",
      gate, worst, same and "equal" or "differs")
  end
end

local function check_systems()
  local digests = {}
  local plain = train { gate = "switch", executor = "cpu" }
  for _, system in ipairs(SAME_BITS) do
    local r = train { gate = "switch", executor = "cuda", system = system }
    digests[#digests + 1] = r.digest
    local worst, same = compare(r, plain)
    report(worst < 1e-5 and same, "%s: losses within %.1e of CPU ranks", system, worst)
  end
  report(digests[1] == digests[2], "%s: the same parameters, bit by bit",
    table.concat(SAME_BITS, ", "))
  for _, system in ipairs(OTHERS) do
    local r = train { gate = "switch", executor = "cuda", system = system }
    local worst, same = compare(r, plain)
    report(worst < 1e-4 and same, "%s: losses within %.1e of plain CPU ranks, routing %s", system,
      worst, same and "equal" or "differs")
  end
end

-- Transfers of two lanes share the emulated link, or take turns on it.
local function check_link()
  local plain = train { gate = "switch", executor = "cpu" }
  for _, system in ipairs { "deepspeed", "tutel", "lina_priority" } do
    local r = train { gate = "switch", executor = "cuda", system = system,
      link = { bytes_per_s = 5e9, latency_us = 10 } }
    local worst, same = compare(r, plain)
    report(worst < 1e-4 and same and r.provenance == "emulated",
      "%s on an emulated link: losses within %.1e of plain CPU ranks, routing %s", system, worst,
      same and "equal" or "differs")
  end
end

local function check_bf16()
  local reference = train { gate = "switch", executor = "cpu", precision = "f64" }
  for _, kernels in ipairs { "cudnn", "own" } do
    local function run()
      return train { gate = "switch", executor = "cuda", precision = "bf16", attention = kernels }
    end
    local bf16 = run()
    local worst = compare(bf16, reference)
    report(worst > 1e-6 and worst < 1e-2,
      "bf16, attention %s: losses within %.1e of float64 (limit 1e-2)", kernels, worst)
    report(run().digest == bf16.digest, "bf16, attention %s: a second run has the same bits",
      kernels)
  end
end

local function infer(executor, t)
  return moe.infer { model = model "switch", ranks = RANKS, batches = STEPS, tokens = "reference",
    executor = executor, record = t.record, system = t.system, popularity = t.popularity }
end

local function check_inference()
  local plain = infer("cpu", { record = "executor.trace" })
  local lina = { system = moe.system "lina_path_1" { moe.pass.lina_inference { path = 1 } },
    popularity = moe.lina.popularity { routing = plain.record, path = 1 } }
  local cpu, cuda = infer("cpu", lina), infer("cuda", lina)
  local worst, same = compare(cuda, cpu)
  report(worst < 1e-5 and same, "lina's inference: losses within %.1e of CPU ranks", worst)
  report(cuda.digest == infer("cuda", {}).digest, "predictions do not depend on where experts are")
  report(cuda.peak_bytes < cpu.peak_bytes, "experts are in host memory alone")
end

check_gates()
check_systems()
check_link()
check_bf16()
check_inference()
assert(failed == 0, failed .. " checks failed")
