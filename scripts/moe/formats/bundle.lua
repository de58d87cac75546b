-- moe.bundle: a recipe with the files that it reads, the settings, seed and versions of a run and
-- its results, in one Lua file. `moebench run` of that file runs the recipe again, elsewhere or
-- later, and compares: simulated times, losses and digests must be the same; measured times are
-- shown beside those of before.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local errors = require "moe.base.errors"
local experiment = require "moe.run.experiment"
local outputs = require "moe.run.outputs"
local results = require "moe.results.results"
local schema = require "moe.base.schema"

local M = {}

M.WRITE = {
  results = { type = "string", required = true, doc = "the folder of the results" },
  recipe = { type = "string", required = true, doc = "the recipe's file" },
  files = { type = "list", of = { type = "string" }, default = {},
    doc = "files of text that the recipe reads, by the names that it gives them" },
  to = { type = "string", required = true,
    doc = "name of the file to write, in the output folder" },
}

-- Fields of a run that are kept and compared. A measured time is not expected to come out again.
local SIMULATED = { "iteration_ms", "exposed_comm_ms", "hidden_comm_ms", "peak_bytes", "num_ops",
  "plan_hash", "oom" }
local EXECUTED = { "losses", "digest", "drops", "executed_peak_bytes" }

local function fields_of(run)
  return run.provenance == "simulated" and SIMULATED or EXECUTED
end

-- Returns the runs as a bundle has them.
local function kept(runs)
  local out = core.array {}
  for i, run in ipairs(runs) do
    local of = { experiment = run.experiment, entry = run.entry, executor = run.executor,
      system = run.system, points = run.points or { run.point }, provenance = run.provenance,
      ms = run.iteration_ms }
    of.found = {}
    for _, name in ipairs(fields_of(run)) do of.found[name] = run[name] end
    out[i] = of
  end
  return out
end

-- Returns a long string of Lua that holds the text.
local function quoted(text)
  local level = ""
  while text:find("]" .. level .. "]", 1, true) do level = level .. "=" end
  return ("[%s[\n%s]%s]"):format(level, text, level)
end

local FILE = [[
-- %s of %s, packed by moe.bundle: `moebench run` of this file repeats it and compares.
local bundle = require("moe").bundle.open(%s)
return bundle.compare(function(...)
%s
end)
]]

local function write(t)
  local at = errors.here()
  local c = schema.check(M.WRITE, t, "moe.bundle.write", at)
  local text = errors.call(at, core.read_file, c.recipe)
  local data = results.load(c.results, at)
  if data.recipe.hash ~= core.text_hash(text) then
    errors.user(("moe.bundle.write.recipe: '%s' is not the recipe of the results in %s (or has "
      .. "changed since); run it again"):format(c.recipe, c.results), at)
  end
  local set = {}
  for _, e in ipairs(data.experiments) do set = schema.merged(set, e.set or {}) end
  local files = {}
  for _, name in ipairs(c.files) do files[name] = errors.call(at, core.read_file, name) end
  local info = { version = data.version, machine = data.machine, seed = data.seed, set = set,
    recipe = data.recipe.name, files = files, runs = kept(results.ended(data.runs).runs) }
  outputs.claim(c.to, "a bundle of " .. c.recipe, "moe.bundle.write.to", at)
  return errors.call(at, core.write_output, c.to, FILE:format(data.recipe.name, data.date or "",
    quoted(core.json_encode(info)), text))
end

local function key_of(run)
  return core.json_encode { run.experiment or "", run.entry or 1, run.executor, run.system,
    (run.points or { run.point })[1] or {} }
end

-- Returns the names of the fields that differ between a kept run and a run of now.
local function differing(old, run)
  local out = {}
  for _, name in ipairs(fields_of(run)) do
    if old.found[name] ~= nil
        and core.json_encode { old.found[name] } ~= core.json_encode { run[name] } then
      out[#out + 1] = name
    end
  end
  return out
end

-- Runs the experiments and compares with the bundle. Raises a user error if a result differs.
local function compare(info, recipe, at)
  local list = recipe()
  if schema.is_a("experiment", list) then list = { list } end
  if type(list) ~= "table" or not list[1] then
    errors.user("moe.bundle: the recipe returns no experiment whose results could be compared", at)
  end
  local old, differ, same = {}, 0, 0
  for _, run in ipairs(info.runs) do old[key_of(run)] = run end
  local rows = { { "system", "executor", "before ms", "now ms", "" } }
  for _, e in ipairs(list) do
    for _, run in ipairs(experiment.run(e).runs) do
      local key = key_of(run)
      local before = old[key]
      old[key] = nil
      local names = before and differing(before, run) or { "not in the bundle" }
      if names[1] then differ = differ + 1 else same = same + 1 end
      rows[#rows + 1] = { run.system, run.executor, before and ("%.6g"):format(before.ms) or "",
        ("%.6g"):format(run.iteration_ms), names[1] and "differs: " .. table.concat(names, ", ")
        or before.provenance == "simulated" and "same" or "same but for time" }
    end
  end
  local missing = #schema.keys_of(old)
  core.say(("\nBundle of %s, moebench %s (%s):\n%s\n%d the same, %d different, %d missing"):format(
    info.recipe, info.version, (info.machine or {}).git or "", aligned.table(rows), same, differ,
    missing))
  if differ + missing > 0 then
    errors.user(("moe.bundle: %d results differ from those of moebench %s, %d are missing"):format(
      differ, info.version, missing), at)
  end
end

-- moe.bundle.open(text): what a bundle's own file calls: the files, settings and seed of the run
-- hold from here on. Returns { compare = function(recipe) }.
local function open(text)
  local at = errors.here()
  local info = errors.call(at, core.json_decode, text, "bundle")
  if type(info) ~= "table" or type(info.runs) ~= "table" or type(info.files) ~= "table" then
    errors.user("moe.bundle.open: it is not what moe.bundle.write wrote", at)
  end
  local read = core.read_file
  core.read_file = function(name) return info.files[name] or read(name) end
  core.args.seed = core.args.seed or info.seed
  core.args.set = schema.merged(info.set, core.args.set or {})
  return { compare = function(recipe) return compare(info, recipe, errors.here()) end }
end

M.functions = schema.functions("moe.bundle", "function", {
  write = { write, M.WRITE, "string",
    "packs a recipe, the files that it reads and its results into one file, which `moebench run` "
      .. "repeats and compares; returns its path" },
  open = { open, "(text: string)", "{ compare: fun(recipe: function) }",
    "what the file of a bundle calls" },
})

return M
