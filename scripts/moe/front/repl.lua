-- `moebench repl`: a prompt at which texts in Lua are evaluated (moe.front.session) and their
-- values shown.
local core = require "moe.core"
local session = require "moe.front.session"
local shown = require "moe.front.shown"
local topics = require "moe.topics"

local M = {}

-- Returns the names that may follow the text before the cursor, in full, and the length of what is
-- there of them: moe.<name> and the fields of a call moe.<name> {, from the tables of `moebench
-- doc`.
function M.complete(text)
  local found, seen = core.array {}, {}
  local function add(name, known)
    if name:sub(1, #known) == known and not seen[name] then
      found[#found + 1], seen[name] = name, true
    end
  end
  local path = text:match "moe%.[%w_.]*$"
  if path then
    local known = path:sub(#"moe." + 1)
    for _, t in ipairs(topics.all()) do
      local next_part = t.call and t.name:match("^[%w_]*", 1 + #(known:match "^.*%." or ""))
      if next_part then add((known:match "^.*%." or "") .. next_part, known) end
    end
    return found, #known
  end
  local call, known = text:match "moe%.([%w_.]+)[%s\"%w_]*{[^{}]-([%w_]*)$"
  for _, t in ipairs(call and topics.all() or {}) do
    if t.call and t.name == call then
      for _, m in ipairs(t.members) do add(m.name, known) end
    end
  end
  return found, #(known or "")
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
