-- ZB-V of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): two stages per rank
-- in a V. No rank waits between its first and last turn if forwards and both gradients take equal
-- times. Memory is that of 1f1b.
return function(moe)
  return moe.policy.pipeline {
    name = "zb_v",
    doc = "no bubble inside a rank, two stages per rank in a V, for the memory of 1f1b (ZB-V, "
      .. "arXiv 2405.15362)",
    chunks = 2, placement = "v",
    turns = function(p, rank)
      if p.chunks ~= 2 then
        p:refuse("two_stages_a_rank", "the schedule has two stages per rank; give chunks = 2")
      end
      local all, before = math.max(p.micro_batches, 2 * p.ranks - 1), rank - 1
      -- How many turns of each kind there are so far, also of micro-batches that there are not.
      local done = { forward = { 0, 0 }, dx = { 0, 0 }, dw = { 0, 0 } }
      local function add(kind, chunk)
        local m = done[kind][chunk] + 1
        done[kind][chunk] = m
        if m <= p.micro_batches then p[kind](p, m, { chunk = chunk }) end
      end
      local function backward(chunk)
        add("dx", chunk)
        add("dw", chunk)
      end
      for _ = 1, 2 * (p.ranks - before) - 1 do add("forward", 1) end
      for _ = 1, before do
        add("forward", 2)
        add("forward", 1)
      end
      for _ = 1, p.ranks - before do
        add("forward", 2)
        backward(2)
      end
      while done.forward[2] < all do
        if done.forward[1] < all then add("forward", 1) end
        backward(1)
        add("forward", 2)
        backward(2)
      end
      for _ = 1, before do
        add("dx", 1)
        add("dx", 2)
      end
      for _ = 1, p.ranks - before do backward(1) end
      for chunk = 2, 1, -1 do
        while done.dw[chunk] < all do add("dw", chunk) end
      end
    end,
  }
end
