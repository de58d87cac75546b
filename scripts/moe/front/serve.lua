-- `moebench serve --stdio`: requests, lines of JSON on stdin, are answered by lines of JSON on
-- stdout, in order. bindings/README.md describes the protocol.
local core = require "moe.core"
local errors = require "moe.base.errors"
local export = require "moe.results.export"
local folder = require "moe.results.page.folder"
local schema = require "moe.base.schema"
local session = require "moe.front.session"
local shown = require "moe.front.shown"
local style = require "moe.results.style"
local topics = require "moe.doc"

local M = {}

M.PROTOCOL = 1

local TEXT = { type = "string" }
local TABLE = { type = "table", default = {} }

-- What may be asked: name -> { fields of the request, function(request) -> fields of the answer }.
local ASKED = {}

ASKED.eval = { { text = { type = "string", required = true }, name = TEXT }, function(r)
  local values, err = session.evaluate(r.text, r.name)
  if not values then return { error = session.failure(err) } end
  local plain = {}
  for i = 1, values.n do
    plain[i] = shown.plain(values[i])
    if plain[i] == nil then plain[i] = core.null end
  end
  return { values = core.array(plain), frame = shown.frame_of(values[1]) }
end }

-- Returns what f() returns; an interrupt ends it, also in the library if that is said.
local function guarded(f, library)
  local ok, first, second = core.guarded(f, library)
  if not ok then error(first, 0) end
  return first, second
end

local folders = 0

-- Returns the arguments of `moebench run` for a request.
local function arguments_of(r, to)
  local list = { "run", r.text and "-" or r.recipe, "--json", "--out", to, "--cache",
    core.args.cache }
  local function add(...)
    for _, value in ipairs { ... } do list[#list + 1] = tostring(value) end
  end
  for name, value in pairs(r.set) do
    local values = {}
    for i, one in ipairs(type(value) == "table" and value or { value }) do
      values[i] = tostring(one)
    end
    add("--set", ("%s=%s"):format(name, table.concat(values, ",")))
  end
  for _, name in ipairs(r.read) do add("--read", name) end
  for _, name in ipairs { "executor", "ranks", "seed", "workers", "points", "sensitivity" } do
    if r[name] ~= nil then add("--" .. name, r[name]) end
  end
  if core.args.trust then add "--trust" end
  return list
end

local INTERRUPTED = 128 + 2  -- by SIGINT, before the process had begun
local NUMBER = { type = "integer", lo = 0, hi = 2 ^ 53 }

ASKED.run = { { recipe = TEXT, text = TEXT, set = TABLE, read = TABLE, out = TEXT, executor = TEXT,
  points = TEXT, sensitivity = TEXT, ranks = NUMBER, seed = NUMBER, workers = NUMBER }, function(r)
  schema.one_of(r, "recipe", "text", "run")
  folders = folders + 1
  local to = r.out or ("%s/run%d"):format(core.out_dir, folders)
  local status, text = guarded(function()
    return core.run_program(core.array(arguments_of(r, to)), r.text or "")
  end)
  local found = text ~= "" and core.json_decode(text) or {}
  local err = found.error
  if not err and status ~= 0 then
    err = { kind = "run", message = status == INTERRUPTED and "interrupted" or
      ("the process of the run ended with status %d"):format(status) }
  end
  local runs = {}
  for _, run in ipairs(found.runs or {}) do
    if run.iteration_ms then runs[#runs + 1] = run end
  end
  return { status = status, error = err and session.failure(core.failure(err.kind, err.message,
    err.traceback)) or nil, folder = to, frame = found.runs and shown.frame(runs) or nil },
    found.runs and text
end }

-- Returns the figures of a folder with results as files of this ending.
local function files_of(r)
  core.args.where, core.args.names = next(r.where) and r.where or nil, r.names
  local report, list = folder.report(folder.load(r.folder or core.out_dir), {}), core.array {}
  for _, file in ipairs(export.files(report, r)) do
    local name, ending = file[1]:match "^(.*)%.(%w+)$"
    if ending == r.ending then list[#list + 1] = { name = name, text = file[2] } end
  end
  return list
end

ASKED.figures = { schema.merged(style.OPTIONS, { folder = TEXT, where = TABLE,
  ending = { type = "string", enum = { "svg", "csv", "tex" }, default = "svg" } }), function(r)
  return { figures = guarded(function() return files_of(r) end, true) }
end }

ASKED.doc = { { topic = TEXT }, function(r) return { text = topics.text(r.topic) } end }

ASKED.drop = { { folders = { type = "list", of = { type = "string" }, required = true } },
  function(r)
    for _, name in ipairs(r.folders) do
      if name:match "^.*/" == core.out_dir .. "/" then core.remove_output(name:match "[^/]*$") end
    end
    return {}
  end }

-- Returns the answer to the request in a line, as a table, and results.json as text, or nil.
local function answer_to(line)
  local decoded, r = pcall(core.json_decode, line, "request")
  if not decoded or type(r) ~= "table" then
    return { error = { kind = "command", message = "a request must be an object of JSON" } }
  end
  local out, whole
  local ok, err = xpcall(function()
    local asked = ASKED[r["do"]]
    if not asked then schema.unknown("request", "value of `do`", r["do"], schema.keys_of(ASKED)) end
    local given = schema.merged(r, {})
    given.id, given["do"] = nil, nil
    out, whole = asked[2](schema.check(asked[1], given, "request"))
  end, errors.with_traceback)
  if not ok then out = { error = session.failure(err) } end
  out.id = r.id
  return out, whole
end

--- Answers requests until the input ends.
function M.serve()
  core.answer(core.json_encode { moebench = core.version, protocol = M.PROTOCOL })
  session.begin()
  for line in core.next_request do
    local out, whole = answer_to(line)
    out.done = true
    local text = core.json_encode(out)
    if whole then  -- not decoded and encoded once more, since it may be long
      text = ('%s,"results":%s}'):format(text:sub(1, -2), (whole:gsub("\n", "")))
    end
    core.answer(text)
  end
end

return M
