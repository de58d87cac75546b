-- GPipe (arXiv 1811.06965): all forwards, then all backwards.
return function(moe)
  return moe.policy.pipeline {
    name = "gpipe",
    doc = "all forwards, then all backwards (GPipe, arXiv 1811.06965)",
    turns = function(p)
      if p.chunks ~= 1 then
        p:refuse("one_stage_a_rank", "the schedule has one stage per rank; give chunks = 1, or "
          .. "take 'looped_bfs'")
      end
      for m = 1, p.micro_batches do p:forward(m) end
      for m = 1, p.micro_batches do p:backward(m) end
    end,
  }
end
