-- What is reported of a folder with results, as blocks (page/blocks.lua) for the page and for
-- `moebench export`.
local blocks = require "moe.results.page.blocks"
local claims = require "moe.results.page.claims"
local core = require "moe.core"
local differences = require "moe.results.report.differences"
local errors = require "moe.base.errors"
local executed = require "moe.results.page.executed"
local format = require "moe.results.report.format"
local head = require "moe.results.head"
local pipelines = require "moe.results.page.pipelines"
local results = require "moe.results.results"
local schema = require "moe.base.schema"
local search = require "moe.results.page.search"
local shown = require "moe.front.shown"
local simulated = require "moe.results.page.simulated"
local timelines = require "moe.results.page.timelines"

local M = {}

-- Gives runs and searches the names that `names` has for systems and coordinates.
local function rename(data, names)
  local function named(list)
    for _, run in ipairs(list or {}) do
      run.system = names[run.system] or run.system
      for name, other in pairs(names) do
        for _, point in ipairs { run.point, unpack(run.points or {}) } do
          point[name], point[other] = nil, point[name]
        end
      end
    end
  end
  named(data.runs)
  for _, s in ipairs(data.searches or {}) do
    for _, list in ipairs { s.top, s.front, s.named, { s.best, s.plain } } do named(list) end
  end
end

-- Returns the runs that --where selects. Raises a user error if there are none, naming what the
-- runs have.
local function selected(runs)
  for key, text in pairs(core.args.where or {}) do
    local kept, have, wanted, names = {}, {}, {}, {}
    for value in (text .. ","):gmatch "([^,]*)," do wanted[value] = true end
    for _, run in ipairs(runs) do
      for name, field in pairs(schema.merged(run, run.point or {})) do
        if type(field) ~= "table" then names[name] = true end
      end
      local value = run[key]
      if value == nil then value = run.point and run.point[key] end
      if type(value) ~= "table" and value ~= nil then have[tostring(value)] = true end
      if wanted[tostring(value)] then kept[#kept + 1] = run end
    end
    if not next(have) then
      errors.user(schema.unknown_text("--where", "field of a run", key, schema.keys_of(names)))
    elseif #kept == 0 then
      errors.user(("--where %s=%s: no run has it; have: %s"):format(key, text,
        table.concat(schema.keys_of(have), ", ")))
    end
    runs = kept
  end
  return runs
end

--- Returns the content of results.json of the folder, with the runs that --where selects, the
--- folder's name in `dir`, and the number of ended runs of each experiment in `ended`. Raises a
--- user error if there is nothing in it.
function M.load(dir)
  local data = results.load(dir)
  if #data.runs == 0 and #(data.searches or {}) == 0 then
    errors.user(dir .. ": has no runs; the recipe that wrote it finished none")
  end
  data.ended = {}
  for _, run in ipairs(results.ended(data.runs).runs) do
    data.ended[run.experiment] = (data.ended[run.experiment] or 0) + 1
  end
  data.dir, data.runs = dir, selected(data.runs)
  rename(data, core.args.names or {})
  return data
end

--- Returns the values of --set, which are the same for all experiments of a folder.
function M.settings_of(data)
  return data.experiments[1] and data.experiments[1].set or {}
end

local function append(out, more)
  for _, block in ipairs(more) do out[#out + 1] = block end
end

-- Returns the blocks of an experiment. refused: its runs that were refused.
local function experiment_blocks(data, name, refused)
  local unfinished, runs, out, moved = {}, {}, {}, {}
  for _, run in ipairs(data.runs) do
    if run.experiment == name then
      runs[#runs + 1] = run
      if not run.iteration_ms then unfinished[#unfinished + 1] = run.system end
    end
  end
  for _, record in ipairs(data.sensitivities or {}) do
    if record.experiment == name then moved[#moved + 1] = record end
  end
  local R = results.ended(runs)
  local predicted = R:where { provenance = "simulated" }
  if #predicted.runs > 0 then append(out, simulated.blocks(predicted, refused)) end
  append(out, claims.sensitivities(moved))
  local groups = R:where { provenance = { "emulated", "measured" } }:groups(results.case_of)
  local differs = differences.of(groups)
  for g, group in ipairs(groups) do append(out, executed.blocks(group, differs[g])) end
  out[#out + 1] = blocks.text(format.refused_lines(refused))
  if #unfinished > 0 then
    out[#out + 1] = blocks.text { "Not finished: " .. table.concat(unfinished, ", ") }
  end
  blocks.note_all(out, head.lines(R.runs))
  out[#out + 1] = { kind = "frame", name = "runs", frame = shown.frame(R.runs) }
  return out
end

--- Returns the report of a folder: { experiments = a list of { name, title, blocks }, rest = the
--- blocks of searches, claims and timelines }. used: the names of figures in other folders.
function M.report(data, used)
  local experiments, rest, said = {}, {}, {}
  for _, e in ipairs(data.experiments) do
    if not said[e.name] then
      local own = experiment_blocks(data, e.name, e.refused or {})
      local missing = results.incomplete(data.ended[e.name] or 0, e.planned or 0)
      if missing then table.insert(own, 1, blocks.text { missing }) end
      blocks.name_all(own, e.name, used)
      experiments[#experiments + 1] = { name = e.name, title = e.title or "", blocks = own }
    end
    said[e.name] = true
  end
  for _, s in ipairs(data.searches or {}) do
    local own = search.blocks(s)
    blocks.name_all(own, s.name, used)
    append(rest, own)
  end
  local last = claims.blocks(data.claims, next(M.settings_of(data)) ~= nil)
  append(last, pipelines.blocks(results.ended(data.runs)))
  append(last, timelines.blocks(data.dir, results.ended(data.runs)))
  blocks.note_all(last, head.lines(results.ended(data.runs).runs))
  blocks.name_all(last, data.experiments[1] and data.experiments[1].name or "results", used)
  append(rest, last)
  return { experiments = experiments, rest = rest }
end

return M
