-- What runs assume of the routing (the field assumed_routing of a run), as text for the heads of
-- tables.
local core = require "moe.core"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

local MAX_LINES = 6  -- with more kinds of routing than that, only their number is printed

local by_rule = {}  -- names of the gates that read no scores
for _, gate in ipairs(core.table "gates") do by_rule[gate.name] = gate.by_rule or nil end

-- Returns on what the gate chooses. scores: whose, if not even ones.
local function basis(gate, scores)
  if by_rule[gate] then
    return (", which reads no scores; those of %s have no effect"):format(scores)
  end
  return " on scores of " .. scores
end

--- Returns the range of a list of numbers as text: "41" or "41 to 47".
function M.range(numbers, form)
  local lo, hi = form:format(numbers:min()), form:format(numbers:max())
  return lo == hi and lo or ("%s to %s"):format(lo, hi)
end

local function counted(runs)
  local choices, dropped = values.new {}, values.new {}
  for i, run in ipairs(runs) do
    choices[i], dropped[i] = run.assumed_routing.choices, 100 * run.assumed_routing.dropped
  end
  return ("%s choices per token, %s%% of them dropped"):format(M.range(choices, "%.2f"),
    M.range(dropped, "%.1f"))
end

local function text_of(runs)
  local r = runs[1].assumed_routing
  if r.choices_of then
    -- Results of earlier versions do not have the number of choices.
    return ("choices of %s, no gate runs%s"):format(r.choices_of,
      r.choices and "; " .. counted(runs) or "")
  end
  if not r.scores then return ("gate %s, which does not run"):format(r.gate) end
  local on = r.scores == "even" and " on even scores" or basis(r.gate, r.scores)
  return ("gate %s%s, %s"):format(r.gate, on, counted(runs))
end

-- Returns a line on the placements of simulated runs without a routing model, in which no policy is
-- called, or nil.
local function placements(runs)
  local copies, policies = values.new {}, {}
  for _, run in ipairs(runs) do
    for _, stage in ipairs(not run.routing and run.stages or {}) do
      local expected = stage.kind == "placement" and stage.options.expected_copies
      if expected then
        copies[#copies + 1], policies[stage.name] = expected, true
      end
    end
  end
  if #copies == 0 then return nil end
  return ("Placements: none made without a routing (%s); each device is assumed to receive "
    .. "expected_copies = %s per layer"):format(table.concat(schema.keys_of(policies), ", "),
    M.range(copies, "%g"))
end

local LEAST = 0.995  -- of k: a workload with few tokens need not come to k exactly

-- Appends a line for each gate and k of the model under which a token gets fewer choices than k.
local function append_fewer(lines, runs)
  local by_gate = {}
  for _, run in ipairs(runs) do
    local r, k = run.assumed_routing, run.parameters.k
    if r and r.choices and k and r.choices < LEAST * k then
      local key = ("k = %d: under %s"):format(k, r.choices_of or "gate " .. r.gate)
      by_gate[key] = by_gate[key] or values.new {}
      table.insert(by_gate[key], r.choices)
    end
  end
  for key, choices in pairs(by_gate) do
    lines[#lines + 1] = ("Fewer choices than %s a token gets %s on average, and compute and "
      .. "traffic are of these"):format(key, M.range(choices, "%.2f"))
  end
end

--- Returns a line for each kind of routing that the runs assume, and on choices fewer than k. head:
--- how a line begins; default: "Routing", for simulations, with a line on their placements. Results
--- of earlier versions have no such lines.
function M.lines(runs, head)
  local by_kind = {}
  for _, run in ipairs(runs) do
    local r = run.assumed_routing
    if r then
      local kind = ("%s\n%s\n%s"):format(r.choices_of or "", r.gate or "", r.scores or "")
      by_kind[kind] = by_kind[kind] or {}
      table.insert(by_kind[kind], run)
    end
  end
  local kinds, lines = schema.keys_of(by_kind), {}
  for i, kind in ipairs(kinds) do
    lines[i] = ("%s: %s"):format(head or "Routing", text_of(by_kind[kind]))
  end
  if #lines > MAX_LINES then
    lines = { ("%s: %d kinds, which results.json has"):format(head or "Routing", #lines) }
  end
  if not head then lines[#lines + 1] = placements(runs) end
  append_fewer(lines, runs)
  return lines
end

--- Returns what chooses the experts in an executed run: "switch gate", "routing zipf(...)".
function M.chooser(run)
  local gate, r = run.parameters.gate .. " gate", run.assumed_routing
  if not run.routing then return gate end
  return r and r.gate and gate .. basis(run.parameters.gate, run.routing)
    or "routing " .. run.routing
end

return M
