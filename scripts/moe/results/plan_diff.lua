-- What differs between the plans of two runs, as their traces show it on the first rank: ops that
-- were added, removed, cut, or moved in the order of their lane or to another, and communication
-- that other compute hides than before. The parts of an op (names that end in .p0, .p1, ..) count
-- as the op.
local schema = require "moe.base.schema"
local trace = require "moe.results.trace"

local M = {}

local MOST = 8         -- lines per kind of difference
local LEAST_MS = 1e-3  -- smallest change of hidden time that is shown

-- Returns how many us of the span e the spans of `busy` from index i on cover, and the index from
-- which a later span must look.
local function covered(e, busy, i)
  while busy[i] and busy[i].ts + busy[i].dur <= e.ts do i = i + 1 end
  local sum, j = 0, i
  while busy[j] and busy[j].ts < e.ts + e.dur do
    sum = sum + math.min(e.ts + e.dur, busy[j].ts + busy[j].dur) - math.max(e.ts, busy[j].ts)
    j = j + 1
  end
  return sum, i
end

-- Adds the spans of a lane to `ops`; busy: those of the lane compute.
local function add_lane(ops, lane, spans, busy)
  local from = 1
  for _, e in ipairs(spans) do
    local name = e.name:gsub("%.p%d+", "")
    local op = ops[name]
    if not op then
      op = { name = name, lane = lane, kind = e.args and e.args.op or "op", parts = 0, spans = 0,
        ms = 0, hidden_ms = 0, seen = {} }
      ops[name], ops[#ops + 1] = op, op
    end
    if not op.seen[e.name] then op.parts = op.parts + 1 end
    op.seen[e.name], op.spans, op.ms = true, op.spans + 1, op.ms + e.dur / 1e3
    if lane ~= "compute" then
      local us
      us, from = covered(e, busy, from)
      op.hidden_ms = op.hidden_ms + us / 1e3
    end
  end
end

-- Returns the ops of a run, in the order of each lane and also by name.
local function ops_of(dir, run)
  local wanted = run.provenance == "simulated" and "^simulated" or "^executed"
  local rows, busy, ops = {}, {}, {}
  for _, row in ipairs(trace.read(dir, run).rows) do
    if row.spans and row.process:find(wanted) and row.process:find " rank 0$" then
      rows[#rows + 1] = row
      schema.sorted(row.spans, function(e, i) return e.ts, i end)
      if row.lane == "compute" then busy = row.spans end
    end
  end
  for _, row in ipairs(rows) do add_lane(ops, row.lane, row.spans, busy) end
  return ops
end

-- Returns the set of the names that a shortest list of moves takes from one order to another: those
-- outside a longest common subsequence. before, after: lists of the same ops.
local function moved_between(before, after)
  local place, ends, previous = {}, {}, {}
  for i, op in ipairs(before) do place[op.name] = i end
  for _, op in ipairs(after) do  -- ends[n]: the op with the least place that ends n ops in order
    local lo, hi = 1, #ends + 1
    while lo < hi do
      local middle = math.floor((lo + hi) / 2)
      if place[ends[middle].name] < place[op.name] then lo = middle + 1 else hi = middle end
    end
    ends[lo], previous[op] = op, ends[lo - 1]
  end
  local kept, moved = {}, {}
  local op = ends[#ends]
  while op do
    kept[op.name], op = true, previous[op]
  end
  for _, one in ipairs(after) do moved[one.name] = not kept[one.name] or nil end
  return moved
end

-- Returns lines "b*.moe.fc1 (6 ops): text" for the entries { name, text }: those that differ only
-- in the number of the block share one.
local function grouped(entries)
  local function pattern(e) return (e[1]:gsub("%f[%w]b%d+%.", "b*.")) end
  local groups = schema.grouped(entries, function(e) return pattern(e) .. "\n" .. e[2] end)
  schema.sorted(groups, function(g) return -#g, g[1][1] end)
  local lines = {}
  for i, g in ipairs(groups) do
    if i > MOST then
      lines[i] = ("  and %d more"):format(#groups - MOST)
      break
    end
    local name, text = unpack(g[1])
    lines[i] = ("  %s%s"):format(#g > 1 and ("%s (%d ops)"):format(pattern(g[1]), #g) or name,
      text ~= "" and ": " .. text or "")
  end
  return lines
end

local function append(lines, title, entries)
  if #entries == 0 then return end
  lines[#lines + 1] = ("%s: %d op%s"):format(title, #entries, #entries > 1 and "s" or "")
  for _, line in ipairs(grouped(entries)) do lines[#lines + 1] = line end
end

local function cut_text(op)
  if op.spans == op.parts then return ("%d part%s"):format(op.parts, op.parts > 1 and "s" or "") end
  return ("%d parts, %d chunks"):format(op.parts, op.spans)
end

-- Returns the lines on ops whose place in their lane's order differs.
local function moved_entries(before, after)
  local lists, entries = { {}, {} }, {}
  for i, ops in ipairs { before, after } do
    for _, op in ipairs(ops) do
      local a, b = before[op.name], after[op.name]
      if a and b and a.lane == b.lane then
        lists[i][op.lane] = lists[i][op.lane] or {}
        table.insert(lists[i][op.lane], op)
      end
    end
  end
  for lane, list in pairs(lists[2]) do
    local moved = moved_between(lists[1][lane], list)
    for i, op in ipairs(list) do
      if moved[op.name] then
        local behind = list[i - 1] and list[i - 1].name:gsub("^b%d+%.", "b*.")
        entries[#entries + 1] = { op.name, behind and "now behind " .. behind or "now first" }
      end
    end
  end
  return entries
end

-- Returns the line on hidden communication and those on the ops where it changed.
local function hidden_lines(before, after)
  local sums, changes, order = { 0, 0, 0, 0 }, {}, {}
  for i, ops in ipairs { before, after } do
    for _, op in ipairs(ops) do
      if op.lane ~= "compute" then
        local name = op.name:gsub("^b%d+%.", "b*.")
        local c = changes[name] or { name = name, 0, 0 }
        if not changes[name] then changes[name], order[#order + 1] = c, c end
        c[i], sums[i] = c[i] + op.hidden_ms, sums[i] + op.hidden_ms
        sums[i + 2] = sums[i + 2] + op.ms
      end
    end
  end
  local function size(c) return math.abs(c[2] - c[1]) end
  schema.sorted(order, function(c) return -size(c), c.name end)
  local lines = {}
  for i, c in ipairs(order) do
    if i <= MOST and size(c) >= LEAST_MS then
      lines[1] = ("hidden communication: %.2f of %.2f ms, now %.2f of %.2f ms"):format(sums[1],
        sums[3], sums[2], sums[4])
      lines[#lines + 1] = ("  %s: %.2f -> %.2f ms"):format(c.name, c[1], c[2])
    end
  end
  return lines
end

--- Returns lines on what differs between the plans of two runs that have traces; none if nothing
--- does. dirs, runs: of each run its folder and its record, first the earlier one.
function M.lines(dirs, runs)
  local before, after = ops_of(dirs[1], runs[1]), ops_of(dirs[2], runs[2])
  local added, removed, cut, lane = {}, {}, {}, {}
  for _, op in ipairs(after) do
    local old = before[op.name]
    if not old then
      added[#added + 1] = { op.kind, "" }
    elseif old.lane ~= op.lane then
      lane[#lane + 1] = { op.name, ("%s -> %s"):format(old.lane, op.lane) }
    end
    if old and (old.parts ~= op.parts or old.spans ~= op.spans) then
      cut[#cut + 1] = { op.name, ("%s -> %s"):format(cut_text(old), cut_text(op)) }
    end
  end
  for _, op in ipairs(before) do
    if not after[op.name] then removed[#removed + 1] = { op.kind, "" } end
  end
  local lines = {}
  append(lines, "added, by kind", added)
  append(lines, "removed, by kind", removed)
  append(lines, "cut otherwise", cut)
  append(lines, "moved to another lane", lane)
  append(lines, "moved in the order of their lane", moved_entries(before, after))
  for _, line in ipairs(hidden_lines(before, after)) do lines[#lines + 1] = line end
  return lines
end

return M
