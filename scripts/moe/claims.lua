-- moe.claim{ id = "lancet-034", value = function(R) ... }: a published figure beside ours.
-- The figures stand in moe/papers/*.lua. A verdict is one of: reproduced (within the tolerance that
-- the claim names), direction only, contradicted, undetermined, fitted, not comparable.
local errors = require "moe.errors"
local schema = require "moe.schema"

local M = {}

local FIELDS = {
  id = { type = "string", required = true, doc = "figure id, see `moebench list claims`" },
  value = { type = "function", required = true, doc = "function(results) returning our number" },
  within = { type = "number", lo = 0, hi = 10, default = 0.1,
    doc = "relative distance that still counts as reproduced" },
  neutral = { type = "number", doc = "the value that means no effect (1 for a speed-up)" },
  not_comparable = { type = "string", doc = "the reason, when the set-up is another" },
  fitted = { type = "string", doc = "the constant that was chosen to meet it" },
}

local function verdict(c, ours, paper)
  if c.not_comparable then return "not comparable", c.not_comparable end
  if c.fitted then return "fitted", c.fitted end
  if ours == nil then return "undetermined", "no run to compute it from" end
  if math.abs(ours - paper) <= c.within * math.abs(paper) then return "reproduced" end
  if c.neutral then
    if (ours - c.neutral) * (paper - c.neutral) > 0 then return "direction only" end
    return "contradicted"
  end
  return "contradicted"
end

function M.claim(t)
  local at = errors.here()
  local c = schema.check(FIELDS, t, "moe.claim", at)
  local papers = require "moe.papers.lancet"
  local paper = papers[c.id]
  if not paper then schema.unknown("moe.claim", "id", c.id, schema.keys_of(papers), at) end
  return function(R)
    local ours = c.value(R)
    local word, reason = verdict(c, ours, paper.value)
    return { id = c.id, figure = paper.figure, text = paper.text, unit = paper.unit,
      paper = paper.value, ours = ours, verdict = word, reason = reason }
  end
end

return M
