-- ZB-H2 of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241; ZB2P in its code) in its regular
-- form: twice the forwards of 1f1b lead, and the gradients of weights are late by twice as many
-- backwards as ranks come before.
return function(moe)
  return moe.policy.pipeline {
    name = "zb_h2", fixed_chunks = true,
    doc = "no bubble inside a rank for the memory of twice as many micro-batches (ZB-H2, "
      .. "arXiv 2401.10241)",
    turns = function(p, rank)
      local n, lead, late = p.micro_batches, math.min(2 * (p.ranks - rank), p.micro_batches),
        2 * (rank - 1)
      for k = 1, n + lead + late do
        if k <= n then p:forward(k) end
        if k > lead and k <= n + lead then p:dx(k - lead) end
        if k > lead + late then p:dw(k - lead - late) end
      end
    end,
  }
end
