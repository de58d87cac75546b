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

--- Returns the median of samples and the ends of its interval, which are nil for too few samples.
--- Sorts the samples.
function M.median(samples)
  table.sort(samples)
  local n = #samples
  local middle, c = (samples[math.floor((n + 1) / 2)] + samples[math.ceil((n + 1) / 2)]) / 2,
    rank_of(n)
  if c == 0 then return middle end
  return middle, samples[c], samples[n + 1 - c]
end

--- Returns the difference between two runs of one case, or nil if they did not run in turns. Their
--- first steps are left out.
function M.difference(a, b)
  if not (a.turn_steps and b.turn_steps) then return nil end
  local ratios = {}
  for step = 2, math.min(#a.samples_ms, #b.samples_ms) do
    ratios[#ratios + 1] = a.samples_ms[step] / b.samples_ms[step]
  end
  if #ratios == 0 then return nil end
  local out = { a = a, b = b, verdict = "not resolved" }
  out.ratio, out.lo, out.hi = M.median(ratios)
  if not out.lo then return out end
  if out.hi < 1 then out.verdict = "faster" elseif out.lo > 1 then out.verdict = "slower" end
  return out
end

return M
