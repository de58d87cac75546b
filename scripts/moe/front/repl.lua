-- `moebench repl`: a prompt that evaluates texts in Lua (moe.front.session) and shows their values.
local core = require "moe.core"
local session = require "moe.front.session"
local shown = require "moe.front.shown"
local topics = require "moe.topics"

local M = {}

--- Returns the words that may stand at the end of the text before the cursor, from the tables of
--- `moebench doc`: functions as moe.plan, or fields in the braces of a call moe.plan {.
function M.complete(text)
  local found, seen, word = {}, {}, text:match "[%w_.]*$"
  local call = text:match "moe%.([%w_.]+)[^{}]*{[^{}]*$"
  for _, t in ipairs(topics.all()) do
    local names = {}
    if t.call and word:find "^moe%." then
      names[1] = ("moe." .. t.name):match(("^" .. word:gsub("%.", "%%.") .. "[%w_]*"))
    end
    for _, m in ipairs(t.call and t.name == call and t.members or {}) do
      names[#names + 1] = m.name:sub(1, #word) == word and m.name or nil
    end
    for _, name in ipairs(names) do
      if not seen[name] then found[#found + 1], seen[name] = name, true end
    end
  end
  return found
end

-- Returns whether a text is only the beginning of one that can be evaluated.
local function is_begun(err)
  return err.message:find("'<eof>'", 1, true) ~= nil
end

local function say_error(err)
  core.say(("%s%s"):format(err.source and ("%s:%s: "):format(err.source, err.line) or "",
    err.message))
end

-- Evaluates a text and shows its values. Returns false if more lines must follow, which there are
-- not if it is `whole`.
local function evaluate(text, whole)
  local values, err, not_lua = session.evaluate(text, "prompt")
  if not values then
    local failure = session.failure(err)
    if not_lua and not whole and is_begun(failure) then return false end
    say_error(failure)
  end
  for i = 1, values and not values.said and values.n or 0 do core.say(shown.text(values[i])) end
  return true
end

--- Evaluates what is typed until the input ends.
function M.repl()
  session.begin()
  local text
  while true do
    local line = core.read_line(text and "   ..> " or "moe> ", core.args.history or "", M.complete)
    if not line then break end
    text = text and text .. "\n" .. line or line
    if not text:find "%S" or evaluate(text, line == "") then text = nil end
  end
end

return M
