-- moe.gap{...}: what explains the difference between a measured step and its prediction. Each
-- candidate is one changed field of the plan, simulated again; the one whose time comes nearest to
-- the measured one is first. Nothing here is a rule of its own: where no candidate comes near, none
-- explains it alone.
local cluster_lib = require "moe.spec.cluster"
local errors = require "moe.base.errors"
local model_lib = require "moe.spec.model"
local plan = require "moe.run.plan"
local policy = require "moe.spec.policy"
local routing = require "moe.spec.routing"
local schema = require "moe.base.schema"
local stacks = require "moe.spec.stack"
local system_lib = require "moe.spec.system"

local M = {}

M.FIELDS = schema.merged(plan.PLAN, {
  measured_ms = { type = "number", lo = 1e-6, hi = 1e12, required = true,
    doc = "the measured time of a step" },
  imbalance = { type = "list", of = { type = "number", lo = 1, hi = 1000 },
    default = { 1.25, 1.5, 2 },
    doc = "choices of the busiest rank over the mean of its group, as tried" },
  clocks = { type = "list", of = { type = "number", lo = 0.1, hi = 10 }, default = { 0.8, 0.9 },
    doc = "speeds of products and of memory, as tried, as shares of what the cluster states" },
})
M.FIELDS.edits, M.FIELDS.detail = nil, nil

-- Returns the system with or without a pass, and whether it had it.
local function toggled(system, name)
  local passes, all = {}, system.passes or {}
  for _, pass in ipairs(all) do
    if pass.name ~= name then passes[#passes + 1] = pass end
  end
  local had = #passes < #all
  if not had then passes[#passes + 1] = policy.passes[name] {} end
  return system_lib.with(system, { passes = passes }), had
end

-- Returns a cluster whose products and memory have this share of their speed.
local function slower(cluster, share, dtype)
  local device = schema.merged(cluster.device, {})
  local tables = device.op_times
  if tables then
    local ratio = (device.op_times_ratio or {})[dtype] or 1
    device.op_times_ratio = schema.merged(device.op_times_ratio or {}, { [dtype] = ratio / share })
  end
  local function scaled(value)
    if type(value) == "number" then return value * share end
    if type(value) ~= "table" then return value end
    local out = {}
    for key, x in pairs(value) do
      out[key] = (key == "efficiency" or key == "share") and x or scaled(x)
    end
    return out
  end
  for _, name in ipairs { "gemm_flops_per_s", "vector_flops_per_s", "memory_bytes_per_s" } do
    device[name] = scaled(device[name])
  end
  return cluster_lib.with(cluster, schema.merged(cluster.given, { device = device }),
    { device = true }, cluster.at)
end

-- Returns the candidates: { what, change = a text, with = fields of moe.plan }.
local function candidates(c)
  local out, system = {}, c.system
  local function add(what, change, with)
    out[#out + 1] = { what = what, change = change, with = with }
  end
  for _, name in ipairs(stacks.files) do
    if name ~= (system.stack or c.cluster.stack) then
      add("host", ("stack = '%s'"):format(name),
        { system = system_lib.with(system, { stack = name }) })
    end
  end
  for _, name in ipairs(schema.keys_of(policy.dispatchers)) do
    if not (system.dispatcher and system.dispatcher.name == name) then
      add("dispatcher", "dispatcher." .. name, { system = system_lib.with(system,
        { dispatcher = policy.dispatchers[name] {} }) })
    end
  end
  if system.dispatcher then
    add("dispatcher", "all-to-alls", { system = system_lib.with(system, { dispatcher = false }) })
  end
  for _, over in ipairs(not c.model.routing and c.imbalance or {}) do
    add("imbalance", ("routing = zipf { max_over_mean = %g }"):format(over), { model =
      model_lib.override(c.model, { routing = routing.workload "zipf" { max_over_mean = over } },
        c.model.root, c.model.at) })
  end
  local reduce, exposed = system.all_reduce, { lane = "comm", place = "after" }
  if reduce and (reduce.place ~= "after") then
    add("exposed gradients", "all_reduce after the backward",
      { system = system_lib.with(system, { all_reduce = schema.merged(reduce, exposed) }) })
  else
    add("exposed gradients", "all_reduce beside the backward",
      { system = system_lib.with(system, { all_reduce = system_lib.known.megatron.all_reduce }) })
  end
  local with, had = toggled(system, "recompute")
  add("recompute", had and "without recompute" or "recompute {}", { system = with })
  for _, share in ipairs(c.clocks) do
    add("clocks", ("products and memory at %g%% of their speed"):format(100 * share),
      { cluster = slower(c.cluster, share, c.dtype) })
  end
  return out
end

--- moe.gap{...}: returns { predicted_ms, measured_ms, { what, change, ms, apart_ms } .., refused =
--- { { what, change, why } } }, nearest first.
M.gap = schema.taking(M.FIELDS, "moe.gap", function(c, at, t)
  errors.stop_in "policies"
  errors.stop_in "check"
  local base = { model = c.model, cluster = c.cluster, system = c.system, grid = c.grid,
    optimizer = t.optimizer }
  local function ms_of(with)
    local ok, made = errors.try(plan.plan, schema.merged(base, with))
    if ok then return made:simulate().iteration_ms, made end
    return nil, (made.message:gsub("^[^:]*:%d+: ", ""))
  end
  local ms, made = ms_of {}
  if not ms then errors.user("moe.gap: " .. made, at) end
  c.dtype = made.spec.model.dtype
  local out = { predicted_ms = ms, measured_ms = c.measured_ms, refused = {} }
  for _, one in ipairs(candidates(c)) do
    local found, why = ms_of(one.with)
    if found then
      out[#out + 1] = { what = one.what, change = one.change, ms = found,
        apart_ms = found - c.measured_ms }
    else
      table.insert(out.refused, { what = one.what, change = one.change, why = why })
    end
  end
  return schema.sorted(out, function(g) return math.abs(g.apart_ms), g.what .. g.change end)
end)

schema.record("gap", "g", "what explains a measured step, nearest first, from moe.gap; a list of "
  .. "{ what, change, ms, apart_ms }", {
  { "predicted_ms", "number", "the step as it is planned" },
  { "measured_ms", "number", "the measured step" },
  { "refused", "{ what: string, change: string, why: string }[]", "what could not be planned" },
})

return M
