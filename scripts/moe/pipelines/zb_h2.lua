-- ZB-H2 of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241; ZB2P in its code) in its regular
-- form: twice the forwards of 1f1b lead, and the gradients of weights are late by twice as many
-- backwards as ranks come before.
return function(moe)
  return moe.policy.pipeline {
    name = "zb_h2",
    doc = "no bubble inside a rank for the memory of twice as many micro-batches (ZB-H2, "
      .. "arXiv 2401.10241)",
    turns = function(p, rank)
      if p.chunks ~= 1 then
        p:refuse("one_stage_a_rank", "the schedule has one stage per rank; give chunks = 1")
      end
      local before, late = math.min(2 * (p.ranks - rank), p.micro_batches), 2 * (rank - 1)
      for m = 1, before do p:forward(m) end
      for m = 1, p.micro_batches do
        if m + before <= p.micro_batches then p:forward(m + before) end
        p:dx(m)
        if m > late then p:dw(m - late) end
      end
      for m = math.max(1, p.micro_batches - late + 1), p.micro_batches do p:dw(m) end
    end,
  }
end
