-- moe: the library that recipes require. Names and shapes are described in the README.
local core = require "moe.core"
local cluster = require "moe.cluster"
local claims = require "moe.claims"
local errors = require "moe.errors"
local experiment = require "moe.experiment"
local model = require "moe.model"
local policy = require "moe.policy"
local results = require "moe.results"
local schema = require "moe.schema"
local system = require "moe.system"
local train = require "moe.train"

local moe = {
  version = core.version,
  assumed = schema.assumed,
  best = system.best,
  claim = claims.claim,
  cluster = cluster.constructors,
  experiment = experiment.experiment,
  model = model.constructors,
  pass = policy.pass_constructors,
  plan = train.plan,
  policy = { gate = policy.gate, pass = policy.pass, schedule = policy.schedule },
  results = results.read,
  run = experiment.run,
  system = system.system,
  train = train.train,
}

setmetatable(moe.policy, { __index = function(_, name)
  local kinds = { "gate", "pass", "schedule" }
  schema.unknown("moe.policy", "kind of policy", name, kinds, errors.here())
end })

--- For rank threads: the definition of a policy in this state.
function moe._policy(kind, name) return policy.registry[kind][name] end

local LISTS = {
  clusters = function()
    local out = { { name = "custom", doc = "every number given in the recipe" } }
    for _, name in ipairs(cluster.files) do
      out[#out + 1] = { name = name, doc = cluster.doc(name) }
    end
    return out
  end,
  models = function()
    return { { name = "gpt2_moe", doc = "GPT-2 with MoE FFNs in every other block" } }
  end,
  systems = function()
    local out = {}
    for _, name in ipairs(schema.keys_of(system.known)) do
      out[#out + 1] = { name = name, doc = system.known[name].doc }
    end
    return out
  end,
  claims = function()
    local out = {}
    for id, c in pairs(require "moe.papers.lancet") do
      local doc = ("%s: %s %g %s"):format(c.figure, c.text, c.value, c.unit)
      out[#out + 1] = { name = id, doc = doc }
    end
    return out
  end,
}
for _, kind in ipairs { "gates", "passes", "executors", "ops" } do
  LISTS[kind] = function() return core.table(kind) end
end

local function list(kind)
  if kind and not LISTS[kind] then
    schema.unknown("list", "kind", kind, schema.keys_of(LISTS))
  end
  for _, name in ipairs(kind and { kind } or schema.keys_of(LISTS)) do
    core.say(name)
    local rows = {}
    for _, item in ipairs(LISTS[name]()) do
      local options = {}
      for _, o in ipairs(item.options or {}) do
        options[#options + 1] = ("%s=%s"):format(o.name, tostring(o.default))
      end
      rows[#rows + 1] = { "  " .. item.name, item.doc
        .. (#options > 0 and (" {" .. table.concat(options, ", ") .. "}") or "") }
    end
    core.say(results.align(rows))
  end
end

local function experiments_of(value)
  if getmetatable(value) == experiment.mt then return { value } end
  if type(value) == "table" then
    for _, e in ipairs(value) do
      if getmetatable(e) ~= experiment.mt then value = nil break end
    end
    if value and #value > 0 then return value end
  end
  errors.user(("%s: a recipe returns an experiment, a list of them, or nothing"):format(
    core.recipe.name))
end

--- The host's door. mode: "run" or "check" with the recipe's chunk, "list" with a kind or nil.
function moe._main(mode, argument)
  if mode == "list" then return list(argument) end
  local value = argument()
  if value == nil then
    if mode == "check" then core.say "ok: the recipe returns no experiment; its calls were made" end
    return
  end
  for _, e in ipairs(experiments_of(value)) do
    if mode == "check" then
      core.say(("ok: %s, %d plans"):format(e.name, experiment.check(e)))
    else
      experiment.run(e)
    end
  end
end

return moe
