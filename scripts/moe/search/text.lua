-- What a search prints, and the best mix as Lua text.
local aligned = require "moe.base.aligned"
local assumed_routing = require "moe.results.assumed_routing"
local core = require "moe.core"
local dispatcher = require "moe.spec.dispatcher"
local grid_lib = require "moe.spec.grid"
local lua_text = require "moe.base.lua_text"
local number_bytes = require "moe.results.number_bytes"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local tables = require "moe.search.tables"

local M = {}

-- Returns the text of a pass: moe.pass.name { options }, or a policy's name with its options.
local function pass_text(pass)
  local options = lua_text.text(pass.options, "  ")
  if pass.own then return ("%s %s"):format(pass.name, options) end
  return ("moe.pass.%s %s"):format(pass.name, options)
end

--- Returns the mix as the Lua text of a moe.system, which is named "best" unless it is the plain
--- mix. A policy of the recipe is written as its name with its options, as if its constructor were
--- in a variable of that name. Since only a known system may have no passes, a mix that has fields
--- alone is written as "best" whose one member is "plain" with these fields.
function M.system(space, mix)
  local lines, set = {}, { all_reduce = system_lib.AFTER }
  local chosen = space:chosen(mix)
  for _, choice in ipairs(chosen) do
    for _, pass in ipairs(choice.passes) do lines[#lines + 1] = "  " .. pass_text(pass) .. "," end
    if choice.pipeline then
      lines[#lines + 1] = ("  moe.pipeline[%q] %s,"):format(choice.pipeline.name,
        lua_text.text(choice.pipeline.given or {}, "  "))
    end
    if choice.dispatcher then
      local own = not dispatcher.known[choice.dispatcher.name].library
      lines[#lines + 1] = ("  %s%s %s,"):format(own and "" or "moe.dispatcher.",
        choice.dispatcher.name, lua_text.text(choice.dispatcher.options, "  "))
    end
    set = schema.merged(set, choice.set)
  end
  local name = #lines > 0 and "best" or "plain"
  for key, value in pairs(set) do
    lines[#lines + 1] = ("  %s = %s,"):format(key, lua_text.text(value, "  "))
  end
  local text = ("moe.system %q {\n%s\n}"):format(name, table.concat(lines, "\n"))
  if name == "best" or #chosen == 0 then return text end
  return ('moe.system "best" { of = { %s } }'):format(text)
end

-- Returns the text of a model of a built-in architecture; nil and why it cannot be written. That
-- of a constructor of its own has the fields that differ from those of the constructor.
local function model_text(model)
  local arch, fields = model.architecture, { name = model.name }
  local name = arch.tensors and "decoder" or arch.name
  if name ~= "gpt2_moe" and name ~= "decoder" then
    return nil, "the architecture " .. tostring(name) .. " of the recipe"
  end
  for key, value in pairs(model.given) do
    if not arch.named or arch.base[key] ~= value then fields[key] = value end
  end
  local text, why = lua_text.text(fields, "  ")
  if not text then return nil, "a model with " .. why end
  return ("moe.model.%s %s"):format(arch.named or name, text)
end

local function cluster_text(cluster)
  local name = cluster.own and cluster.path:match "^cluster%.(.*)$" or "custom"
  local text, why = lua_text.text(cluster.own or cluster.given, "  ")
  if not text then return nil, "a cluster with " .. why end
  return ("moe.cluster.%s %s"):format(name, text)
end

local FILE = [[
-- The best mix that %s found for this model and cluster%s,
-- which has no technique at all.
local moe = require "moe"

return moe.experiment {
  name = "best",
  model = %s,
  cluster = %s,
%s  optimizer = %s,
  systems = { %s },
}
]]

--- Writes the recipe best.lua of the best mix, or of the known system that is better, into the
--- output folder; returns the file's name, or nil and what it would need.
function M.write_recipe(c, space, best, known)
  for _, choice in ipairs(known and {} or space:chosen(best)) do
    for _, pass in ipairs(choice.passes) do
      if pass.own then return nil, "the policy " .. pass.name end
    end
  end
  local model, why = model_text(c.model)
  if not model then return nil, why end
  local cluster
  cluster, why = cluster_text(c.cluster)
  if not cluster then return nil, why end
  local is_plain = not known and #space:chosen(best) == 0
  local systems = M.system(space, space:plain())
  if known then
    systems = ("%s, moe.system %q {}"):format(systems, known)
  elseif not is_plain then
    systems = systems .. ", " .. M.system(space, best)
  end
  local given = grid_lib.given(grid_lib.with(c.grid, known and {} or space:grid(best), c.at))
  local grid = next(given) and ("  grid = moe.grid %s,\n"):format(lua_text.text(given, "  ")) or ""
  core.write_output(c.name .. "_best.lua", FILE:format(core.recipe.name,
    is_plain and " is the plain one" or ", beside the plain one", model, cluster,
    grid, lua_text.text(c.optimizer, "  "), (systems:gsub("\n", "\n    "))))
  return c.name .. "_best.lua"
end

local WIDE = 66  -- columns of a mix in a table of at most 120 columns

-- Returns the lines of a mix's label, which breaks before a " + ".
local function lines_of(label)
  local lines = { "" }
  for part in (label .. " + "):gmatch "(.-) %+ " do
    local last = lines[#lines]
    if last ~= "" and #last + 3 + #part > WIDE then
      lines[#lines + 1] = "+ " .. part
    else
      lines[#lines] = last == "" and part or last .. " + " .. part
    end
  end
  return lines
end

-- Returns a table as text; the last cell of a row, a label, takes as many lines as it needs.
local function table_text(rows)
  local out = {}
  for _, cells in ipairs(rows) do
    for i, line in ipairs(lines_of(cells[#cells])) do
      local row = {}
      for c = 1, #cells - 1 do row[c] = i == 1 and cells[c] or "" end
      row[#cells] = line
      out[#out + 1] = row
    end
  end
  return aligned.text(out)
end

function M.print_executed(s)
  core.say("\n" .. table_text(tables.executed(s)))
  for _, one in ipairs(s.executed.refused) do
    core.say(("%s (%s) is not executed: %s"):format(one.mix, one.techniques, one.why))
  end
  core.say(tables.held(s))
end

function M.print(s, why)
  core.say(tables.head(s))
  for _, line in ipairs(number_bytes.lines { s.best }) do core.say(line) end
  for _, line in ipairs(assumed_routing.lines { s.best }) do core.say(line) end
  core.say(tables.seen(s))
  if s.best.oom then
    core.say("None of the mixes that were tried fits in a device's memory; the best is the one "
      .. "that exceeds it least")
  end
  core.say("\n" .. table_text(tables.top(s)))
  core.say("\n" .. table_text(tables.times(s)))
  core.say("\n" .. tables.bound(s))
  if #s.contributions > 0 then core.say("\n" .. table_text(tables.contributions(s))) end
  if #s.front > 0 then
    core.say("\nTime against memory: nothing seen is better in both\n"
      .. table_text(tables.front(s)))
  end
  for _, line in ipairs(tables.notes(s)) do core.say(line) end
  core.say("\n" .. s.system)
  if s.best.oom then return core.say "\nNo recipe is written, since no mix fits" end
  core.say(s.recipe and core.out_dir and ("\nRecipe of the best mix: %s/%s"):format(core.out_dir,
    s.recipe) or ("\nNo recipe is written, since it would need %s; use the system above in a "
      .. "recipe that has it"):format(why))
end

return M
