-- moe.claim{ id = "lancet-034", value = function(R) ... }: a published figure beside ours. The
-- figures stand in papers/*.lua; the constants that ours rests on, in moe.band.
--
-- Verdicts. `paper` is the published number; `ours` our number at the values of all assumed
-- constants; the band [lo, hi] what ours is over their bands. `neutral` is the number that means no
-- effect; the effect is a number's distance from it, from 0 where it is not given: 1.05 is near
-- 1.17, but a gain of 5% is not near one of 17%. A number is near the paper's when it is on the
-- same side of neutral and differs by no more than `within` times the paper's effect. The first
-- that holds:
--   not comparable   the recipe says so, and why
--   fitted           the recipe says which constant was chosen to meet it: nothing was predicted
--   undetermined     there is no run to compute ours from
--   undetermined     the band decides: it holds the neutral value, so that even the direction
--                    depends on the constants
--   reproduced       ours is near the paper's
--   undetermined     the band decides: ours is not near the paper's, but some of the band is
--   direction only   the whole band is on the paper's side of neutral, and the effect comes within
--                    a factor of 3 of the paper's
--   contradicted     all else: the whole band is on the other side of neutral or beyond that
--                    factor; or, without a neutral value, none of it is near
local errors = require "moe.base.errors"
local papers = require "moe.papers"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("claim", "a claim, as moe.claim {...}")

local FACTOR = 3  -- of effects that still agree in direction

M.FIELDS = {
  id = { type = "string", required = true, doc = "figure id, see `moebench list claims`" },
  value = { type = "function", required = true, as = "fun(R: moe.Results): number|boolean?",
    doc = "our number; called for every end of the band" },
  within = { type = "number", lo = 0, hi = 10, default = 0.1,
    doc = "distance that still counts as reproduced, over the paper's effect" },
  neutral = { type = "number", doc = "the value that means no effect (1 for a speed-up)" },
  not_comparable = { type = "string", doc = "the reason, when the set-up is another" },
  fitted = { type = "string", doc = "the constant that was chosen to meet it" },
  label = { type = "string", doc = "of which results, where a figure is evaluated on several" },
  note = { type = "string", doc = "what would explain a difference; shown where there is one" },
}

-- A figure that is a statement: 1 where it holds, 0 where it does not.
local YES_NO = "yes/no"

--- A number of a claim as text, by default with three digits; that of a statement is yes or no.
function M.number_text(unit, x, format)
  if unit == YES_NO and (x == 0 or x == 1) then return x == 1 and "yes" or "no" end
  return (format or "%.3g"):format(x, unit)
end

function M.claim(t)
  local at = errors.here()
  local c = schema.check(M.FIELDS, t, "moe.claim", at)
  c.paper = rawget(papers, c.id)
  if not c.paper then
    schema.unknown("moe.claim.id", "figure", c.id, schema.keys_of(papers), at)
  end
  if c.paper.unit == YES_NO then c.neutral = 0 end
  if c.neutral == c.paper.value then
    errors.user(("moe.claim.neutral: %g is the paper's number itself"):format(c.neutral), at)
  end
  c.at = at
  return schema.object(c, mt)
end

-- Least and most of the numbers near the paper's.
local function near_interval(c)
  local paper, n = c.paper.value, c.neutral
  local far = c.within * math.abs(paper - (n or 0))
  local lo, hi = paper - far, paper + far
  if n and paper > n then lo = math.max(lo, n) end
  if n and paper < n then hi = math.min(hi, n) end
  return lo, hi
end

local function holds_neutral(c, b)
  return c.neutral and b.lo < b.hi and b.lo <= c.neutral and b.hi >= c.neutral
end

-- Whether the band, on the paper's side of neutral, comes within FACTOR of the paper's effect.
local function agrees_in_direction(c, b)
  if not c.neutral then return false end
  local effect = c.paper.value - c.neutral
  local low, high = (b.lo - c.neutral) / effect, (b.hi - c.neutral) / effect
  return math.min(low, high) > 0 and math.max(low, high) >= 1 / FACTOR
    and math.min(low, high) <= FACTOR
end

--- The verdict on the band b = { ours, lo, hi } (moe.band): a word of those above and, where the
--- recipe or the lack of runs decides, the reason.
function M.verdict(c, b)
  if c.not_comparable then return "not comparable", c.not_comparable end
  if c.fitted then return "fitted", c.fitted end
  if b.ours == nil then return "undetermined", "no run to compute it from" end
  if holds_neutral(c, b) then return "undetermined" end
  local lo, hi = near_interval(c)
  if b.ours >= lo and b.ours <= hi and b.ours ~= c.neutral then return "reproduced" end
  if b.lo < b.hi and b.lo <= hi and b.hi >= lo then return "undetermined" end
  return agrees_in_direction(c, b) and "direction only" or "contradicted"
end

local function is_statement(c) return c.paper.unit == YES_NO end

-- How far the paper's number lies outside the band; nil within it, and of a statement.
local function distance(c, b)
  local below, above = b.lo - c.paper.value, c.paper.value - b.hi
  if is_statement(c) or math.max(below, above) <= 0 then return nil end
  return ("the paper's lies %.3g %s %s"):format(math.max(below, above),
    below > 0 and "below" or "above", b.lo < b.hi and "the band" or "ours")
end

-- That, and what moves ours most; nil where there is neither.
local function difference(c, b)
  local parts, s = { distance(c, b) }, b.sensitivity[1]
  local function number(x) return x and M.number_text(c.paper.unit, x) or "none" end
  if s then
    parts[#parts + 1] = ("%s moves ours most, %s at %g and %s at %g"):format(s.constant,
      number(s.at_lo), s.lo, number(s.at_hi), s.hi)
  end
  return parts[1] and table.concat(parts, "; ")
end

local function checked(c, ours)
  if is_statement(c) and type(ours) == "boolean" then return ours and 1 or 0 end
  if ours ~= nil and (type(ours) ~= "number" or ours ~= ours) then
    errors.user(("moe.claim.value: returned %s; give a number, or nil without a run"):format(
      tostring(ours)), c.at)
  end
  return ours
end

schema.record("verdict", "verdict", "a claim beside the results, as results.json has it", {
  { "id", "string", "the figure's" }, { "figure", "string", "in its paper" },
  { "text", "string", "what the figure says" }, { "unit", "string", "of the numbers" },
  { "label", "string?", "of which results" },
  { "paper", "number", "the paper's number" },
  { "ours", "number?", "our number; nil without a run" },
  { "lo", "number?", "lower end of our band" }, { "hi", "number?", "upper end of our band" },
  { "verdict", "string", "reproduced, direction only, contradicted, undetermined, fitted or not "
    .. "comparable" },
  { "reason", "string?", "why it is that" },
  { "note", "string?", "the claim's, where there is a difference" },
  { "sensitivity",
    "{ constant: string, lo: number, hi: number, at_lo?: number, at_hi?: number }[]",
    "what ours is at the ends of each constant" },
})

--- The claim beside the results, in the band: a verdict.
function M.evaluate(c, band)
  local b = band:of(function(R) return checked(c, c.value(R)) end)
  local word, reason = M.verdict(c, b)
  local outside = b.ours and (c.paper.value < b.lo or c.paper.value > b.hi)
  local differs = word ~= "reproduced" or outside and b.lo < b.hi
  if not reason and differs then reason = difference(c, b) end
  if word == "undetermined" and b.ours then
    local of_what = holds_neutral(c, b) and not is_statement(c)
      and (", it holds %g, no effect"):format(c.neutral) or ""
    reason = ("the band decides%s"):format(of_what) .. (reason and "; " .. reason or "")
  end
  return { id = c.id, label = c.label, figure = c.paper.figure, text = c.paper.text,
    unit = c.paper.unit, paper = c.paper.value, ours = b.ours, lo = b.lo, hi = b.hi, verdict = word,
    reason = reason, note = differs and c.note or nil, sensitivity = b.sensitivity }
end

return M
