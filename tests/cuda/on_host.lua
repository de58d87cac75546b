-- The program with the plugin that runs on the host: a small model trained by the executor "cuda"
-- has the losses and the routing of CPU ranks in float64. tests/gpu/executor.lua asks more, of a
-- GPU. Lina's inference brings experts to where they predict what CPU ranks predict.
local moe = require "moe"

local function train(t)
  return moe.train { ranks = 2, steps = 2, init = "reference", tokens = "reference",
    model = moe.model.gpt2_moe { vocab = 32, layers = 2, hidden = 16, heads = 2, seq = 8, batch = 4,
      experts = 4, gate = t.gate, capacity_factor = 1 },
    executor = t.executor, precision = t.precision, system = moe.system(t.system or "raf") {},
    link = t.link }
end

for _, gate in ipairs { "switch", "top2", "expert_choice" } do
  for _, system in ipairs { "raf", "lancet_dw", "deepspeed" } do
    local cpu = train { gate = gate, executor = "cpu", precision = "f64" }
    local cuda = train { gate = gate, executor = "cuda", system = system }
    for step, loss in ipairs(cpu.losses) do
      local off = math.abs(cuda.losses[step] - loss)
      assert(off < 1e-5, ("%s, %s: the loss is off by %g"):format(gate, system, off))
      for layer, stats in ipairs(cpu.moe[step]) do
        assert(stats.checksum == cuda.moe[step][layer].checksum, gate .. ", " .. system)
      end
    end
  end
end
local cpu = train { gate = "switch", executor = "cpu", precision = "f64" }
for _, system in ipairs { "deepspeed", "lina_priority" } do -- two lanes that meet, or take turns
  local cuda = train { gate = "switch", executor = "cuda", system = system,
    link = { bytes_per_s = 1e9, latency_us = 5 } }
  assert(cuda.provenance == "emulated")
  for step, loss in ipairs(cpu.losses) do
    local off = math.abs(cuda.losses[step] - loss)
    assert(off < 1e-5, ("%s on a link: the loss is off by %g"):format(system, off))
  end
end
local bf16 = train { gate = "switch", executor = "cuda", precision = "bf16" }
for step, loss in ipairs(cpu.losses) do
  local off = math.abs(bf16.losses[step] - loss)
  assert(off > 1e-7 and off < 1e-2, ("bf16: the loss is off by %g"):format(off))
end
for layer, stats in ipairs(cpu.moe[1]) do
  assert(stats.checksum == bf16.moe[1][layer].checksum, "bf16: other experts")
end

local served = moe.model.gpt2_moe { vocab = 32, layers = 2, moe_every = 1, hidden = 16, heads = 2,
  seq = 8, batch = 4, experts = 4, gate = "switch", capacity_factor = 1 }
local function infer(t)
  t.model, t.ranks, t.tokens = served, 2, "reference"
  return moe.infer(t)
end
local plain = infer { batches = 2, record = "on_host.trace" }
local lina = { batches = 2, popularity = moe.lina.popularity { routing = plain.record, path = 1 },
  system = moe.system "lina_path_1" { moe.pass.lina_inference { path = 1 } } }
local function swapped(executor, precision)
  lina.executor, lina.precision = executor, precision
  return infer(lina)
end
local on_cpu, on_cuda = swapped "cpu", swapped "cuda"
assert(on_cpu.digest == plain.digest and on_cuda.digest == plain.digest, "other predictions")
assert(on_cuda.provenance == "measured" and on_cuda.peak_bytes < on_cpu.peak_bytes)
for batch, layers in ipairs(on_cpu.rows) do
  assert(math.abs(on_cuda.losses[batch] - on_cpu.losses[batch]) < 1e-5, "inference: other losses")
  for layer, ranks in ipairs(layers) do
    assert(on_cuda.placed_again[batch][layer] == on_cpu.placed_again[batch][layer])
    for rank, rows in ipairs(ranks) do
      assert(on_cuda.rows[batch][layer][rank] == rows, "inference: other placements")
    end
  end
end
local narrow = swapped("cuda", "bf16")
local of_owners = infer { batches = 2, executor = "cuda", precision = "bf16" }
assert(narrow.digest == of_owners.digest, "bf16: predictions depend on where experts are")
assert(math.abs(narrow.losses[1] - on_cpu.losses[1]) < 1e-2, "bf16: other losses")
print "the executor cuda on the host's emulation agrees with CPU ranks"
