-- GPipe (arXiv 1811.06965): all forwards, then all backwards.
return function(moe)
  return moe.policy.pipeline {
    name = "gpipe", fixed_chunks = true,
    doc = "all forwards, then all backwards (GPipe, arXiv 1811.06965)",
    turns = function(p)
      for m = 1, p.micro_batches do p:forward(m) end
      for m = 1, p.micro_batches do p:backward(m) end
    end,
  }
end
