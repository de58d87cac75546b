-- moe.claim{ id = "lancet-034", value = function(R) ... }: compares a published figure with our
-- number. The figures are in papers/*.lua; the bands of our numbers come from moe.results.band.
--
-- Verdicts. `paper` is the published number; `ours` is our number at the values of all assumed
-- constants; the band [lo, hi] is the range of our number when the constants vary. `neutral` is the
-- number that means no effect, for example 1 for a speed-up; the effect of a number is its distance
-- from neutral (from 0 if neutral is not given). So 1.05 and 1.17 are near as numbers, but a gain
-- of 5% is not near a gain of 17%. A number is near the paper's if it is on the same side of
-- neutral and differs from it by at most `within` times the paper's effect. The verdict is the
-- first of these that applies:
--   not comparable   the recipe states this, with the reason
--   fitted           the recipe states that a constant was chosen to meet the figure, so nothing
--                    was predicted
--   no run           there is no run from which our number could be computed
--   reproduced       ours is near the paper's, and the band does not contain neutral
--   contradicted     the whole band is on the other side of neutral
--   bounded          the paper's number is beyond the claim's bound in the whole band, and no part
--                    of the band is near it: no schedule of the same ops reaches the number under
--                    the paper's own other numbers
--   constant open    the band contains neutral, so that even the direction of the effect depends on
--                    the assumed constants; or a part of it is near the paper's
--   not published    the same, and the recipe states what the paper does not give and no band can
--                    stand for
--   direction only   the whole band is on the paper's side of neutral, and a part of it has an
--                    effect within a factor of 3 of the paper's
--   contradicted     otherwise: the whole band is beyond that factor, or, without neutral, no part
--                    of it is near
local errors = require "moe.base.errors"
local papers = require "moe.papers"
local schema = require "moe.base.schema"

local M = {}

local mt = schema.class("claim", "a claim from moe.claim {...}")

local FACTOR = 3  -- largest ratio of two effects for the verdict "direction only"

M.FIELDS = {
  id = { type = "string", required = true,
    doc = "id of the published figure, see `moebench list claims`" },
  value = { type = "function", required = true, as = "fun(R: moe.Results): number|boolean?",
    doc = "returns our number; called again for each end of the band" },
  within = { type = "number", lo = 0, hi = 10, default = 0.1,
    doc = "largest difference for the verdict reproduced, as a share of the paper's effect" },
  neutral = { type = "number", doc = "the number that means no effect (1 for a speed-up)" },
  not_comparable = { type = "string",
    doc = "why our set-up cannot be compared with the paper's, if it cannot" },
  fitted = { type = "string", doc = "the constant that was chosen to meet the figure, if any" },
  bound = { type = "function", as = "fun(R: moe.Results): number?",
    doc = "returns the most that any schedule of the same ops reaches on the paper's side of "
      .. "neutral (where the paper's number is below neutral, the least), or nil if it is not "
      .. "known; called for each end of the band" },
  bound_by = { type = "string", doc = "what gives the bound; give it with bound" },
  not_published = { type = "string",
    doc = "what the paper does not give and no band can stand for, if anything" },
  label = { type = "string",
    doc = "names the results, if one figure is compared with several" },
  note = { type = "string", doc = "an explanation that is shown if our number differs" },
}

-- The unit of a figure that is a statement: its value is 1 if the statement is true, 0 if not.
local YES_NO = "yes/no"

--- Returns a number of a claim as text, by default with three digits; for a statement, yes or no.
function M.number_text(unit, x, format)
  if unit == YES_NO and (x == 0 or x == 1) then return x == 1 and "yes" or "no" end
  return (format or "%.3g"):format(x, unit)
end

M.claim = schema.taking(M.FIELDS, "moe.claim", function(c, at)
  c.paper = rawget(papers, c.id)
  if not c.paper then
    schema.unknown("moe.claim.id", "figure", c.id, schema.keys_of(papers), at)
  end
  if c.bound and not (c.neutral and c.bound_by) or c.bound_by and not c.bound then
    errors.user("moe.claim.bound: bound, bound_by and neutral belong together, since a bound is "
      .. "that of an effect; give all three, or neither bound nor bound_by", at)
  end
  if c.paper.unit == YES_NO then c.neutral = 0 end
  if c.neutral == c.paper.value then
    errors.user(("moe.claim.neutral: %g is equal to the paper's number; give another number or "
      .. "omit neutral"):format(c.neutral), at)
  end
  c.at = at
  return schema.object(c, mt)
end)

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

local function side_of(c) return c.paper.value > c.neutral and 1 or -1 end

-- Returns the ends of the band as shares of the paper's effect, the smaller one first.
local function shares(c, b)
  local near, far = b.lo - c.neutral, b.hi - c.neutral
  if side_of(c) < 0 then near, far = far, near end
  return near / (c.paper.value - c.neutral), far / (c.paper.value - c.neutral)
end

local function judged(c, b, most)
  if b.ours == nil then return "no run", "there is no run that gives our number" end
  local lo, hi = near_interval(c)
  local is_near = b.ours >= lo and b.ours <= hi and b.ours ~= c.neutral
  if is_near and not holds_neutral(c, b) then return "reproduced" end
  local low, high
  if c.neutral then low, high = shares(c, b) end
  if low and high < 0 then return "contradicted" end
  local is_part_near = b.lo < b.hi and b.lo <= hi and b.hi >= lo
  if most and not is_part_near and side_of(c) * (c.paper.value - most) > 0 then
    return "bounded", ("%s %s over the band: %s"):format(
      side_of(c) > 0 and "at most" or "at least", M.number_text(c.paper.unit, most), c.bound_by)
  end
  if holds_neutral(c, b) or is_part_near then
    return c.not_published and "not published" or "constant open"
  end
  local agrees = low and low > 0 and high >= 1 / FACTOR and low <= FACTOR
  return agrees and "direction only" or "contradicted"
end

--- Returns the verdict for the band b = { ours, lo, hi } (moe.results.band), one of those at the
--- top of this file, and the reason if the recipe, the bound or a missing run determines it. most:
--- the loosest value of the claim's bound over the band, or nil. A number beyond a bound is so
--- whatever constant was chosen to meet the figure.
function M.verdict(c, b, most)
  if c.not_comparable then return "not comparable", c.not_comparable end
  local verdict, reason = judged(c, b, most)
  if c.fitted and verdict ~= "bounded" then return "fitted", c.fitted end
  return verdict, reason
end

local function is_statement(c) return c.paper.unit == YES_NO end

-- Returns a sentence on how far the paper's number is outside the band; nil if it is inside, or if
-- the figure is a statement.
local function distance(c, b)
  local below, above = b.lo - c.paper.value, c.paper.value - b.hi
  if is_statement(c) or math.max(below, above) <= 0 then return nil end
  return ("the paper's number is %.3g %s %s"):format(math.max(below, above),
    below > 0 and "below" or "above", b.lo < b.hi and "the band" or "ours")
end

-- Returns a string with distance() and with the constant that changes our number most; nil if there
-- is neither.
local function difference(c, b)
  local parts, s, reading = { distance(c, b) }, b.sensitivity[1], b.reading
  local function number(x) return x and M.number_text(c.paper.unit, x) or "none" end
  if s then
    parts[#parts + 1] = ("%s moves ours most, %s at %g and %s at %g"):format(s.constant,
      number(s.at_lo), s.lo, number(s.at_hi), s.hi)
  end
  if reading then
    parts[#parts + 1] = ("%s moves ours most, to %s"):format(reading.name, number(reading.ours))
  end
  return parts[1] and table.concat(parts, "; ")
end

local function checked(c, ours, field)
  if is_statement(c) and type(ours) == "boolean" then return ours and 1 or 0 end
  if ours ~= nil and (type(ours) ~= "number" or ours ~= ours) then
    errors.user(("moe.claim.%s: returned %s; return a number (for a yes/no figure also a "
      .. "boolean), or nil if there is no run"):format(field, schema.show(ours)), c.at)
  end
  return ours
end

-- Returns the loosest value of the claim's bound over the band; nil where a part has none.
local function loosest_bound(c, band)
  if not c.bound then return nil end
  local known, side = true, side_of(c)
  local b = band:of(function(R)
    local most, ours = checked(c, c.bound(R), "bound"), checked(c, c.value(R), "value")
    known = known and most ~= nil
    if most and ours and side * (ours - most) > 1e-9 * math.abs(most) then
      errors.user(("moe.claim.bound: returned %g, but our number, %g, is beyond it; return what no "
        .. "schedule of the same ops can pass"):format(most, ours), c.at)
    end
    return most
  end)
  return known and (side > 0 and b.hi or b.lo) or nil
end

schema.record("verdict", "verdict", "an evaluated claim, as in results.json", {
  { "id", "string", "id of the figure" }, { "figure", "string", "the figure's name in its paper" },
  { "text", "string", "what the figure states" }, { "unit", "string", "unit of the numbers" },
  { "label", "string?", "names the results that the figure is compared with" },
  { "paper", "number", "the paper's number" },
  { "ours", "number?", "our number; nil if there is no run" },
  { "lo", "number?", "lower end of our band" }, { "hi", "number?", "upper end of our band" },
  { "bound", "number?", "the loosest value of the claim's bound over the band" },
  { "verdict", "string", "reproduced, direction only, contradicted, bounded, constant open, not "
    .. "published, no run, fitted or not comparable" },
  { "reason", "string?", "the reason of the verdict" },
  { "note", "string?", "the claim's note, if our number differs" },
  { "sensitivity",
    "{ constant: string, lo: number, hi: number, at_lo?: number, at_hi?: number }[]",
    "our number at both ends of each assumed constant" },
  { "moved_by", "string?", "the constant, or the reading, that moves our number most" },
})

--- Evaluates the claim over the band; returns a record of the type "verdict".
function M.evaluate(c, band)
  local b = band:of(function(R) return checked(c, c.value(R), "value") end)
  local most = b.ours and loosest_bound(c, band)
  local word, reason = M.verdict(c, b, most)
  local outside = b.ours and (c.paper.value < b.lo or c.paper.value > b.hi)
  local differs = word ~= "reproduced" or outside and b.lo < b.hi
  local parts = { reason }
  if word == "constant open" or word == "not published" then
    parts[1] = c.not_published
    parts[#parts + 1] = "the band decides" .. (holds_neutral(c, b) and not is_statement(c)
      and (", it holds %g, no effect"):format(c.neutral) or "")
  end
  if differs and b.ours and not (c.not_comparable or c.fitted) then
    parts[#parts + 1] = difference(c, b)
  end
  local s = b.sensitivity[1] or b.reading
  return { id = c.id, label = c.label, figure = c.paper.figure, text = c.paper.text,
    unit = c.paper.unit, paper = c.paper.value, ours = b.ours, lo = b.lo, hi = b.hi, bound = most,
    verdict = word, reason = parts[1] and table.concat(parts, "; "),
    note = differs and c.note or nil, sensitivity = b.sensitivity,
    moved_by = s and (s.constant or s.name) }
end

return M
