-- DualPipe (arXiv 2412.19437; deepseek-ai/DualPipe 3da1bbe, dualpipe.py): micro-batches enter at
-- both ends of the ranks, so that each rank holds two stages and runs the forward of one way beside
-- the backward of the other. The steps have the numbers of dualpipe.py.
local METHODS = { F = "forward", B = "backward", I = "dx" }

local function check(p)
  if p.ranks % 2 ~= 0 then
    p:refuse("odd_ranks", ("there are %d ranks; give an even number"):format(p.ranks))
  elseif p.micro_batches % 2 ~= 0 then
    p:refuse("odd_micro_batches", ("there are %d micro-batches; give an even number"):format(
      p.micro_batches))
  elseif p.micro_batches < 2 * p.ranks then
    p:refuse("too_few_micro_batches", ("%d ranks need at least %d micro-batches, not %d"):format(
      p.ranks, 2 * p.ranks, p.micro_batches))
  end
end

return function(moe)
  return moe.policy.pipeline {
    name = "dualpipe",
    doc = "micro-batches enter at both ends, and forwards of one way run beside backwards of the "
      .. "other; each stage is held twice (arXiv 2412.19437, deepseek-ai/DualPipe 3da1bbe)",
    chunks = 2, fixed_chunks = true, placement = "two_way",
    turns = function(p, rank)
      check(p)
      local half, n = p.ranks / 2, p.micro_batches / 2
      local h = math.min(rank - 1, p.ranks - rank)  -- ranks between this one and its end
      local inner = half - 1 - h
      local counts, owed, weights = {}, {}, 0
      -- Adds turns so many times: work, way of the micro-batch (0 enters at the rank's half, 1 at
      -- the other), and + for an F beside the next turn. W is the oldest that is owed.
      local function add(times, turns)
        for work, way, beside in turns:rep(times):gmatch "(%u)(%d?)(%+?)" do
          if work == "W" then
            weights = weights + 1
            p:dw(owed[weights])
          else
            local key = (work == "F" and work or "B") .. way
            counts[key] = (counts[key] or 0) + 1
            local m = counts[key] + ((way == "0") == (rank <= half) and 0 or n)
            p[METHODS[work]](p, m, { beside = beside == "+" })
            if work == "I" then owed[#owed + 1] = m end
          end
        end
      end
      add(2 * inner, "F0")                                                        -- 1
      add(h + 1, "F0 F1")                                                         -- 2
      add(inner, "I1 W F1")                                                       -- 3
      add(1, inner > 0 and "F0+B1 F1+B0" or "F0 B1 F1+B0")                        -- 4
      add(n - p.ranks + h, "F0+B1 F1+B0")
      add(inner, "B1 F1+B0")                                                      -- 5
      for k = 1, 2 * (h + 1) do add(1, (k <= h + 1 and "B" or "I") .. k % 2) end  -- 6
      add(inner, "W I0")                                                          -- 7
      add(h + 1, "W")                                                             -- 8
    end,
  }
end
