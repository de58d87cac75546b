-- `moebench merge`: the results of all parts of a sweep (--points) as those of one run, and what is
-- kept of the parts' simulations in one file.
local core = require "moe.core"
local errors = require "moe.base.errors"
local parts_lib = require "moe.run.parts"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local session = require "moe.run.session"
local simulated = require "moe.run.simulated"

local M = {}

-- Raises a user error unless the folders have all parts of one sweep, each once and complete.
local function check_parts(all)
  local have, first = {}, all[1]
  for _, data in ipairs(all) do
    local e = data.experiments[1]
    local part, parts = ((e or {}).points or ""):match "^(%d+)/(%d+)$"
    if not part then
      errors.user(("%s: is not a part of a sweep; merge takes what `moebench run --points` wrote")
        :format(data.dir))
    end
    local function text(d) return core.json_encode { d.recipe, d.seed, d.version,
      d.experiments[1].set or {}, d.experiments[1].over, d.experiments[1].points:match "/%d+" } end
    if text(data) ~= text(first) then
      errors.user(("%s and %s: differ in recipe, settings, seed, version or number of parts"):format(
        first.dir, data.dir))
    end
    if have[tonumber(part)] then
      errors.user(("%s and %s: are the same part, %s"):format(have[tonumber(part)], data.dir,
        e.points))
    end
    have[tonumber(part)] = data.dir
    local missing = results.incomplete(#results.ended(data.runs).runs, data.planned)
    if missing then
      errors.user(("%s: %s; run it again with --points %s, which goes on where it ended"):format(
        data.dir, missing, e.points))
    end
  end
  local parts, missing = tonumber(first.experiments[1].points:match "/(%d+)"), {}
  for i = 1, parts do
    if not have[i] then missing[#missing + 1] = ("%d/%d"):format(i, parts) end
  end
  if #missing > 0 then errors.user("merge: missing parts: " .. table.concat(missing, ", ")) end
end

local function load(dir)
  local data = results.load(dir)
  data.dir, data.planned = dir, 0
  for _, e in ipairs(data.experiments) do data.planned = data.planned + (e.planned or 0) end
  return data
end

-- Returns the experiments of all parts as those of one run.
local function experiments_of(all)
  local out = {}
  for i, e in ipairs(all[1].experiments) do
    local whole = schema.merged(e, { planned = 0, refused = {}, simulations = { done = 0, found = 0 } })
    for _, data in ipairs(all) do
      local part = data.experiments[i]
      whole.planned = whole.planned + part.planned
      for _, r in ipairs(part.refused or {}) do table.insert(whole.refused, r) end
      for name, n in pairs(part.simulations or {}) do
        whole.simulations[name] = whole.simulations[name] + n
      end
    end
    whole.points, whole.refused = nil, whole.refused[1] and whole.refused or nil
    out[i] = whole
  end
  return out
end

-- Returns the runs of all parts with their folders, in the order of one run: by experiment, entry
-- and point.
local function runs_of(all)
  local order, list = {}, {}
  for i, e in ipairs(all[1].experiments) do order[e.name] = { i, e.over } end
  for _, data in ipairs(all) do
    for i, run in ipairs(data.runs) do
      local at, over = unpack(order[run.experiment])
      list[#list + 1] = { run = run, dir = data.dir,
        key = { at, run.entry, parts_lib.place(over, run.point or run.points[1]), i } }
    end
  end
  table.sort(list, function(a, b)
    for i, x in ipairs(a.key) do
      if x ~= b.key[i] then return x < b.key[i] end
    end
    return false
  end)
  return list
end

-- Gives a run the trace that it has in one run of all parts, of which few have one.
local function take_trace(item, number)
  local run = item.run
  if not run.trace then return end
  local name = run.trace:gsub("^trace%-%d+", ("trace-%03d"):format(number))
  local kept = run.provenance ~= "simulated" or number <= simulated.MAX_TRACES
  if kept then core.write_output(name, core.read_file(item.dir .. "/" .. run.trace)) end
  run.trace = kept and name or nil
end

-- Merges the results of the folders into the output folder.
local function merge_results(folders)
  local all = {}
  for i, dir in ipairs(folders) do all[i] = load(dir) end
  check_parts(all)
  local runs = {}
  for number, item in ipairs(runs_of(all)) do
    take_trace(item, number)
    runs[number] = item.run
  end
  local whole = schema.merged(all[1], { experiments = core.array(experiments_of(all)),
    runs = core.array(runs), claims = core.array {}, sensitivities = core.array {},
    session = core.session, lines = 0 })
  whole.dir, whole.planned, whole.searches = nil, nil, nil
  core.write_output("results.json", core.json_encode(whole, 1) .. "\n")
  core.say(("%d runs of %d parts: %s"):format(#runs, #all, core.out_dir))
end

--- Merges what the command line names.
function M.merge()
  local folders, caches = core.args.folders, core.args.caches or {}
  if #folders > 0 then merge_results(folders) end
  if #caches > 0 then
    core.say(("%d simulations were added to those beside %s"):format(
      core.merge_simulations(core.args.cache, core.array(caches)), core.args.cache))
  end
end

return M
