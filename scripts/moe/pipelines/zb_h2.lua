-- ZB-H2 in its regular form, which the code of arXiv 2401.10241 calls ZB2P.
return function(moe)
  return moe.policy.pipeline {
    name = "zb_h2", fixed_chunks = true,
    doc = "no bubble inside a rank for twice the memory of 1f1b (ZB-H2, arXiv 2401.10241)",
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
