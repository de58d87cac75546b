-- Comparison of two executed systems step by step: in turns, step s of one runs shortly before or
-- after step s of the other, with the same data, so that what slows the machine down meets both.
local schema = require "moe.base.schema"

local M = {}

local CONFIDENCE = 0.95

schema.record("difference", "d", "the times of a run divided by those of another, step by step", {
  { "a", "moe.Run", "the run" }, { "b", "moe.Run", "the other run" },
  { "ratio", "number", "median over steps" },
  { "lo", "number?", "lower end of the median's interval of 95%; nil if there are too few steps" },
  { "hi", "number?", "upper end" },
  { "verdict", '"faster"|"slower"|"not resolved"',
    "of `a`: faster or slower if the interval is on one side of 1" },
})

-- Returns the largest number c for which the c-th smallest and the c-th largest of n samples
-- enclose their median with at least the probability CONFIDENCE (the sign test's interval, which
-- assumes nothing of the distribution); 0 if there is none.
local function rank_of(n)
  local outside, term, c = 0, 0.5 ^ n, 0  -- term: probability that exactly c samples are below
  while true do
    outside = outside + 2 * term
    if outside > 1 - CONFIDENCE then return c end
    term = term * (n - c) / (c + 1)
    c = c + 1
  end
end

--- Returns the difference between two runs of one case, or nil if they did not run in turns. Their
--- first steps are left out.
function M.difference(a, b)
  if not (a.turn_steps and b.turn_steps) then return nil end
  local ratios = {}
  for step = 2, math.min(#a.samples_ms, #b.samples_ms) do
    ratios[#ratios + 1] = a.samples_ms[step] / b.samples_ms[step]
  end
  local n = #ratios
  if n == 0 then return nil end
  table.sort(ratios)
  local out = { a = a, b = b, verdict = "not resolved",
    ratio = (ratios[math.floor((n + 1) / 2)] + ratios[math.ceil((n + 1) / 2)]) / 2 }
  local c = rank_of(n)
  if c == 0 then return out end
  out.lo, out.hi = ratios[c], ratios[n + 1 - c]
  if out.hi < 1 then out.verdict = "faster" elseif out.lo > 1 then out.verdict = "slower" end
  return out
end

return M
