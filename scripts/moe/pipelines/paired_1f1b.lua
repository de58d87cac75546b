-- combined_1f1b for one stage per rank, which Megatron-LM does not offer: one more forward than in
-- 1f1b leads, and each further forward runs beside a backward.
return function(moe)
  return moe.policy.pipeline {
    name = "paired_1f1b",
    doc = "1f1b with each forward beside a backward: combined_1f1b with one stage per rank (after "
      .. "Megatron-LM d98e8a6, combined_1f1b.py)",
    turns = function(p, rank)
      if p.chunks ~= 1 then
        p:refuse("one_stage_a_rank", "the schedule has one stage per rank; give chunks = 1, or "
          .. "take 'combined_1f1b'")
      end
      local before = math.min(2 * (p.ranks - rank) + 1, p.micro_batches)
      for m = 1, before do p:forward(m) end
      for m = before + 1, p.micro_batches do
        p:forward(m, { beside = true })
        p:backward(m - before)
      end
      for m = p.micro_batches - before + 1, p.micro_batches do p:backward(m) end
    end,
  }
end
