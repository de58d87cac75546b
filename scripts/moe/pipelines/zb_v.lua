-- ZB-V of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): two stages per rank
-- in a V. No rank waits between its first and last turn if forwards and both gradients take equal
-- times. Memory is that of 1f1b.
return function(moe)
  return moe.policy.pipeline {
    name = "zb_v",
    doc = "no bubble inside a rank, two stages per rank in a V, for the memory of 1f1b (ZB-V, "
      .. "arXiv 2405.15362)",
    chunks = 2, fixed_chunks = true, placement = "v",
    turns = function(p, rank)
      local all, before = math.max(p.micro_batches, 2 * p.ranks - 1), rank - 1
      local behind = p.ranks - before
      -- How many turns there are so far, also of micro-batches that there are not.
      local done = { forward = { 0, 0 }, dx = { 0, 0 }, dw = { 0, 0 } }
      local function add(times, ...)
        for _ = 1, times do
          for _, turn in ipairs { ... } do
            local kind, chunk = turn:match "(%a+) (%d)"
            chunk = tonumber(chunk)
            local m = done[kind][chunk] + 1
            done[kind][chunk] = m
            if m <= p.micro_batches then p[kind](p, m, { chunk = chunk }) end
          end
        end
      end
      add(2 * behind - 1, "forward 1")
      add(before, "forward 2", "forward 1")
      add(behind, "forward 2", "dx 2", "dw 2")
      while done.forward[2] < all do
        if done.forward[1] < all then add(1, "forward 1") end
        add(1, "dx 1", "dw 1", "forward 2", "dx 2", "dw 2")
      end
      add(before, "dx 1", "dx 2")
      add(behind, "dx 1", "dw 1")
      add(all - done.dw[2], "dw 2")
      add(all - done.dw[1], "dw 1")
    end,
  }
end
