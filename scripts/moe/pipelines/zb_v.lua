-- No rank waits between its first and last turn if forwards and both gradients take equal times.
local METHODS = { F = "forward", I = "dx", W = "dw" }

return function(moe)
  return moe.policy.pipeline {
    name = "zb_v",
    doc = "no bubble inside a rank, in a V, for the memory of 1f1b (ZB-V, arXiv 2405.15362)",
    chunks = 2, fixed_chunks = true, placement = "v",
    turns = function(p, rank)
      local all, before = math.max(p.micro_batches, 2 * p.ranks - 1), rank - 1
      local behind = p.ranks - before
      -- How many turns there are so far, also of micro-batches that there are not.
      local counts = { F1 = 0, F2 = 0, I1 = 0, I2 = 0, W1 = 0, W2 = 0 }
      local function add(times, turns)
        for turn, work, chunk in turns:rep(times):gmatch "((%u)(%d))" do
          counts[turn] = counts[turn] + 1
          if counts[turn] <= p.micro_batches then
            p[METHODS[work]](p, counts[turn], { chunk = tonumber(chunk) })
          end
        end
      end
      add(2 * behind - 1, "F1")
      add(before, "F2 F1")
      add(behind, "F2 I2 W2")
      while counts.F2 < all do add(1, (counts.F1 < all and "F1" or "") .. "I1 W1 F2 I2 W2") end
      add(before, "I1 I2")
      add(behind, "I1 W1")
      add(all - counts.W2, "W2")
      add(all - counts.W1, "W1")
    end,
  }
end
