-- Megatron-LM's --overlap-moe-expert-parallel-comm (d98e8a6, pipeline_parallel/combined_1f1b.py):
-- interleaved with one more forward before the first backward, so that a forward and a backward of
-- different micro-batches can run beside each other and one hides the other's all-to-alls.
return function(moe)
  return moe.policy.pipeline {
    name = "combined_1f1b",
    doc = "interleaved with each forward beside a backward (Megatron-LM d98e8a6, "
      .. "--overlap-moe-expert-parallel-comm)",
    chunks = 2, params = { group = 0 },
    turns = function(p, rank, o)
      if p.ranks == 1 and p.chunks > 1 then
        p:refuse("one_rank_one_stage", "there is 1 rank; give chunks = 1")
      elseif p.ranks > 1 and p.chunks == 1 then
        p:refuse("needs_virtual_stages", "give chunks = 2 or more, or take 'paired_1f1b'")
      end
      local group, size = o.group, p.micro_batches * p.chunks
      local lead = math.min((p.chunks - 1) * group + 2 * (p.ranks - rank) + 1, size)
      -- Returns micro-batch and chunk of forward k: groups of micro-batches pass all chunks.
      local function step(k)
        local first = math.floor((k - 1) / (group * p.chunks)) * group
        local width, i = math.min(group, p.micro_batches - first), k - 1 - first * p.chunks
        return first + i % width + 1, math.floor(i / width) + 1
      end
      for k = 1, size + lead do
        if k <= size then
          local m, chunk = step(k)
          p:forward(m, { chunk = chunk, beside = k > lead })
        end
        if k > lead then
          local m, chunk = step(k - lead)
          p:backward(m, { chunk = p.chunks + 1 - chunk })
        end
      end
    end,
  }
end
