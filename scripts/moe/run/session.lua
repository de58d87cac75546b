-- The results of this process. A record is appended to runs.jsonl (moe.run.journal) as soon as its
-- run is finished, and later written to results.json. Both files have the records of all
-- experiments of this process.
local core = require "moe.core"
local journal = require "moe.run.journal"
local outputs = require "moe.run.outputs"
local results = require "moe.results.results"
local schema = require "moe.base.schema"

local M = {}

local kept, lines

-- Returns the fields at the top of results.json, which are also the first line of runs.jsonl.
local function head()
  kept.head = kept.head or { schema = results.SCHEMA, recipe = core.recipe,
    date = core.now(), machine = core.machine(), version = core.version,
    seed = core.args.seed or 1, session = core.session }
  return kept.head
end

--- Forgets all results: those that follow are another session's of the same process.
function M.forget()
  kept = { runs = {}, claims = {}, experiments = {}, searches = {}, sensitivities = {} }
  lines = journal.writer(head)
end

M.forget()

--- Adds a value to one of the lists of results.json (journal.LISTS): the entry of an experiment
--- when it begins, a claim's verdict, a sensitivity.
function M.add(kind, value)
  outputs.take_folder()
  table.insert(kept[journal.LISTS[kind]], value)
  lines.note { [kind] = value }
end

function M.flush()
  core.write_output("results.json", core.json_encode(schema.merged(head(), {
    lines = lines.lines, experiments = core.array(kept.experiments),
    runs = core.array(kept.runs), claims = core.array(kept.claims),
    sensitivities = core.array(kept.sensitivities),
    searches = #kept.searches > 0 and core.array(kept.searches) or nil }), 1) .. "\n")
  kept.flushed = #kept.runs
end

--- Adds a search: its fields as moe.search returns them, and the times and memory of all mixes that
--- were seen.
function M.add_search(name, found, seen)
  M.add("search", schema.merged(found, { name = name, seen = core.array(seen) }))
  M.flush()
end

--- Adds to the last search what its executed runs say.
function M.change_search(found)
  kept.searches[#kept.searches].executed = found.executed
  M.flush()
end

--- Writes results.json between runs, each time the number of runs has doubled: this keeps the cost
--- low, and all processes of a job write after the same run. runs.jsonl is always up to date.
function M.refresh()
  if #kept.runs >= 2 * (kept.flushed or 0) then M.flush() end
end

--- Writes the current record of run `number` to runs.jsonl.
function M.keep(number, run)
  results.check_record(run)
  kept.runs[number] = run
  lines.note { run = number, record = run }
end

--- Adds the record of a new run; returns its number and the beginning of its traces' names.
function M.add_run(run)
  local number = #kept.runs + 1
  M.keep(number, run)
  return number, ("trace-%03d-%s-"):format(number, run.system)
end

function M.num_runs() return #kept.runs end

return M
