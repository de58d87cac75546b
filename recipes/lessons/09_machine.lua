-- Lesson 9. What would this machine do, and several of it? `moebench calibrate` (15 s) measures
-- GEMMs, memory and collectives, and writes a file that moe.machine reads as the fields of a
-- cluster. two_cores.machine is such a file; give your own by --set.
-- Run it: build/release/moebench run recipes/lessons/09_machine.lua  (under a second)
-- Try next: build/release/moebench calibrate --out recipes/lessons/mine.machine, then --set
-- file=mine.machine; 16 nodes; print(moe.machine("two_cores.machine").device.name).
local moe = require "moe"

return moe.experiment {
  name = "machine",
  params = { file = "two_cores.machine" },
  over = { network = { "none", "1_gbit", "10_gbit" } },
  case = function(p)
    local machine = moe.machine(p.file)
    if p.network ~= "none" then
      machine.nodes = 4                                     -- four of it, joined by a network
      machine.nic = { bytes_per_s = p.network == "1_gbit" and 0.125e9 or 1.25e9, latency_us = 30 }
      machine.collectives = nil                             -- were measured inside one
    end
    return { cluster = moe.cluster.custom(machine),
      model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 128, heads = 4, seq = 64,
        batch_per_device = 8, experts_per_device = 2 },
      systems = { moe.system "raf" {}, moe.system "lancet" {} } }
  end,
  run = { "simulate" },
}
