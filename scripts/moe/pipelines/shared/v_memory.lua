-- The construction of V-Half and V-Min (arXiv 2405.15362; sail-sg/zero-bubble-pipeline-parallelism
-- 39f2c18, zbv_greedy.py). A pattern gives each kind of turn of micro-batch 1 a slot on each rank;
-- micro-batch m takes the same slots 6 (m-1) later. Empty slots take W. Turns before and after the
-- regular middle move to earlier slots without any rank holding more activations than before
-- ("squeeze"), and all begin as early as their order allows ("tighten").
--
-- Kinds: 0 F and 3 I of the stage on the way down (chunk 1), 1 F and 2 I of that on the way back
-- (chunk 2), 4 W of either; in the end 4 W of chunk 2 and 5 W of chunk 1. A plan is { [rank] = {
-- [slot] = entry } }, slots from 0; an entry is 8 m + kind, of W the m-th of its rank, m from 0.
local W = 4
local METHODS = { [0] = "forward", "forward", "dx", "dx", "dw", "dw" }
local CHUNKS = { [0] = 1, 2, 2, 1, 2, 1 }

local function last_of(row)
  local last = 0
  for slot in next, row do last = math.max(last, slot) end
  return last
end

-- Adds the W to all ranks: one for each I, in the empty slots after it, the way back first. apart:
-- those of the two chunks have kinds and numbers of their own.
local function put_w(plan, apart)
  for _, row in ipairs(plan) do
    local last, slot, owed, counts = last_of(row), 0, { 0, 0 }, { 0, 0 }
    while slot <= last or owed[1] + owed[2] > 0 do
      local kind = row[slot] and row[slot] % 8
      if kind == 2 or kind == 3 then
        owed[kind - 1] = owed[kind - 1] + 1
      elseif not kind and owed[1] + owed[2] > 0 then
        local way = owed[1] > 0 and 1 or 2
        local as = apart and way or 1
        row[slot] = 8 * counts[as] + W + as - 1
        owed[way], counts[as] = owed[way] - 1, counts[as] + 1
      end
      slot = slot + 1
    end
  end
end

-- Calls move(rank, slot, entry, earliest) for all entries by slot, then rank. It returns the slot
-- that the entry gets, not before `earliest`, which is after all that the entry needs.
local function each(plan, move)
  local slots, inputs, last = {}, {}, 0  -- by rank: slot of each entry, slots of I in order
  for rank, row in ipairs(plan) do
    slots[rank], inputs[rank], last = {}, {}, math.max(last, last_of(row))
  end
  local function visit(rank, slot, entry)
    local kind, own, list = entry % 8, slots[rank], inputs[rank]
    local input, other = list[math.floor(entry / 8) + 1], slots[rank + (kind % 2 == 0 and -1 or 1)]
    local before = kind == W and input or kind > 0 and own[entry - 1] or -1
    local there = kind < W and other and other[entry] or -1
    local to = move(rank, slot, entry, math.max(before, there, own[entry - 8] or -1) + 1)
    own[entry] = to
    if kind ~= 2 and kind ~= 3 then return end
    local at = #list + 1
    while at > 1 and list[at - 1] > to do at = at - 1 end
    table.insert(list, at, to)
  end
  for slot = 0, last do
    for rank, row in ipairs(plan) do
      if row[slot] then visit(rank, slot, row[slot]) end
    end
  end
end

-- Returns the most that a rank holds. Without W in the plan, an empty slot stands for one that is
-- owed.
local function most_held(row, last, with_w)
  local held, owed, most = 0, 0, 0
  for slot = 0, last do
    local kind = row[slot] and row[slot] % 8
    if kind == 0 or kind == 1 then
      held, most = held + 1, math.max(most, held + 1)
    elseif kind == W or not kind and owed > 0 then
      held, owed = held - 1, owed - 1
    elseif kind and not with_w then
      owed = owed + 1
    end
  end
  return most
end

-- Moves the entries before (only if the plan has W) and after the middle to the earliest slots that
-- order and memory allow.
local function squeeze(plan, num_micro, with_w)
  local phase, last, cap = "before", {}, 0
  for rank, row in ipairs(plan) do
    last[rank] = last_of(row)
    cap = math.max(cap, most_held(row, last[rank], with_w))
  end
  each(plan, function(rank, slot, entry, earliest)
    if phase == "before" and rank == 1 and entry % 8 == 3 then phase = "middle" end
    local row, fixed = plan[rank], phase == "middle" or phase == "before" and not with_w
    if phase == "middle" and entry == 8 * (num_micro - 1) then phase = "after" end
    for to = fixed and slot or earliest, slot - 1 do
      if not row[to] then
        row[slot], row[to] = nil, entry
        if most_held(row, last[rank], with_w) <= cap then return to end
        row[slot], row[to] = entry, nil
      end
    end
    return slot
  end)
end

-- Returns the plan, without its W, in which entries begin as early as the order by slots allows.
local function tighten(plan)
  local out, free = {}, {}
  for rank = 1, #plan do out[rank], free[rank] = {}, 0 end
  each(plan, function(rank, _, entry, earliest)
    local slot = math.max(free[rank], earliest)
    free[rank] = slot + 1
    if entry % 8 ~= W then out[rank][slot] = entry end
    return slot
  end)
  return out
end

local function build(num_ranks, num_micro, slots)
  local plan = {}
  for rank = 1, num_ranks do
    plan[rank] = {}
    for kind, first in ipairs(slots(num_ranks, rank - 1)) do
      for m = 0, num_micro - 1 do plan[rank][first + 6 * m] = 8 * m + kind - 1 end
    end
  end
  put_w(plan)
  squeeze(plan, num_micro, true)
  plan = tighten(plan)
  squeeze(plan, num_micro, false)
  put_w(plan)
  plan = tighten(plan)
  put_w(plan, true)
  return plan
end

--- Returns `turns` of a schedule. slots(n, r): the slots of kinds 0 to 3 of the first micro-batch
--- on rank r of n, which counts from 0 here.
return function(slots)
  local plan, num_micro = {}, nil
  return function(p, rank)
    if #plan ~= p.ranks or num_micro ~= p.micro_batches then
      plan, num_micro = build(p.ranks, p.micro_batches, slots), p.micro_batches
    end
    for slot = 0, last_of(plan[rank]) do
      local entry = plan[rank][slot]
      local kind = entry and entry % 8
      if kind then p[METHODS[kind]](p, (entry - kind) / 8 + 1, { chunk = CHUNKS[kind] }) end
    end
  end
end
