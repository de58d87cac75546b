-- DualPipe (arXiv 2412.19437; deepseek-ai/DualPipe 3da1bbe, dualpipe.py): micro-batches enter at
-- both ends of the ranks, so that each rank holds two stages and runs the forward of one way beside
-- the backward of the other. The steps have the numbers of dualpipe.py.
local function check(p)
  if p.ranks % 2 ~= 0 then
    p:refuse("odd_ranks", ("DualPipe needs an even number of ranks, not %d"):format(p.ranks))
  elseif p.micro_batches % 2 ~= 0 then
    p:refuse("odd_micro_batches", ("DualPipe needs an even number of micro-batches, not %d"):format(
      p.micro_batches))
  elseif p.micro_batches < 2 * p.ranks then
    p:refuse("too_few_micro_batches", ("DualPipe needs at least %d micro-batches on %d ranks, not "
      .. "%d"):format(2 * p.ranks, p.ranks, p.micro_batches))
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
      local half = p.ranks / 2
      local h = math.min(rank - 1, p.ranks - rank)  -- ranks between this one and its end
      local inner = half - 1 - h
      -- The last micro-batch of each way: 0 is that which enters at the rank's half, 1 the other.
      local first = rank <= half and 0 or p.micro_batches / 2
      local last = { F = { [0] = first, p.micro_batches / 2 - first } }
      last.B = { [0] = last.F[0], last.F[1] }
      local owed, done = {}, 0  -- I whose W are to come, and how many W there are
      -- Adds turns so many times, each with its way; + is an F beside the next, W the oldest owed.
      local function add(times, turns)
        for _ = 1, times do
          for work, way, beside in turns:gmatch "(%u)(%d?)(%+?)" do
            local count, m = last[work == "F" and "F" or "B"], nil
            if work == "W" then
              done = done + 1
              p:dw(owed[done])
            else
              way = tonumber(way)
              m = count[way] + 1
              count[way] = m
            end
            if work == "F" then p:forward(m, { beside = beside == "+" }) end
            if work == "B" then p:backward(m) end
            if work == "I" then
              p:dx(m)
              owed[#owed + 1] = m
            end
          end
        end
      end
      add(2 * inner, "F0")                                                       -- 1
      add(h + 1, "F0 F1")                                                        -- 2
      add(inner, "I1 W F1")                                                      -- 3
      if inner == 0 then add(1, "F0 B1 F1+B0") end                               -- 4
      add(p.micro_batches / 2 - p.ranks + h + (inner > 0 and 1 or 0), "F0+B1 F1+B0")
      add(inner, "B1 F1+B0")                                                     -- 5
      for k = 1, 2 * (h + 1) do add(1, (k <= h + 1 and "B" or "I") .. k % 2) end  -- 6
      add(inner, "W I0")                                                         -- 7
      add(h + 1, "W")                                                            -- 8
    end,
  }
end
