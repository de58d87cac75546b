-- detail = "turns": the step of many micro-batches on pipeline ranks, composed of the turns of a
-- simulated step of few, as many as it takes that each kind of turn occurs. Turns are made once for
-- a model, a cluster and a system, whatever the number of micro-batches, and kept.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"
local simulations = require "moe.run.simulations"
local target = require "moe.spec.target"

local M = {}

local MOST_PLANNED = 4  -- times the stages: further micro-batches are not looked at for peaks

-- key -> list of { turns, plan, sim }; weak, so that they make room where memory is short
local kept = setmetatable({}, { __mode = "v" })

-- Returns whether the turns of `few` are those of `full`, and its ranks hold as many activations.
local function covers(few, full)
  return core.turns_alike(few.rows, full.rows) > 0,
    table.concat(few.peak, " ") == table.concat(full.peak, " ")
end

local function with_micro_batches(spec, n)
  return schema.merged(spec, { model = schema.merged(spec.model, { micro_batches = n }) })
end

-- Returns the fewest micro-batches whose turns are those of `full`, with equal peaks if some have.
local function fewest(spec, candidate, full)
  local first
  for n = 1, math.min(full.micro_batches - 1, MOST_PLANNED * full.stages) do
    local ok, few = pcall(target.pipeline_of, with_micro_batches(spec, n), candidate)
    local alike, peaks = false, false
    if ok then alike, peaks = covers(few, full) end
    if alike and peaks then return n end
    first = first or alike and n or nil
  end
  return first or full.micro_batches
end

-- Returns an entry of `list` that covers `full`, which is made if there is none.
local function turns_for(list, spec, candidate, full, at)
  local found
  for _, few in ipairs(list) do
    local alike, peaks = covers(few.turns, full)
    if alike and peaks then return few end
    found = found or alike and few
  end
  local n = fewest(spec, candidate, full)
  if found and found.turns.micro_batches == n then return found end
  local of = with_micro_batches(spec, n)
  local plan = target.plan_of(of, candidate, at)
  list[#list + 1] = { turns = of.pipeline, plan = plan,
    sim = errors.call(at, plan.simulate, plan, { steps = 1 }) }
  return list[#list]
end

--- Returns the function that target.plan() takes in place of planning and simulating a whole step.
--- at: the line that asks for detail = "turns".
function M.of(spec, system, at)
  if spec.model.pp == 1 then
    errors.user("moe.plan.detail: 'turns' composes the turns of pipeline ranks, but the grid has "
      .. "one; give grid.pp, or omit detail", at)
  elseif spec.routing or target.places(system) then
    errors.user(("moe.plan.detail: 'turns' is not allowed with %s, since micro-batches differ; "
      .. "omit it"):format(spec.routing and "model.routing" or "a placement of experts"), at)
  end
  local key = simulations.key(with_micro_batches(spec, 0), system, {})
  return function(own, candidate)
    local full = target.pipeline_of(own, candidate)
    local name = ("%s %s %s"):format(key, candidate.choice or "",
      candidate.pipeline and candidate.pipeline.name or "")
    local list = key and kept[name] or {}
    kept[name] = key and list
    local few = turns_for(list, own, candidate, full, at)
    local sim = errors.call(at, few.plan.compose, few.plan, { timelines = few.sim.timelines,
      step = 1 }, full)
    sim.composed_of = few.turns.micro_batches
    local _, peaks = covers(few.turns, full)
    if peaks then
      local info = few.plan:info()
      sim.peak_bytes, sim.peak_bytes_by_rank = info.peak_bytes, info.peak_bytes_by_rank
    end
    own.pipeline = full
    return few.plan, sim
  end
end

return M
