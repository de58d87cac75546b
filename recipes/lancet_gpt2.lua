-- Does it pay to run weight gradients (dW) during the all-to-alls? GPT-2-MoE under plain expert
-- parallelism (raf), the same with all-to-alls that send only real rows, DeepSpeed-MoE, Tutel and
-- Lancet's dW pass: simulated on the two clusters of the Lancet paper, and trained for real on two
-- CPU ranks over an emulated link.
local moe = require "moe"

-- RAF's compiled graphs run under the clusters' stack, raf_2023; the others are eager PyTorch.
local STACKS = { deepspeed = "deepspeed_2021", tutel = "tutel_2022" }

return moe.experiment {
  name = "lancet_gpt2",
  title = "GPT-2-MoE, Switch gate, two experts per device",
  over = { gpu = { "p4de", "p3dn" }, size = { "S", "L" }, nodes = { 2, 4, 8 } },
  -- --set all_reduce=after: the same all-reduce policy for all; --set reading=print: dtype, batches
  -- and capacity factor as far as the paper prints them, in place of the authors' artifact's.
  params = { all_reduce = "own", reading = "artifact" },
  case = function(p)
    if p.all_reduce ~= "own" and p.all_reduce ~= "after" then
      error("all_reduce = " .. p.all_reduce .. ": give own or after")
    end
    local reduce = p.all_reduce == "after"
      and { lane = "comm", place = "after", bucket_bytes = 25 * 2 ^ 20 } or nil
    local systems = {}
    for i, name in ipairs { "raf", "raf_irregular", "deepspeed", "tutel", "lancet" } do
      systems[i] = moe.system(name) { all_reduce = reduce, stack = STACKS[name] }
    end
    return {
      model = moe.model.lancet { size = p.size, gpu = p.gpu, reading = p.reading },
      cluster = moe.cluster[p.gpu] { nodes = p.nodes },
      systems = systems,
      optimizer = { lr = 0.02, momentum = 0.9 },
    }
  end,
  run = {
    "simulate",
    { "cpu", ranks = 2, steps = 12, link = { bytes_per_s = 1e8, latency_us = 20 },
      model = { name = "small", vocab = 256, layers = 4, moe_first = false, hidden = 256, heads = 8,
        seq = 128, batch_per_device = 8, capacity_factor = 1.25, attention = "fused" } },
  },
}
