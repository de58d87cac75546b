-- What tests ask of a world.
local world = require "world"

local M = {}

--- The recipe fails at `line` with all the parts in its message, once.
function M.fails(text, line, ...)
  local w = world.run(text)
  M.failed(w, line, ...)
  return w
end

function M.failed(w, line, ...)
  assert(w.error, "no error was raised")
  assert(type(w.error) == "table" and w.error.kind == "user", "not a user error: " .. w.message)
  local place = w.message:match("^recipe%.lua:(%d+): ")
  if line then
    assert(tonumber(place) == line, ("expected line %d: %s"):format(line, w.message))
  end
  for _, part in ipairs { ... } do
    assert(w.message:find(part, 1, true), ("expected '%s': %s"):format(part, w.message))
  end
  local _, places = w.message:gsub("recipe%.lua:%d+:", "")
  assert(places <= 1, "more than one place: " .. w.message)
end

--- The recipe runs; returns its world.
function M.runs(text, args, mode, setup)
  local w = world.run(text, args, mode, setup)
  assert(not w.error, w.message)
  return w
end

--- The recipe, which the engine plans and simulates, runs; or, if parts are given, fails with all
--- of them in its message.
function M.plans(text, ...)
  local w = world.run(text, {}, "run", world.on_engine)
  assert(w.error or select("#", ...) == 0, "no error was raised")
  for _, part in ipairs { ... } do
    assert(w.message:find(part, 1, true), ("expected '%s': %s"):format(part, w.message))
  end
  assert(not w.error or select("#", ...) > 0, w.message)
  return w
end

function M.equal(got, expected, what)
  if type(got) == "table" and type(expected) == "table" then
    got, expected = world.encode(got), world.encode(expected)
  end
  assert(got == expected, ("%s: expected %s, got %s"):format(what or "value", tostring(expected),
    tostring(got)))
end

--- A recipe's head, on one line: moe, a model m.
M.HEAD = 'local moe = require "moe" local m = moe.model.gpt2_moe { vocab = 256, layers = 2, '
  .. 'hidden = 32, heads = 4, seq = 16, batch_per_device = 2, experts_per_device = 2 }\n'

return M
