-- Megatron-LM's --overlap-moe-expert-parallel-comm (d98e8a6, pipeline_parallel/combined_1f1b.py):
-- interleaved with one more forward before the first backward, so that a forward and a backward of
-- different micro-batches can run beside each other and one hides the other's all-to-alls.
local function check(p, group)
  local rest = p.micro_batches % group
  if p.ranks == 1 then
    if p.chunks == 1 then return end
    p:refuse("one_rank_one_stage", "one rank has one stage; give chunks = 1")
  elseif p.chunks < 2 then
    p:refuse("needs_virtual_stages", "interleaving needs at least 2 stages per rank; give chunks = "
      .. "2 or more, or take 'paired_1f1b'")
  elseif group < p.ranks then
    p:refuse("group_below_ranks", ("the group of %d micro-batches is smaller than the %d ranks")
      :format(group, p.ranks))
  elseif group > p.micro_batches then
    p:refuse("group_above_micro_batches", ("the group of %d micro-batches is larger than all %d")
      :format(group, p.micro_batches))
  elseif rest > 0 and rest < p.ranks then
    p:refuse("short_last_group", ("the last group has %d micro-batches; give a multiple of %d, or "
      .. "at least %d more"):format(rest, group, p.ranks - rest))
  end
end

return function(moe)
  return moe.policy.pipeline {
    name = "combined_1f1b",
    doc = "interleaved with each forward beside a backward (Megatron-LM d98e8a6, "
      .. "--overlap-moe-expert-parallel-comm, combined_1f1b.py)",
    chunks = 2, params = { group = 0 },
    turns = function(p, rank, o)
      local group = o.group > 0 and o.group or p.ranks
      check(p, group)
      -- Micro-batch and chunk of forward k: groups of micro-batches pass all chunks.
      local function at(k)
        local first = math.floor((k - 1) / (group * p.chunks)) * group
        local width, i = math.min(group, p.micro_batches - first), k - 1 - first * p.chunks
        return first + i % width + 1, math.floor(i / width) + 1
      end
      local size = p.micro_batches * p.chunks
      local lead = math.min((p.chunks - 1) * group + 2 * (p.ranks - rank) + 1, size)
      for k = 1, size + lead do
        if k <= size then
          local m, chunk = at(k)
          p:forward(m, { chunk = chunk, beside = k > lead })
        end
        if k > lead then
          local m, chunk = at(k - lead)
          p:backward(m, { chunk = p.chunks + 1 - chunk })
        end
      end
    end,
  }
end
