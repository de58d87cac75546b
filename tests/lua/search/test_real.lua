local expect = require "expect"
local test = require "test"

local real = require "moe.search.real"

-- Returns what is said of two runs a and b with these predicted and executed ratios.
local function pair(predicted, ratio, verdict, disturbed)
  return real.pair { a = { system = "a", prediction = { iteration_ms = predicted } },
    b = { system = "b", prediction = { iteration_ms = 1 }, disturbed = disturbed },
    ratio = ratio, verdict = verdict }
end

test("an order holds or not where it is predicted, resolved and not disturbed", function()
  expect.equal(pair(0.8, 0.9, "faster").held, true)
  expect.equal(pair(1.2, 0.9, "faster").held, false)
  expect.equal(pair(1.2, 1.1, "slower").held, true)
  expect.equal(pair(0.8, 1.01, "not resolved").held, nil)
  expect.equal(pair(0.995, 0.9, "faster").held, nil)
  local disturbed = pair(1.2, 0.9, "faster", "other processes took 9% of the cores' time")
  expect.equal(disturbed.held, nil)
  expect.equal(disturbed.disturbed, true)
end)
