-- moe.claim{ id = "lancet-034", value = function(R) ... }: a published figure beside ours. The
-- figures stand in papers/*.lua.
local errors = require "moe.errors"
local papers = require "moe.papers.lancet"
local schema = require "moe.schema"

local M = {}

local mt = schema.class("claim", "a claim, as moe.claim {...}")

M.FIELDS = {
  id = { type = "string", required = true, doc = "figure id, see `moebench list claims`" },
  value = { type = "function", required = true, doc = "function(results) returning our number" },
  within = { type = "number", lo = 0, hi = 10, default = 0.1,
    doc = "relative distance that still counts as reproduced" },
  neutral = { type = "number", doc = "the value that means no effect (1 for a speed-up)" },
  not_comparable = { type = "string", doc = "the reason, when the set-up is another" },
  fitted = { type = "string", doc = "the constant that was chosen to meet it" },
}

function M.claim(t)
  local at = errors.here()
  local c = schema.check(M.FIELDS, t, "moe.claim", at)
  c.paper = rawget(papers, c.id)
  if not c.paper then
    schema.unknown("moe.claim.id", "figure", c.id, schema.keys_of(papers), at)
  end
  c.at = at
  return setmetatable(c, mt)
end

-- The verdict and, where it needs one, the reason.
local function verdict(c, ours)
  local paper = c.paper.value
  if c.not_comparable then return "not comparable", c.not_comparable end
  if c.fitted then return "fitted", c.fitted end
  if ours == nil then return "undetermined", "no run to compute it from" end
  if math.abs(ours - paper) <= c.within * math.abs(paper) then return "reproduced" end
  if c.neutral and (ours - c.neutral) * (paper - c.neutral) > 0 then return "direction only" end
  return "contradicted"
end

--- The claim beside the results: { id, figure, text, unit, paper, ours, verdict, reason }.
function M.evaluate(c, R)
  local ours = c.value(R)
  if ours ~= nil and (type(ours) ~= "number" or ours ~= ours) then
    errors.user(("moe.claim.value: returned %s; give a number, or nil without a run"):format(
      tostring(ours)), c.at)
  end
  local word, reason = verdict(c, ours)
  return { id = c.id, figure = c.paper.figure, text = c.paper.text, unit = c.paper.unit,
    paper = c.paper.value, ours = ours, verdict = word, reason = reason }
end

return M
