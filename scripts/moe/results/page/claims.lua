-- The blocks (page/blocks.lua) of claims, and of the sensitivity of numbers to the assumed
-- constants.
local band = require "moe.results.charts.band"
local blocks = require "moe.results.page.blocks"
local html = require "moe.results.page.html"
local report = require "moe.results.report"
local sensitivity = require "moe.results.sensitivity"

local M = {}

local function axis_of(claim)
  local list = { claim.paper, claim.ours or claim.paper, claim.lo or claim.paper,
    claim.hi or claim.paper }
  local lo, hi = math.min(unpack(list)), math.max(unpack(list))
  return { lo, hi > lo and hi or lo + 1 }
end

local function moved(claims, rows)
  local list = {}
  for i, claim in ipairs(claims) do
    if #claim.sensitivity > 0 then
      list[#list + 1] = setmetatable({ name = rows[i + 1][1] }, { __index = claim })
    end
  end
  return #list > 0 and blocks.table("moves", "What moves the claims' numbers",
    sensitivity.rows(list)) or nil
end

--- Returns the blocks of the claims; set: whether --set left only some points.
function M.blocks(claims, set)
  if #claims == 0 then return {} end
  local rows, notes, cells = report.claims_rows(claims), {}, {}
  for i, claim in ipairs(claims) do
    cells[i] = band.band(claim, axis_of(claim))
    notes[#notes + 1] = html.dt { rows[i + 1][1] }
    notes[#notes + 1] = html.dd { html.b { claim.verdict }, ": ", claim.text,
      claim.reason and html.p { claim.reason } or "", claim.note and html.p { claim.note } or "" }
  end
  return { blocks.html { html.h3 { "Claims" }, html.p {
      "Our numbers over the bands of the assumed constants", set
        and "; only for the points that --set leaves" or "", "; each row has its own axis" },
      blocks.legend(band.LEGEND) },
    blocks.table("claims", "Claims", rows,
      { extra = { header = "paper and ours", cells = cells } }),
    blocks.html(html.dl { notes }), moved(claims, rows) }
end

--- Returns the blocks of an experiment's sensitivities.
function M.sensitivities(list)
  if #list == 0 then return {} end
  return { blocks.html(html.h4 { "Sensitivity to the assumed constants" }),
    blocks.table("sensitivity", "Sensitivity to the assumed constants", sensitivity.rows(list)) }
end

return M
