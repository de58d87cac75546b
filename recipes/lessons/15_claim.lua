-- Lesson 15. Does a published figure come out here, and if not, why? Lina (USENIX ATC 2023) says in
-- its figure 14 that priority and micro-ops make a step 1.42 times as fast with 16 experts.
-- Run it: build/release/moebench run recipes/lessons/15_claim.lua  (five seconds)
-- Try next: `moebench list claims` and another figure; sharing_efficiency = 0.7 of the cluster;
-- band = "none"; the claim without its bound.
local moe = require "moe"

local function gain(R) return R:ratio { "iteration_ms", of = "lina_partition",
  to = "lina_baseline" }:mean() end

return moe.experiment {
  name = "claim",
  over = { size = { "transformer_xl", "gpt2", "bert2gpt2" } },
  case = function(p) return {
    model = moe.model.lina { size = p.size },             -- what the paper does not say is assumed
    cluster = moe.cluster.lina { nodes = 4 },             -- with a band: batch, links, rates
    systems = { moe.system "lina_baseline" {}, moe.system "lina_partition" {} } } end,
  claims = { moe.claim { id = "lina-081-16", value = gain,
    neutral = 1,                                            -- a speed-up of 1 is no effect
    within = 0.25,                                          -- near: within a quarter of the effect
    bound_by = "no order of the same ops is shorter than their lower bound",
    bound = function(R)
      local base = R:where { system = "lina_baseline" }:get "iteration_ms"
      local least = R:where { system = "lina_partition" }:get "lower_bound_ms"
      return (base[1] / least[1] + base[2] / least[2] + base[3] / least[3]) / 3
    end } },
}
