-- The files that a recipe writes into its output folder. Each file is written by only one run, and
-- a folder has the results of only one recipe.
local core = require "moe.core"
local errors = require "moe.base.errors"

local M = {}

local writers = {}  -- name of a file -> string that names the run that writes it

-- Returns the name without empty and "." parts: "a/b" for "a//./b".
local function tidy(name)
  local parts = {}
  for part in name:gmatch "[^/]+" do
    if part ~= "." then parts[#parts + 1] = part end
  end
  return table.concat(parts, "/")
end

--- Claims the file `name`, the value of the field `path`, for the writer `who` (a string that names
--- a run or a function). Raises a user error if the recipe has another writer of this file, unless
--- `again` is true: the writer then continues the other's file or writes the same content. Raises
--- one as well if moebench uses the name for its own files.
function M.claim(name, who, path, at, again)
  if not name then return end
  local key = tidy(name)
  if key == "results.json" or key == "runs.jsonl" or key:match "^trace%-%d%d%d%-" then
    errors.user(("%s: '%s' is a name that moebench uses for its own files; give another name")
      :format(path, name), at)
  end
  if writers[key] and not again then
    errors.user(("%s: '%s' is already written by %s, and %s would overwrite it; give each a file "
      .. "name of its own (for several systems, give each an entry of run with systems = { ... })")
      :format(path, name, writers[key], who), at)
  end
  writers[key] = who
end

local earlier  -- the results that were in the folder before this run; nil before they are read

--- Called before the first result is written. Raises a user error if the output folder has results
--- of another recipe.
function M.take_folder(at)
  if earlier then return end
  earlier = core.earlier_results()
  if not earlier.found then return end
  local recipe, own = earlier.recipe or {}, core.recipe
  if recipe.path == own.path or recipe.hash == own.hash then return end
  errors.user(("--out %s: the folder has the results of %s, which would be overwritten; give "
    .. "another folder"):format(core.out_dir, recipe.path or "another program"), at)
end

--- Called after results.json is written. Removes the traces that the previous results.json named
--- and that no run of the new one names.
function M.remove_earlier_traces(runs)
  local kept = {}
  for _, run in ipairs(runs) do
    if run.trace then kept[run.trace] = true end
  end
  for _, name in ipairs(earlier and earlier.traces or {}) do
    local ours = type(name) == "string" and name:match "^trace%-%d+%-[%w_.+-]+%.json$"
    if ours and not kept[name] then core.remove_output(name) end
  end
  if earlier then earlier.traces = nil end
end

return M
