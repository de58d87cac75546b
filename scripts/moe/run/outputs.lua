-- The files that a recipe writes into its output folder. Each file is written by only one run of
-- the recipe, and results of earlier runs are kept.
local core = require "moe.core"
local errors = require "moe.base.errors"

local M = {}

local taken = false  -- whether the output folder has results of this process only
local writers = {}   -- name of a file -> string that names the run that writes it

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
  if key == "results.json" or key == "runs.jsonl" or key:match "^trace%-%d+%-" then
    errors.user(("%s: '%s' is a name that moebench uses for its own files; give another name")
      :format(path, name), at)
  end
  if writers[key] and not again then
    errors.user(("%s: '%s' is already written by %s, and %s would overwrite it; give each a file "
      .. "name of its own (for several systems, give each an entry of run with systems = { ... }; "
      .. "for several points, each an experiment)")
      :format(path, name, writers[key], who), at)
  end
  writers[key] = who
end

--- Gives up a claim, since nothing was written.
function M.release(name) writers[tidy(name)] = nil end

function M.forget() taken, writers = false, {} end

--- Called before the first result is written: moves the results of an earlier run in the output
--- folder to a folder inside it, and says so.
function M.take_folder()
  if taken then return end
  taken = true
  if core.args.temporary then return end
  local kept = core.keep_earlier()
  if kept ~= "" then
    core.warn(("the earlier results in %s are now in %s/%s"):format(core.out_dir, core.out_dir,
      kept))
  end
end

return M
