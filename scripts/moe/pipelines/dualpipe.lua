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

-- Returns functions that give the turns of a rank: way 0 is that of the micro-batches that enter at
-- the rank's half, way 1 the other. A gradient of weights is always the oldest that is owed.
local function turns_of(p, enters_first)
  local n, owed, first = p.micro_batches / 2, {}, 1
  local function next_of(counts)
    return function(way)
      counts[way] = counts[way] + 1
      return counts[way] + ((way == 0) == enters_first and 0 or n)
    end
  end
  local forwards, backwards = next_of { [0] = 0, 0 }, next_of { [0] = 0, 0 }
  local t = {}
  function t.f(way, beside) p:forward(forwards(way), { beside = beside }) end
  function t.b(way) p:backward(backwards(way)) end
  function t.i(way)
    owed[#owed + 1] = backwards(way)
    p:dx(owed[#owed])
  end
  function t.w()
    p:dw(owed[first])
    first = first + 1
  end
  function t.pair(forward, backward)
    t.f(forward, true)
    t.b(backward)
  end
  return t
end

return function(moe)
  return moe.policy.pipeline {
    name = "dualpipe",
    doc = "micro-batches enter at both ends, and forwards of one way run beside backwards of the "
      .. "other; each stage is held twice (arXiv 2412.19437, deepseek-ai/DualPipe 3da1bbe)",
    chunks = 2, placement = "two_way",
    prepare = check,
    turns = function(p, rank)
      local half = p.ranks / 2
      local h = math.min(rank - 1, p.ranks - rank)  -- ranks between this one and its end
      local inner = half - 1 - h
      local t = turns_of(p, rank <= half)
      for _ = 1, 2 * inner do t.f(0) end                                 -- 1
      for _ = 1, h + 1 do t.f(0) t.f(1) end                              -- 2
      for _ = 1, inner do t.i(1) t.w() t.f(1) end                        -- 3
      for k = 1, p.micro_batches / 2 - p.ranks + h + 1 do                -- 4
        t.f(0, k > 1 or inner > 0)  -- on the middle ranks the first two do not overlap
        t.b(1)
        t.pair(1, 0)
      end
      for _ = 1, inner do t.b(1) t.pair(1, 0) end                        -- 5
      for k = 1, 2 * (h + 1) do (k <= h + 1 and t.b or t.i)(k % 2) end   -- 6
      for _ = 1, inner do t.w() t.i(0) end                               -- 7
      for _ = 1, h + 1 do t.w() end                                      -- 8
    end,
  }
end
