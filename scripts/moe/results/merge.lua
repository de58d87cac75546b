-- `moebench merge`: the results of all parts of a sweep (--points) as those of one run, and what is
-- kept of the parts' simulations in one file.
local core = require "moe.core"
local errors = require "moe.base.errors"
local parts_lib = require "moe.run.parts"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local simulated = require "moe.run.simulated"

local M = {}

-- Returns the results in a folder, with their part and what all parts have in common.
local function load(dir)
  local data, planned = results.load(dir), 0
  local first = data.experiments[1] or {}
  local part, all = (first.points or ""):match "^(%d+)/(%d+)$"
  if not part then
    errors.user(dir .. ": is no part of a sweep; merge takes what `moebench run --points` wrote")
  end
  for _, e in ipairs(data.experiments) do planned = planned + e.planned end
  local missing = results.incomplete(#results.ended(data.runs).runs, planned)
  if missing then
    errors.user(("%s: %s; run it again with --points %s, which goes on where it ended"):format(dir,
      missing, first.points))
  end
  return { data = data, dir = dir, part = tonumber(part), all = tonumber(all),
    common = core.json_encode { all, data.recipe.hash, data.seed, data.version, first.set or {},
      first.over } }
end

-- Raises a user error unless the folders have all parts of one sweep, each once.
local function check_parts(list)
  local dirs, missing = {}, {}
  for _, one in ipairs(list) do
    if one.common ~= list[1].common then
      errors.user(("%s and %s: differ in recipe, settings, seed, version or number of parts")
        :format(list[1].dir, one.dir))
    end
    if dirs[one.part] then
      errors.user(("%s and %s: are the same part"):format(dirs[one.part], one.dir))
    end
    dirs[one.part] = one.dir
  end
  for i = 1, list[1].all do
    if not dirs[i] then missing[#missing + 1] = ("%d/%d"):format(i, list[1].all) end
  end
  if missing[1] then errors.user("merge: missing parts: " .. table.concat(missing, ", ")) end
end

local function experiments_of(list)
  local out = {}
  for i, e in ipairs(list[1].data.experiments) do
    local whole = schema.merged(e, { planned = 0, refused = {},
      simulations = { done = 0, found = 0 } })
    for _, one in ipairs(list) do
      local part = one.data.experiments[i]
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
local function runs_of(parts)
  local order, list = {}, {}
  for i, e in ipairs(parts[1].data.experiments) do order[e.name] = { i, e.over } end
  for _, one in ipairs(parts) do
    for i, run in ipairs(one.data.runs) do
      local at, over = unpack(order[run.experiment])
      list[#list + 1] = { run = run, dir = one.dir,
        key = { at, run.entry, parts_lib.place(over, run.point or run.points[1]), i } }
    end
  end
  return schema.sorted(list, function(one) return unpack(one.key) end)
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

local function merge_results(folders)
  local list, runs = {}, {}
  for i, dir in ipairs(folders) do list[i] = load(dir) end
  check_parts(list)
  for number, item in ipairs(runs_of(list)) do
    take_trace(item, number)
    runs[number] = item.run
  end
  local whole = schema.merged(list[1].data, { experiments = core.array(experiments_of(list)),
    runs = core.array(runs), claims = core.array {}, sensitivities = core.array {},
    session = core.session, lines = 0 })
  whole.searches = nil
  core.write_output("results.json", core.json_encode(whole, 1) .. "\n")
  core.say(("%d runs of %d parts: %s"):format(#runs, #list, core.out_dir))
end

function M.merge()
  local folders, caches = core.args.folders, core.args.caches or {}
  if #folders > 0 then merge_results(folders) end
  if #caches > 0 then
    core.say(("%d simulations were added to those beside %s"):format(
      core.merge_simulations(core.args.cache, core.array(caches)), core.args.cache))
  end
end

return M
