-- GPipe over several stages per rank, also in PyTorch (ScheduleLoopedBFS). The backwards are the
-- exact mirror of the forwards, so that micro-batches descend in them.
return function(moe)
  return moe.policy.pipeline {
    name = "looped_bfs",
    doc = "forwards stage by stage, then backwards in reverse (breadth-first, arXiv 2211.05953)",
    chunks = 2,
    turns = function(p)
      for chunk = 1, p.chunks do
        for m = 1, p.micro_batches do p:forward(m, { chunk = chunk }) end
      end
      for chunk = p.chunks, 1, -1 do
        for m = p.micro_batches, 1, -1 do p:backward(m, { chunk = chunk }) end
      end
    end,
  }
end
