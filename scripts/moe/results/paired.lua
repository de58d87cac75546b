-- Comparison of two executed systems step by step: in turns, step s of one runs shortly before or
-- after step s of the other, with the same data, so that what slows the machine down meets both.
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

local CONFIDENCE = 0.95

schema.record("difference", "d", "the times of a run divided by those of another, step by step", {
  { "a", "moe.Run", "the run" }, { "b", "moe.Run", "the other run" },
  { "ratio", "number", "median over steps; where times are means over steps, the ratio of means" },
  { "lo", "number?", "lower end of its interval of 95%; nil if there are too few steps" },
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

--- Returns the sum of one list divided by that of another, and the ends of its interval, as for
--- median(). Numbers with the same index belong together.
function M.mean(over, under)
  local n, ratio, squares = #over, values.new(over):mean() / values.new(under):mean(), 0
  if rank_of(n) == 0 then return ratio end
  for i = 1, n do squares = squares + (over[i] - ratio * under[i]) ^ 2 end
  -- Student's quantile for n - 1 degrees (Abramowitz and Stegun, 26.7.5, three terms).
  local t = 1.96 + 2.37 / (n - 1) + 2.82 / (n - 1) ^ 2
  local half = t * math.sqrt(squares / (n * (n - 1))) / values.new(under):mean()
  return ratio, ratio - half, ratio + half
end

--- Returns the difference between two runs of one case, or nil if they did not run in turns. Their
--- first steps are left out.
function M.difference(a, b)
  if not (a.turn_steps and b.turn_steps) then return nil end
  local over, under, ratios = {}, {}, {}
  for step = 2, math.min(#a.samples_ms, #b.samples_ms) do
    local i = step - 1
    over[i], under[i] = a.samples_ms[step], b.samples_ms[step]
    ratios[i] = over[i] / under[i]
  end
  if #ratios == 0 then return nil end
  local out = { a = a, b = b, verdict = "not resolved" }
  local of_means = a.statistic == "mean"
  out.ratio, out.lo, out.hi = (of_means and M.mean or M.median)(of_means and over or ratios, under)
  if not out.lo then return out end
  if out.hi < 1 then out.verdict = "faster" elseif out.lo > 1 then out.verdict = "slower" end
  return out
end

return M
