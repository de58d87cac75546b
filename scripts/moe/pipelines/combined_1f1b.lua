-- Megatron-LM's --overlap-moe-expert-parallel-comm (d98e8a6, pipeline_parallel/combined_1f1b.py):
-- interleaved with one more forward before the first backward, so that a forward and a backward of
-- different micro-batches can run beside each other and one hides the other's all-to-alls.

-- Returns the steps of a rank's forwards, { micro-batch, chunk }: in groups of micro-batches that
-- pass all chunks. The backwards take the same steps with chunks from the last to the first.
local function steps(p, group)
  local out = {}
  for first = 1, p.micro_batches, group do
    for chunk = 1, p.chunks do
      for m = first, math.min(first + group - 1, p.micro_batches) do
        out[#out + 1] = { m, chunk }
      end
    end
  end
  return out
end

local function check(p, group)
  if p.ranks == 1 then
    if p.chunks == 1 then return end
    p:refuse("one_rank_one_stage", "one rank has one stage; give chunks = 1")
  end
  if p.chunks < 2 then
    p:refuse("needs_virtual_stages", "interleaving needs at least 2 stages per rank; give chunks = "
      .. "2 or more, or take 'paired_1f1b'")
  end
  local rest = p.micro_batches % group
  if group < p.ranks then
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
    chunks = 2,
    params = { group = 0 },
    prepare = function(p, o)
      local group = o.group > 0 and o.group or p.ranks
      check(p, group)
      return steps(p, group)
    end,
    turns = function(p, rank, o, order)
      local group = o.group > 0 and o.group or p.ranks
      local before = math.min((p.chunks - 1) * group + 2 * (p.ranks - rank) + 1, #order)
      local function forward(k, beside)
        p:forward(order[k][1], { chunk = order[k][2], beside = beside })
      end
      local function backward(k)
        p:backward(order[k][1], { chunk = p.chunks + 1 - order[k][2] })
      end
      for k = 1, before do forward(k) end
      for k = before + 1, #order do
        forward(k, true)
        backward(k - before)
      end
      for k = #order - before + 1, #order do backward(k) end
    end,
  }, { group = "micro-batches of a group, at least as many as ranks; 0: as many" }
end
