-- moe.system "name" { passes... }: a mix of techniques. The known systems come with their passes
-- and their all-reduce policy; giving passes replaces the passes.
local errors = require "moe.errors"
local policy = require "moe.policy"
local schema = require "moe.schema"

local M = {}

local mt = { __name = "system" }
M.mt = mt

local MIB = 1024 * 1024

-- All-reduce policies. place: "after" the backward or when "ready"; lane: with the all-to-alls
-- ("comm") or of its own ("comm_reduce").
local AFTER = { lane = "comm", place = "after", bucket_bytes = 0 }
-- PyTorch's DistributedDataParallel: buckets of 25 MiB, reduced beside the backward.
local DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = 25 * MIB }

local function best(constructor, options)
  local at = errors.here()
  local name, values
  for k, v in pairs(options) do
    if type(v) == "table" then
      if name then errors.user("moe.best: give one option a list of values, not two", k, at) end
      name, values = k, v
    end
  end
  if not name or #values == 0 then
    errors.user("moe.best: give one option a list of values, as { degree = { 1, 2, 4 } }", nil, at)
  end
  local candidates = {}
  for i, value in ipairs(values) do
    local one = {}
    for k, v in pairs(options) do one[k] = v end
    one[name] = value
    candidates[i] = { label = ("%s=%s"):format(name, tostring(value)), pass = constructor(one) }
  end
  return { kind = "best", candidates = candidates }
end
M.best = best

M.known = {
  raf = { doc = "plain expert parallelism as in RAF: no overlap, padded all-to-all",
    all_reduce = AFTER, passes = function(p) return { p.serial {} } end },
  raf_irregular = { doc = "raf with all-to-alls that send only real rows",
    all_reduce = AFTER, passes = function(p) return { p.irregular_a2a {}, p.serial {} } end },
  deepspeed = { doc = "padded, blocking all-to-all; all-reduce in buckets on its own lane",
    all_reduce = DDP, passes = function(p) return { p.blocking_a2a {} } end },
  tutel = { doc = "all-to-all and experts cut along capacity, the best degree of 1, 2, 4, 8",
    all_reduce = DDP, passes = function(p)
      return { best(p.capacity_pipeline, { degree = { 1, 2, 4, 8 } }) }
    end },
  lancet = { doc = "weight gradients under the backward's all-to-alls (greedy best fit); "
      .. "the forward partition pass is not part of it yet",
    all_reduce = AFTER, passes = function(p) return { p.dw_schedule {} } end },
}

local REDUCE = {
  lane = { type = "string", enum = { "comm", "comm_reduce" }, default = "comm" },
  place = { type = "string", enum = { "after", "ready" }, default = "after" },
  bucket_bytes = { type = "number", lo = 0, hi = 1e12, default = 0,
    doc = "bytes an all-reduce gathers; 0: one a gradient" },
}

function M.system(name)
  local here = errors.here()
  if type(name) ~= "string" then errors.user("moe.system: give a name", nil, here) end
  return function(t)
    local at = errors.here()
    if type(t) ~= "table" then
      errors.user(("moe.system '%s': give a table of passes, {} for its own"):format(name), nil, at)
    end
    local known = M.known[name]
    local reduce, passes = nil, {}
    for k, v in pairs(t) do
      if k == "all_reduce" then
        reduce = schema.check(REDUCE, v, ("system '%s'.all_reduce"):format(name), at)
      elseif type(k) == "number" then
        passes[k] = v
      else
        schema.unknown(("system '%s'"):format(name), "key", k, { "all_reduce" }, at)
      end
    end
    if #passes == 0 then
      if not known then
        schema.unknown("moe.system", "system (and no passes are given)", name,
          schema.keys_of(M.known), at)
      end
      passes = known.passes(policy.pass_constructors)
    end
    for i, p in ipairs(passes) do
      local kind = type(p) == "table" and p.kind
      if not ({ builtin = 1, best = 1, pass = 1, schedule = 1 })[kind] then
        errors.user(("system '%s': entry %d is not a pass; call its constructor, as %s"):format(
          name, i, "moe.pass.dw_schedule {}"), nil, at)
      end
    end
    return setmetatable({ name = name, passes = passes, at = at,
      all_reduce = reduce or (known and known.all_reduce) or AFTER }, mt)
  end
end

local function stage_of(p)
  if p.kind == "builtin" then return { name = p.name, kind = p.stage, options = p.options } end
  return { name = p.name, kind = p.kind == "schedule" and "schedule" or p.at, options = p.options,
    apply = p.apply }
end

--- The systems that the core takes: one, or one a candidate of moe.best. Each has .choice (a label
--- or nil).
function M.expand(system)
  local lists = { { stages = {}, label = nil } }
  for _, p in ipairs(system.passes) do
    local next_lists = {}
    for _, l in ipairs(lists) do
      local choices = p.kind == "best" and p.candidates or { { pass = p } }
      for _, c in ipairs(choices) do
        local stages = {}
        for i, s in ipairs(l.stages) do stages[i] = s end
        stages[#stages + 1] = stage_of(c.pass)
        next_lists[#next_lists + 1] = { stages = stages,
          label = c.label and (l.label and l.label .. " " .. c.label or c.label) or l.label }
      end
    end
    lists = next_lists
  end
  local out, r = {}, system.all_reduce
  for i, l in ipairs(lists) do
    out[i] = { name = system.name, stages = l.stages, choice = l.label,
      sync = { bucket_bytes = r.bucket_bytes, when_ready = r.place == "ready" },
      reduce_on_own_lane = r.lane == "comm_reduce" }
  end
  return out
end

return M
