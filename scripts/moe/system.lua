-- moe.system "name" { passes... }: a mix of techniques. The known systems come with their passes
-- and their all-reduce policy; giving passes replaces the passes.
local errors = require "moe.errors"
local policy = require "moe.policy"
local schema = require "moe.schema"

local M = {}

local mt = schema.class("system", 'a system, as moe.system "raf" {}')
local best_mt = schema.class("best", "moe.best(...)")

local MIB = 1024 * 1024

-- All-reduce policies. place: "after" the backward or when "ready"; lane: with the all-to-alls
-- ("comm") or of its own ("comm_reduce").
local AFTER = { lane = "comm", place = "after", bucket_bytes = 25 * MIB }
-- PyTorch's DistributedDataParallel: buckets of 25 MiB, reduced beside the backward.
local DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = 25 * MIB }

M.REDUCE = {
  lane = { type = "string", enum = { "comm", "comm_reduce" }, default = AFTER.lane,
    doc = "the all-to-alls' lane or one of its own" },
  place = { type = "string", enum = { "after", "ready" }, default = AFTER.place,
    doc = "after the backward, or when its gradients are complete" },
  bucket_bytes = { type = "number", lo = 0, hi = 1e12, default = AFTER.bucket_bytes,
    doc = "bytes an all-reduce gathers; 0: one a gradient" },
}

--- moe.best(constructor, { option = { values } }): the value with the fastest simulated step.
function M.best(constructor, options)
  local at = errors.here()
  if type(constructor) ~= "function" then
    schema.refuse("moe.best", constructor, "a pass's constructor, as moe.pass.capacity_pipeline",
      at)
  end
  if type(options) ~= "table" then
    schema.refuse("moe.best", options, "options, one of them a list", at)
  end
  local name
  for k, v in pairs(options) do
    if type(v) == "table" then
      if name then errors.user("moe.best: give one option a list of values, not two", at) end
      name = k
    end
  end
  local values = schema.field({ type = "list", of = { type = "any" }, default = {} },
    name and options[name], "moe.best." .. tostring(name), at)
  if #values == 0 then
    errors.user("moe.best: give one option a list of values, as { degree = { 1, 2, 4 } }", at)
  end
  local candidates = {}
  for i, value in ipairs(values) do
    local pass = constructor(schema.merged(options, { [name] = value }))
    candidates[i] = { label = ("%s=%s"):format(name, tostring(value)),
      pass = schema.field({ type = "pass" }, pass, "moe.best", at) }
  end
  return setmetatable({ candidates = candidates }, best_mt)
end

M.known = {
  raf = { doc = "plain expert parallelism as in RAF: no overlap, padded all-to-all",
    all_reduce = AFTER, passes = function(p) return { p.serial {} } end },
  raf_irregular = { doc = "raf with all-to-alls that send only real rows",
    all_reduce = AFTER, passes = function(p) return { p.irregular_a2a {}, p.serial {} } end },
  deepspeed = { doc = "padded, blocking all-to-all; all-reduce in buckets on its own lane",
    all_reduce = DDP, passes = function(p) return { p.blocking_a2a {} } end },
  tutel = { doc = "all-to-all and experts cut along capacity, the best degree of 1, 2, 4, 8",
    all_reduce = DDP, passes = function(p)
      return { M.best(p.capacity_pipeline, { degree = { 1, 2, 4, 8 } }) }
    end },
  lancet = { doc = "weight gradients under the backward's all-to-alls (greedy best fit); "
      .. "the forward partition pass is not part of it yet",
    all_reduce = AFTER, passes = function(p) return { p.dw_schedule {} } end },
}

local function make(name, t, at)
  local path = ("system '%s'"):format(name)
  if type(t) ~= "table" then
    schema.refuse(path, t, "a table of passes, {} for a known system's own", at)
  end
  local known, passes, reduce = M.known[name], {}, nil
  for key, value in pairs(t) do
    if type(key) == "number" then
      passes[key] = value
    elseif key == "all_reduce" then
      reduce = schema.check(M.REDUCE, value, path .. ".all_reduce", at)
    else
      schema.unknown(path, "key", key, { "all_reduce" }, at)
    end
  end
  passes = schema.field({ type = "list", of = { type = "any" } }, passes, path, at)
  for i, pass in ipairs(passes) do
    if not schema.is_a("best", pass) then
      schema.field({ type = "pass" }, pass, ("%s[%d]"):format(path, i), at)
    end
  end
  if #passes == 0 then
    if not known then
      schema.unknown("moe.system", "system (and no passes are given)", name,
        schema.keys_of(M.known), at)
    end
    passes = known.passes(policy.passes)
  end
  return setmetatable({ name = name, passes = passes, at = at,
    all_reduce = reduce or known and known.all_reduce or AFTER }, mt)
end

function M.system(name)
  local at = errors.here()
  -- Systems name files of the output.
  if type(name) ~= "string" or not name:match("^%w[%w_.+-]*$") then
    schema.refuse("moe.system", name, "a name of letters, digits and _ . + -", at)
  end
  return function(t) return make(name, t, errors.here()) end
end

-- All lists of stages that the passes allow, with a label of the choices.
local function choices_of(passes)
  local lists = { { stages = {} } }
  for _, pass in ipairs(passes) do
    local longer = {}
    for _, list in ipairs(lists) do
      for _, c in ipairs(pass.candidates or { { pass = pass } }) do
        local stages = schema.merged(list.stages, {})
        stages[#stages + 1] = { name = c.pass.name, kind = c.pass.stage, options = c.pass.options,
          apply = c.pass.apply }
        longer[#longer + 1] = { stages = stages, label = list.label and c.label
          and list.label .. " " .. c.label or list.label or c.label }
      end
    end
    lists = longer
  end
  return lists
end

--- The systems that the core takes: one, or one a candidate of moe.best. Each has .choice (a label
--- or nil).
function M.expand(system)
  local out, reduce = {}, system.all_reduce
  for i, list in ipairs(choices_of(system.passes)) do
    out[i] = { name = system.name, stages = list.stages, choice = list.label,
      sync = { bucket_bytes = reduce.bucket_bytes, when_ready = reduce.place == "ready" },
      reduce_on_own_lane = reduce.lane == "comm_reduce" }
  end
  return out
end

--- Names and options of a system's stages, for results.
function M.describe(candidate)
  local out = {}
  for i, s in ipairs(candidate.stages) do
    out[i] = { name = s.name, kind = s.kind, options = s.options }
  end
  return out
end

return M
