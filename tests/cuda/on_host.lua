-- The program with the plugin that runs on the host: a small model trained by the executor "cuda"
-- has the losses and the routing of CPU ranks in float64. tests/gpu/executor.lua asks more, of a
-- GPU.
local moe = require "moe"

local function train(t)
  return moe.train { ranks = 2, steps = 2, init = "reference", tokens = "reference",
    model = moe.model.gpt2_moe { vocab = 32, layers = 2, hidden = 16, heads = 2, seq = 8, batch = 4,
      experts = 4, gate = t.gate, capacity_factor = 1 },
    executor = t.executor, precision = t.precision, system = moe.system(t.system or "raf") {} }
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
local bf16 = train { gate = "switch", executor = "cuda", precision = "bf16" }
for step, loss in ipairs(cpu.losses) do
  local off = math.abs(bf16.losses[step] - loss)
  assert(off > 1e-7 and off < 1e-2, ("bf16: the loss is off by %g"):format(off))
end
for layer, stats in ipairs(cpu.moe[1]) do
  assert(stats.checksum == bf16.moe[1][layer].checksum, "bf16: other experts")
end
print "the executor cuda on the host's emulation agrees with CPU ranks"
