-- Megatron-LM's --overlap-moe-expert-parallel-comm (d98e8a6, pipeline_parallel/combined_1f1b.py):
-- interleaved with one more forward before the first backward, so that a forward and a backward of
-- different micro-batches can run beside each other and one hides the other's all-to-alls.
local function check(p, group)
  local rest = p.micro_batches % group
  if p.ranks == 1 then
    if p.chunks == 1 then return end
    p:refuse("one_rank_one_stage", "there is 1 rank; give chunks = 1")
  elseif p.chunks < 2 then
    p:refuse("needs_virtual_stages", "give chunks = 2 or more, or take 'paired_1f1b'")
  elseif group < p.ranks then
    p:refuse("group_below_ranks", ("group = %d; give at least %d, the ranks"):format(group,
      p.ranks))
  elseif group > p.micro_batches then
    p:refuse("group_above_micro_batches", ("group = %d; give at most %d, the micro-batches"):format(
      group, p.micro_batches))
  elseif rest > 0 and rest < p.ranks then
    p:refuse("short_last_group", ("%d micro-batches are left, fewer than the %d ranks; give a "
      .. "multiple of %d"):format(rest, p.ranks, group))
  end
end

return function(moe)
  return moe.policy.pipeline {
    name = "combined_1f1b",
    doc = "interleaved with each forward beside a backward (Megatron-LM d98e8a6, "
      .. "--overlap-moe-expert-parallel-comm)",
    chunks = 2, params = { group = 0 },
    turns = function(p, rank, o)
      local group, size = o.group > 0 and o.group or p.ranks, p.micro_batches * p.chunks
      check(p, group)
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
