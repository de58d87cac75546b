-- A session: texts in Lua that are evaluated one after the other in a state that stays alive, by
-- `moebench serve` and `moebench repl`. A text sees the globals of those before it, and `moe`.
local core = require "moe.core"
local errors = require "moe.base.errors"
local experiment = require "moe.run.experiment"
local outputs = require "moe.run.outputs"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local search = require "moe.search.search"
local session = require "moe.run.session"

local M = {}

local count = 0

-- Runs the experiments that a text returned; returns the results of all.
local function run(list)
  local all = {}
  for _, R in ipairs(experiment.run_all(list)) do
    for _, r in ipairs(R.runs) do all[#all + 1] = r end
  end
  experiment.check_refused()
  return results.new(all)
end

--- Returns an error as { kind, message, source, line, traceback }; source and line: where in a text
--- or recipe it is, if it is known.
function M.failure(err)
  local kind = core.kind_of(err)
  local message = tostring(type(err) == "table" and err.message or err)
  local source, line, rest = message:match "^([^\n]-):(%d+): (.*)$"
  return { kind = kind ~= "" and kind or "lua", message = rest or message, source = source,
    line = tonumber(line), traceback = type(err) == "table" and err.traceback or nil }
end

--- Begins the session: `moe` is a global of its texts.
function M.begin()
  core.load_text("session", 'moe = require "moe"')()
  core.end_loading()
end

--- Evaluates a text, of which messages say `name`, and runs the experiments that it returns. Names
--- of experiments and searches are free again. Returns the list of its values, their number n and
--- `said`, whether it was printed what they are; or nil, the error, and whether the text is no Lua.
function M.evaluate(text, name)
  count = count + 1
  name = name or ("text %d"):format(count)
  for _, part in ipairs { experiment, outputs, search, session } do part.forget() end
  core.recipe = { name = name, path = name, hash = core.text_hash(text) }
  errors.keep_text(name, text)
  local is_lua, f = pcall(core.load_text, name, text)
  if not is_lua then
    core.recipe = nil
    return nil, f, true
  end
  local values
  local ok, err = core.guarded(function()
    values = (function(...) return { n = select("#", ...), ... } end)(f())
    local experiments = experiment.returned(values[1])
    values.said = experiments ~= nil or schema.is_a("search", values[1])
    if experiments then values[1] = run(experiments) end
  end)
  core.recipe = nil
  if not ok then return nil, err end
  return values
end

return M
