-- What the exercises share: the question, the reader's guess from --set guess=, and its error.
local moe = require "moe"

local set = moe.options { guess = "" }
local M = {}

--- Prints the question. Returns the guess, a number; nil where none is given yet, after saying what
--- is to be guessed: a number of this unit.
function M.number(question, unit)
  print(question)
  local guess = tonumber(set.guess)
  if set.guess ~= "" and not guess then
    error(("guess=%s: is no number; give one, in %s"):format(set.guess, unit), 0)
  end
  if not guess then print(("\nYour guess first, in %s: --set guess=NUMBER"):format(unit)) end
  return guess
end

--- Prints the answer, how far the guess is off, and why the answer is as it is.
function M.answer(guess, answer, unit, why)
  local off = math.abs(guess - answer) / math.abs(answer)
  print(("\nAnswer: %.3g %s. Your guess, %.3g, is off by %.0f%%."):format(answer, unit, guess,
    100 * off))
  print("Why: " .. why)
end

--- Returns the time of a plan's collectives of a kind, each alone, and what compute hides of it, in
--- ms.
function M.hidden(plan, kind)
  local alone, hidden = 0, 0
  for _, c in ipairs(plan:explain().collectives) do
    if c.kind == kind then alone, hidden = alone + c.alone_ms, hidden + c.hidden_ms end
  end
  return alone, hidden
end

--- The guess as text, "" where none is given.
M.text = set.guess

return M
