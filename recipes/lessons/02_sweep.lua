-- Lesson 2. Does the answer of lesson 1 depend on the number of nodes and on the batch? `over`
-- gives lists; every combination of their values is a point, and `case` makes the experiment of a
-- point. `show` prints what we want to see of the results instead of the usual table.
-- Run it: build/release/moebench run recipes/lessons/02_sweep.lua  (under a second)
-- Try next: --set nodes=4 runs two of the six points; gpu = { "p4de", "p3dn" } as a third list,
-- with moe.cluster[p.gpu]; run.exposed_comm_ms in a cell.
local moe = require "moe"

return moe.experiment {
  name = "sweep",
  over = { nodes = { 2, 4, 8 }, batch = { 8, 24 } },
  case = function(p) return {
    model = moe.model.gpt2_moe { layers = 12, hidden = 768, heads = 12, seq = 512,
      batch_per_device = p.batch, experts_per_device = 2 },
    cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "lancet" {} } } end,
  show = function(R)
    print(R:table { rows = { "batch", "nodes" }, cols = "system",
      cell = function(run) return ("%.1f ms"):format(run.iteration_ms) end })
    local gain = R:ratio { "iteration_ms", of = "lancet", to = "raf" }
    print(("lancet is %.2f to %.2f times as fast as raf, %.2f in the mean"):format(gain:min(),
      gain:max(), gain:mean()))
  end,
  run = { "simulate" },
}
