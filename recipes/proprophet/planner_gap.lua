-- How far is Pro-Prophet's greedy planner from a search? Both choose which experts are copied to
-- which of 16 GPUs for one step. The planner (algorithm 1) judges by the paper's performance model;
-- the search below is a hill climber that judges every change by a simulation of the whole step
-- (ctx:simulate). Two layers of MoE-GPT-M on 4 HPWNV nodes. Popularities stay, so placements made
-- from one step's loads fit the next one. The search is no optimum: a gap is how much there is to
-- gain at least, and it can be below 0.
local moe = require "moe"

local P = moe.pass
-- Placements are made in steps 1 and 3, for the next two. The second time the search begins with
-- the first one's copies and knows those of the other layer.
local STEPS, EVERY = 4, 2

-- Climbs from p. In each round it tries to copy each of the heaviest experts to the devices that
-- send it inputs, or only to those that send it many, and to take its copies away; then to add or
-- take away single copies. It makes the best change of the round, and ends when none gains 0.1%.
local search = moe.policy.placement { name = "search", shadows = 8, every = EVERY,
  params = { experts = 4, single = 2, rounds = 8 },
  place = function(ctx, load, p, o)
    local heaviest, best, best_ms, tried = load:heaviest(), p, ctx:simulate(p), 1

    local function without(e, from)
      local q = from:copy()
      for _, d in ipairs(from:holders(e)) do
        if d ~= from:owner(e) then q:drop(e, d) end
      end
      return q
    end

    local function with(e, least)
      local q = without(e, best)
      for d = 1, ctx.devices do
        if load(e, d) >= least and not q:holds(e, d) and q:free_slots(d) > 0 then q:shadow(e, d) end
      end
      return q
    end

    local function toggled(e, d)
      local q = best:copy()
      if q:owner(e) == d then return nil end
      if q:holds(e, d) then return q:drop(e, d) end
      return q:free_slots(d) > 0 and q:shadow(e, d) or nil
    end

    -- Returns whether one of the candidates gains enough, and takes the best of them.
    local function take(candidates)
      local found, found_ms = nil, best_ms * 0.999
      for _, q in ipairs(candidates) do
        local ms = ctx:simulate(q)
        tried = tried + 1
        if ms < found_ms then found, found_ms = q, ms end
      end
      if found then best, best_ms = found, found_ms end
      return found ~= nil
    end

    local function whole_experts()
      local list = {}
      for i = 1, o.experts do
        local e = heaviest[i]
        local mean = load:of_expert(e) / ctx.devices
        for _, least in ipairs { 1, mean, 2 * mean } do list[#list + 1] = with(e, least) end
        if #best:holders(e) > 1 then list[#list + 1] = without(e, best) end
      end
      return list
    end

    local function single_copies()
      local list = {}
      for i = 1, o.single do
        for d = 1, ctx.devices do list[#list + 1] = toggled(heaviest[i], d) end
      end
      return list
    end

    for _ = 1, o.rounds do
      if not take(whole_experts()) then break end
    end
    for _ = 1, o.rounds do
      if not take(single_copies()) then break end
    end
    ctx:log(("%d simulations"):format(tried))
    return best
  end }

local DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = 25 * 2 ^ 20 }
-- How copies travel: alone (planned by equation 6), or beside the block before (equation 8).
local MODES = {
  { copies = "block compute", equation = 6, hidden = 0, passes = { P.blocking_a2a {} } },
  { copies = "scheduled", equation = 8, hidden = 1,
    passes = { P.prophet_schedule {}, P.blocking_a2a { experts = false } } },
}

local function system(name, placement, mode)
  local passes = MODES[mode].passes
  return moe.system(name .. mode) { placement, passes[1], passes[2], all_reduce = DDP }
end

local function last(run) return run.samples_ms[STEPS] end

local function copies(run)
  local sum = 0
  for _, layer in ipairs(run.placements[STEPS]) do sum = sum + layer.copies end
  return sum
end

return moe.experiment { name = "proprophet_planner_gap",
  title = "Pro-Prophet's planner against a search on simulated steps",
  over = { s = { 1.1, 1.3 }, k = { 1, 2 } },
  case = function(p)
    local systems = {}
    for mode, m in ipairs(MODES) do
      systems[#systems + 1] = system("plain", P.placed { shadows = 8 }, mode)
      local planner = P.prophet { hidden = m.hidden, every = EVERY }
      systems[#systems + 1] = system("planner", planner, mode)
      systems[#systems + 1] = system("search", search {}, mode)
    end
    return { systems = systems, cluster = moe.cluster.hpwnv { nodes = 4 },
      model = moe.model.proprophet { size = "M", layers = 2, k = p.k,
        routing = moe.workload "zipf" { s = p.s, drift = 0 } } }
  end,
  run = { { "simulate", steps = STEPS } },
  show = function(R)
    local rows = { { "zipf s", "k", "copies", "equation", "plain ms", "planner ms", "search ms",
      "gap", "of the gain", "copies of planner", "of search" } }
    local gaps = moe.values {}
    for mode, m in ipairs(MODES) do
      for plain in R:where { system = "plain" .. mode }:each() do
        local at = plain.point
        local planner = R:where { system = "planner" .. mode, s = at.s, k = at.k }.runs[1]
        local found = R:where { system = "search" .. mode, s = at.s, k = at.k }.runs[1]
        local a, b, c = last(plain), last(planner), last(found)
        gaps[#gaps + 1] = 100 * (b / c - 1)
        rows[#rows + 1] = { at.s, at.k, m.copies, m.equation, a, b, c, gaps[#gaps],
          a > c and 100 * (a - b) / (a - c) or "-", copies(planner), copies(found) }
      end
    end
    print "The last step, placed by the loads of the one before; simulated"
    print(moe.table(rows, { "", "", "", "", "%.1f", "%.1f", "%.1f", "%.1f%%", "%.0f%%" }))
    print(("Gap of the planner to the search: %.1f to %.1f%%, median %.1f%%."):format(gaps:min(),
      gaps:max(), gaps:quantile(0.5)))
  end }
