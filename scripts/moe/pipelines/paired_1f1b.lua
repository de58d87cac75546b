-- combined_1f1b for one stage per rank, which Megatron-LM does not offer.
return function(moe)
  return moe.policy.pipeline {
    name = "paired_1f1b", fixed_chunks = true,
    doc = "1f1b with each forward beside a backward: combined_1f1b with one stage per rank",
    turns = function(p, rank)
      local lead = math.min(2 * (p.ranks - rank) + 1, p.micro_batches)
      for k = 1, p.micro_batches + lead do
        if k <= p.micro_batches then p:forward(k, { beside = k > lead }) end
        if k > lead then p:backward(k - lead) end
      end
    end,
  }
end
