-- The executor "cuda" against CPU ranks, in one process: a model of given sizes with every gate,
-- the systems that recipes/lancet_gpt2.lua compares and what they cost, Lina's inference. Prints a
-- line a check and ends with an error where one fails. executor.lua runs it with the reference
-- model, on_host.lua in small; MOEBENCH_CUDA_PLUGIN may name another plugin.
local moe = require "moe"

local RANKS, STEPS = 2, 3
local GATES = { "switch", "bpr", "top2", "top2_c1", "expert_choice", "hash", "random" }
-- Systems whose steps hold the same sums, in another order at most: the same bits.
local SAME_BITS = { "raf_rows", "lancet_dw" }
local OTHERS = { "deepspeed", "tutel", "lancet" }

local sizes
local failed = 0

local function report(holds, what, ...)
  if not holds then failed = failed + 1 end
  print(("%-6s %s"):format(holds and "ok" or "FAILED", what:format(...)))
end

local function model(gate, moe_every)
  local t = { gate = gate, moe_every = moe_every }
  for field, value in pairs(sizes) do t[field] = value end
  return moe.model.gpt2_moe(t)
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
    local routed = true  -- in the first step as in float64
    for layer, stats in ipairs(reference.moe[1]) do
      routed = routed and stats.checksum == bf16.moe[1][layer].checksum
    end
    report(worst > 1e-7 and worst < 1e-2 and routed,
      "bf16, attention %s: losses within %.1e of float64 (limit 1e-2)", kernels, worst)
    report(run().digest == bf16.digest, "bf16, attention %s: a second run has the same bits",
      kernels)
  end
end

local function infer(executor, t)
  return moe.infer { model = model("switch", 1), ranks = RANKS, batches = STEPS,
    tokens = "reference", executor = executor, precision = t.precision, record = t.record,
    system = t.system, popularity = t.popularity }
end

-- Whether experts were placed again, and rows sent, alike.
local function placed_alike(a, b)
  for batch, layers in ipairs(a.rows) do
    for layer, ranks in ipairs(layers) do
      if a.placed_again[batch][layer] ~= b.placed_again[batch][layer] then return false end
      for rank, rows in ipairs(ranks) do
        if b.rows[batch][layer][rank] ~= rows then return false end
      end
    end
  end
  return true
end

local function check_inference()
  local plain = infer("cpu", { record = "executor.trace" })
  local lina = { system = moe.system "lina_path_1" { moe.pass.lina_inference { path = 1 } },
    popularity = moe.lina.popularity { routing = plain.record, path = 1 } }
  local cpu, cuda = infer("cpu", lina), infer("cuda", lina)
  local worst = 0
  for batch, loss in ipairs(cpu.losses) do
    worst = math.max(worst, math.abs(loss - cuda.losses[batch]))
  end
  report(worst < 1e-5 and placed_alike(cpu, cuda),
    "lina's inference: losses within %.1e of CPU ranks, experts where theirs are", worst)
  report(cuda.digest == infer("cuda", {}).digest, "predictions do not depend on where experts are")
  report(cuda.peak_bytes < cpu.peak_bytes, "experts are in host memory alone")
  lina.precision = "bf16"
  local narrow = infer("cuda", lina)
  report(narrow.digest == infer("cuda", { precision = "bf16" }).digest
    and math.abs(narrow.losses[1] - cpu.losses[1]) < 1e-2, "neither do they in bf16")
end

return function(given)
  sizes = given
  check_gates()
  check_systems()
  check_link()
  check_bf16()
  check_inference()
  assert(failed == 0, failed .. " checks failed")
end
