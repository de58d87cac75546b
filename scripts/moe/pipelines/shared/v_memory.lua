-- The construction of V-Half and V-Min (arXiv 2405.15362; sail-sg/zero-bubble-pipeline-parallelism
-- 39f2c18, zbv_greedy.py). A pattern gives each kind of turn of micro-batch 1 a slot on each rank;
-- micro-batch m takes the same slots 6 (m-1) later. Slots that stay empty take the gradients of
-- weights (W). Turns before and after the regular middle then move to earlier slots without any
-- rank holding more activations than in the pattern ("squeeze"), and all begin as early as their
-- order allows ("tighten").
--
-- Kinds: 0 F and 3 I of the stage on the way down (chunk 1), 1 F and 2 I of that on the way back
-- (chunk 2), 4 W. A plan is { [rank] = { [slot] = entry } }, slots from 0; an entry is 8 m + kind,
-- of W the m-th of its rank, m from 0.
local M = {}

local W = 4

local function kind_of(entry) return entry % 8 end

-- Returns the highest slot that is taken.
local function last_of(plan)
  local last = 0
  for _, row in ipairs(plan) do
    for slot in next, row do last = math.max(last, slot) end
  end
  return last
end

-- Calls f(rank, slot, entry) for all entries by slot, then rank; f may move them to earlier slots.
local function each(plan, f)
  for slot = 0, last_of(plan) do
    for rank = 1, #plan do
      local entry = plan[rank][slot]
      if entry then f(rank, slot, entry) end
    end
  end
end

-- Adds the W: one for each I, in the empty slots after it, the way back first. Returns, for each
-- rank, a map from the slots of W to the chunk of each.
local function put_w(plan)
  local chunks = {}
  for rank, row in ipairs(plan) do
    local owed, count, last = { 0, 0 }, 0, 0
    for slot in next, row do last = math.max(last, slot) end
    local chunk_at, slot = {}, 0
    while slot <= last or owed[1] + owed[2] > 0 do
      local entry = row[slot]
      if entry then
        local kind = kind_of(entry)
        if kind == 2 then owed[2] = owed[2] + 1 elseif kind == 3 then owed[1] = owed[1] + 1 end
      elseif owed[1] + owed[2] > 0 then
        local chunk = owed[2] > 0 and 2 or 1
        owed[chunk], chunk_at[slot] = owed[chunk] - 1, chunk
        row[slot] = 8 * count + W
        count = count + 1
      end
      slot = slot + 1
    end
    chunks[rank] = chunk_at
  end
  return chunks
end

local function drop_w(plan)
  for _, row in ipairs(plan) do
    for slot, entry in next, row do
      if kind_of(entry) == W then row[slot] = nil end
    end
  end
end

-- Returns held and owed after an entry, or after an empty slot (nil), which stands for an owed W
-- where the plan has none.
local function after(entry, held, owed, with_w)
  local kind = entry and kind_of(entry)
  if kind == 0 or kind == 1 then return held + 1, owed end
  if kind == W then return held - 1, owed end
  if with_w then return held, owed end
  if kind then return held, owed + 1 end
  return owed > 0 and held - 1 or held, math.max(owed - 1, 0)
end

-- Returns the activations that a rank holds and the W that it owes after each slot, with the
-- function that moves entries, and the most that it holds.
local function memory_of(row, last, with_w)
  local m, most = { held = { [-1] = 0 }, owed = { [-1] = 0 } }, 0
  for slot = 0, last do
    m.held[slot], m.owed[slot] = after(row[slot], m.held[slot - 1], m.owed[slot - 1], with_w)
    most = math.max(most, m.held[slot])
  end
  -- Returns whether the rank holds at most cap after the entry moves; if `keep`, notes the change.
  function m.moved(from, to, cap, keep)
    local held, owed = m.held[to - 1], m.owed[to - 1]
    for slot = to, last do
      local entry = row[slot]
      if slot == to then entry = row[from] elseif slot == from then entry = nil end
      held, owed = after(entry, held, owed, with_w)
      if held > cap then return false end
      if slot >= from and held == m.held[slot] and owed == m.owed[slot] then return true end
      if keep then m.held[slot], m.owed[slot] = held, owed end
    end
    return true
  end
  return m, most
end

-- Notes the slots of entries as they are visited, and says what an entry must come after.
local function visits(num_ranks)
  local v, slot_of, inputs = {}, {}, {}
  for rank = 1, num_ranks do
    slot_of[rank], inputs[rank] = {}, {}
  end
  function v.note(rank, entry, slot)
    slot_of[rank][entry] = slot
    local kind, list = kind_of(entry), inputs[rank]
    if kind ~= 2 and kind ~= 3 then return end
    local at = #list + 1
    while at > 1 and list[at - 1] > slot do
      list[at] = list[at - 1]
      at = at - 1
    end
    list[at] = slot
  end
  -- Returns the last slot of what the entry must come after; -1 if there is nothing. by_order: a W
  -- comes after the W before it alone.
  function v.needs(rank, entry, by_order)
    local kind, own, last = kind_of(entry), slot_of[rank], -1
    if kind == W then
      if not by_order then last = inputs[rank][(entry - W) / 8 + 1] end
    else
      local other = slot_of[rank + ((kind == 0 or kind == 2) and -1 or 1)]
      if other then last = other[entry] end
      if kind > 0 then last = math.max(last, own[entry - 1]) end
    end
    return math.max(last, own[entry - 8] or -1)
  end
  return v
end

-- Moves the entries before (only if the plan has W) and after the middle to the earliest slots that
-- order and memory allow.
local function squeeze(plan, num_micro, with_w)
  local last, seen, phase, memory, cap = last_of(plan), visits(#plan), "before", {}, 0
  for rank, row in ipairs(plan) do
    local most
    memory[rank], most = memory_of(row, last, with_w)
    cap = math.max(cap, most)
  end
  each(plan, function(rank, slot, entry)
    if phase == "before" and rank == 1 and kind_of(entry) == 3 then phase = "middle" end
    local to = slot
    if phase == "after" or phase == "before" and with_w then
      local row, m = plan[rank], memory[rank]
      to = seen.needs(rank, entry) + 1
      while to < slot and (row[to] or not m.moved(slot, to, cap)) do to = to + 1 end
      if to < slot then
        m.moved(slot, to, cap, true)
        row[slot], row[to] = nil, entry
      end
    end
    seen.note(rank, entry, to)
    if phase == "middle" and entry == 8 * (num_micro - 1) then phase = "after" end
  end)
end

-- Returns the plan in which each entry begins as early as the order by slots allows.
local function tighten(plan)
  local out, seen, free = {}, visits(#plan), {}
  for rank = 1, #plan do
    out[rank], free[rank] = {}, 0
  end
  each(plan, function(rank, _, entry)
    local slot = math.max(free[rank], seen.needs(rank, entry, true) + 1)
    out[rank][slot], free[rank] = entry, slot + 1
    seen.note(rank, entry, slot)
  end)
  return out
end

-- Returns the turns of each rank, { name of the method of p, micro-batch, chunk }.
local function turns_of(plan, chunk_at)
  local out = {}
  for rank, row in ipairs(plan) do
    local turns, done = {}, { 0, 0 }
    for slot = 0, last_of { row } do
      local entry = row[slot]
      local kind = entry and kind_of(entry)
      if kind == W then
        local chunk = chunk_at[rank][slot]
        done[chunk] = done[chunk] + 1
        turns[#turns + 1] = { "dw", done[chunk], chunk }
      elseif kind then
        turns[#turns + 1] = { kind < 2 and "forward" or "dx", (entry - kind) / 8 + 1,
          (kind == 0 or kind == 3) and 1 or 2 }
      end
    end
    out[rank] = turns
  end
  return out
end

--- Returns the turns of each rank. slots(r): the slots of kinds 0 to 3 of the first micro-batch on
--- rank r, which counts from 0 here.
function M.build(num_ranks, num_micro, slots)
  local plan = {}
  for rank = 1, num_ranks do
    plan[rank] = {}
    for kind, first in ipairs { slots(rank - 1) } do
      for m = 0, num_micro - 1 do plan[rank][first + 6 * m] = 8 * m + kind - 1 end
    end
  end
  put_w(plan)
  squeeze(plan, num_micro, true)
  plan = tighten(plan)
  drop_w(plan)
  squeeze(plan, num_micro, false)
  put_w(plan)
  plan = tighten(plan)
  drop_w(plan)
  return turns_of(plan, put_w(plan))
end

--- `prepare` of both schedules: returns the turns of each rank, at most of so many micro-batches
--- that the middle has a regular period of six turns, and how many more micro-batches there are.
function M.prepare(p, slots)
  if p.chunks ~= 2 then
    p:refuse("two_stages_a_rank", "the schedule has two stages per rank; give chunks = 2")
  end
  local built = math.min(p.micro_batches, 2 * p.ranks + 16)
  return { of = M.build(p.ranks, built, slots), more = p.micro_batches - built }
end

--- `turns` of both schedules. The period that begins with the forward of micro-batch P + 6 is
--- repeated for the micro-batches that were left out.
function M.turns(p, rank, _, prepared)
  local turns, first, shift = prepared.of[rank], nil, 0
  local function give(from, to)
    for i = from, to do p[turns[i][1]](p, turns[i][2] + shift, { chunk = turns[i][3] }) end
  end
  for i, turn in ipairs(turns) do
    if turn[1] == "forward" and turn[3] == 1 and turn[2] == p.ranks + 6 then first = i end
    if turn[1] == "forward" and turn[3] == 1 and turn[2] == p.ranks + 7 then
      for _ = 1, prepared.more do
        shift = shift + 1
        give(first, i - 1)
      end
    end
    give(i, i)
  end
end

return M
