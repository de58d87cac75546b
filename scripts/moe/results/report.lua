-- The tables that are printed to stdout. The page (moe.results.page) uses the same rows, which have
-- the form that aligned.text takes.
local aligned = require "moe.base.aligned"
local claims_lib = require "moe.results.claims"
local core = require "moe.core"
local differences = require "moe.results.report.differences"
local executed = require "moe.results.report.executed"
local format = require "moe.results.report.format"
local results = require "moe.results.results"
local sensitivity = require "moe.results.sensitivity"
local simulated = require "moe.results.report.simulated"

local M = {}

local function name_of(c) return c.id .. (c.label and (" (%s)"):format(c.label) or "") end

-- Returns the verdict; of an open constant with its name, without that of the model or cluster.
local function verdict_of(c)
  return c.verdict == "constant open" and c.moved_by
    and ("%s: %s"):format(c.verdict, (c.moved_by:gsub("^%l+%.", ""))) or c.verdict
end

function M.claims_rows(claims)
  local rows = { { "claim", "figure", "paper", "ours", "band", "verdict" } }
  for i, c in ipairs(claims) do
    local function number(x) return claims_lib.number_text(c.unit, x) end
    rows[i + 1] = { name_of(c), c.figure, claims_lib.number_text(c.unit, c.paper, "%g %s"),
      c.ours and number(c.ours) or "-",
      c.ours and c.lo < c.hi and number(c.lo) .. ".." .. number(c.hi) or "-", verdict_of(c) }
  end
  return rows
end

function M.print_claims(claims)
  core.say "\nClaims, ours over the bands of the assumed constants"
  core.say(aligned.text(M.claims_rows(claims)))
  if next(core.args.set or {}) then
    core.say "With --set, only for the points that it leaves, which may not be those of the claims"
  end
  core.say ""
  for _, c in ipairs(claims) do
    core.say(("%s: %s"):format(name_of(c), c.text))
    if c.reason then core.say("  " .. c.reason:gsub("; ", "\n  ")) end
    if c.note then core.say("  " .. c.note) end
  end
end

--- Prints the head of an experiment and the tables of its simulated runs. complete: whether all of
--- these are there; refused: what was refused, as results.json has it.
function M.print_simulated(e, R, complete, refused)
  core.say(e.name .. (e.title ~= "" and ": " .. e.title or ""))
  local predicted = R:where { provenance = "simulated" }
  if #predicted.runs > 0 then simulated.print(e, predicted, complete, refused) end
end

--- Prints the tables of an experiment that follow those: of executed runs, claims, sensitivities.
function M.print(R, claims, sensitivities, refused)
  local groups = R:where { provenance = { "emulated", "measured" } }:groups(results.case_of)
  local differs = differences.of(groups)
  for g, runs in ipairs(groups) do executed.print(runs, differs[g]) end
  format.say_all(format.refused_lines(refused))
  if #claims > 0 then M.print_claims(claims) end
  sensitivity.print(sensitivities)
  if core.out_dir and not core.args.temporary then
    core.say(("\nResults and traces: %s"):format(core.out_dir))
  end
end

return M
