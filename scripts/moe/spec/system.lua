-- moe.system "name" { passes... }: a mix of passes with an all-reduce policy. Known systems
-- (M.known) have both; passes that are given replace a known system's passes. { of = { ... } }
-- makes a system of other systems, the fastest of which is taken.
local choice = require "moe.base.choice"
local core = require "moe.core"
local cluster_lib = require "moe.spec.cluster"
local errors = require "moe.base.errors"
local packing = require "moe.spec.packing"
local pipeline = require "moe.spec.pipeline"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"
local stacks = require "moe.spec.stack"

local M = {}

local mt = schema.class("system", 'a system, for example moe.system "raf" {}')

local MIB = 1024 * 1024

-- All-reduce policies for gradients. place: "after" the whole backward, or "ready" as soon as a
-- bucket's gradients are complete; lane: that of the all-to-alls ("comm") or a separate one
-- ("comm_reduce").
local AFTER = { lane = "comm", place = "after", bucket_bytes = 25 * MIB }
-- As in PyTorch's DistributedDataParallel: buckets of 25 MiB, reduced while the backward runs.
local DDP = { lane = "comm_reduce", place = "ready", bucket_bytes = 25 * MIB }

-- As in Lina (ATC 2023): a micro-op never holds parts of different gradients, so every gradient has
-- an all-reduce of its own (bucket_bytes = 0), on a lane separate from that of the all-to-alls.
local LINA = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }

-- As Megatron-LM's distributed optimizer with overlap_grad_reduce: buckets of 40 million numbers
-- (distributed_data_parallel.py), here of f32.
local MEGATRON = { lane = "comm_reduce", place = "ready", bucket_bytes = 160e6 }

M.AFTER, M.DDP, M.LINA = AFTER, DDP, LINA

M.REDUCE = schema.changed(schema.declared "all_reduce", {
  lane = { default = AFTER.lane }, place = { default = AFTER.place },
  bucket_bytes = { default = AFTER.bucket_bytes },
})

local P = policy.passes

-- Lancet's partition pass with at most 8 parts, or 4, or 2: the first whose plan fits (section 7).
local LANCET_PARTITION = choice.fallback(P.partition, { max_parts = { 8, 4, 2 } })

-- Returns the first `steps` passes of Lina's scheduler, as in the ablation of the paper's figure
-- 14: 1 is priority; 2 adds micro-ops (chunks) of all-reduces; 3 adds micro-ops of all-to-alls,
-- where the experts begin as soon as the first micro-op arrives.
local function lina(steps)
  local passes = { P.priority {}, P.chunked { which = "all_reduce" }, P.micro_ops {} }
  for i = steps + 1, 3 do passes[i] = nil end
  return passes
end

-- Returns a system in which a policy places experts under plain expert parallelism: transfers block
-- compute.
local function placed(doc, policy_of_it)
  return { doc = doc, all_reduce = AFTER, passes = { policy_of_it, P.serial {} } }
end

-- Returns the passes of Pro-Prophet (arXiv 2411.10003). options are those of the planner, which
-- assumes copies that block compute (equation 6, hidden = 0) or that compute hides (equation 8,
-- hidden = 1). With `scheduled` the paper's scheduler moves the copies under compute. All-to-alls
-- block compute, as in the systems with which the paper compares.
local function prophet(options, scheduled)
  if not scheduled then return { P.prophet(options), P.blocking_a2a {} } end
  return { P.prophet(options), P.prophet_schedule {}, P.blocking_a2a { experts = false } }
end

M.known = {
  raf = { doc = "plain expert parallelism as in RAF: no overlap, padded all-to-all",
    all_reduce = AFTER, passes = { P.serial {} } },
  raf_irregular = { doc = "raf with all-to-alls that send only real rows",
    all_reduce = AFTER, passes = { P.irregular_a2a {}, P.serial {} } },
  raf_rows = { doc = "raf without padding: only real rows are sent and computed",
    all_reduce = AFTER, passes = { P.irregular_a2a {}, P.used_rows {}, P.serial {} } },
  deepspeed = { doc = "padded, blocking all-to-all; all-reduce in buckets on its own lane",
    all_reduce = DDP, passes = { P.blocking_a2a {} } },
  tutel = { doc = "all-to-all and experts cut along capacity, the best degree of 1, 2, 4, 8",
    all_reduce = DDP, passes = { choice.best(P.capacity_pipeline, { degree = { 1, 2, 4, 8 } }) } },
  fastermoe = { doc = "all-to-all in rounds between groups of ranks, one group per node; experts "
      .. "compute round by round; without FasterMoE's copies of experts",
    all_reduce = DDP, passes = { P.fastermoe_pipeline {} } },
  pipemoe = { doc = "all-to-all and experts cut along capacity, each layer at the degree with its "
      .. "fastest forward",
    all_reduce = DDP, passes = { P.pipemoe {} } },
  pipemoe_step = { doc = "pipemoe with degrees that are best for forward and backward together",
    all_reduce = DDP, passes = { P.pipemoe { objective = "step" } } },
  lancet = { doc = "only real rows are sent and computed, the forward is cut into pipelines, and "
      .. "weight gradients run during the backward's all-to-alls",
    all_reduce = AFTER,
    passes = { P.irregular_a2a {}, P.used_rows {}, LANCET_PARTITION, P.dw_schedule {} } },
  lancet_dw = { doc = "lancet without its pipelines", all_reduce = AFTER,
    passes = { P.irregular_a2a {}, P.used_rows {}, P.dw_schedule {} } },
  lancet_partition = { doc = "lancet without its weight-gradient schedule", all_reduce = AFTER,
    passes = { P.irregular_a2a {}, P.used_rows {}, LANCET_PARTITION } },
  megatron = { doc = "Megatron-LM's: only real rows are sent and computed, all-to-alls block "
      .. "compute; experts apply the routing weights; states are sharded, gradients "
      .. "reduce-scattered in buckets under the backward",
    software = "megatron", all_reduce = MEGATRON,
    passes = { P.irregular_a2a {}, P.used_rows {}, P.weights_at_experts {},
      P.zero {}, P.blocking_a2a {} } },
  plain = { doc = "no pass: padded all-to-alls, and gradients are all-reduced after the backward",
    all_reduce = AFTER, passes = {} },
  -- The baseline has no priorities: transfers of its two lanes share a link as the cluster states.
  lina_baseline = { doc = "two lanes: all-to-alls, and at the same time all-reduces in DDP's "
      .. "buckets",
    all_reduce = DDP, passes = {} },
  lina_fixed = { doc = "uncut all-reduces, only between the backward's pairs of all-to-alls",
    all_reduce = LINA, passes = { P.fixed {} } },
  lina_priority = { doc = "one transfer at a time, all-to-alls before uncut all-reduces",
    all_reduce = LINA, passes = lina(1) },
  lina_partition = { doc = "lina_priority with all-reduces in micro-ops of 30 MB",
    all_reduce = LINA, passes = lina(2) },
  lina = { doc = "lina_pipelining with the experts per device that its packing chooses",
    all_reduce = LINA, passes = lina(3), packing = {} },
  -- Systems with a placement of experts. Those made by placed() differ from raf_rows only in it.
  eplb = placed("EPLB: experts with many tokens are resident on several devices, which share "
    .. "the experts' tokens", P.eplb {}),
  fastermoe_shadowing = placed("FasterMoE's shadowing: experts with many tokens are copied to all "
    .. "devices, as long as its performance model predicts a gain", P.fastermoe_shadowing {}),
  -- Methods that balance the exact load of each layer and step (recipes/balancers.lua).
  ultraep = placed("UltraEP: copies with quotas, so that no device computes more than just over "
    .. "the mean", P.ultraep {}),
  echo = placed("ECHO: what devices have above the mean goes to copies on devices below it",
    P.echo {}),
  llep = placed("LLEP: tokens and experts go from devices above a limit to the least loaded",
    P.llep {}),
  lplb = placed("LPLB: a linear program over copies of the heaviest experts at fixed places, which "
    .. "are sent in each step here", P.lplb {}),
  flexmoe = placed("FlexMoE: after each step, hot experts get replicas and cold ones lose theirs; "
    .. "replicas are moved with their states", P.flexmoe {}),
  laer = placed("LAER's layout, anew after each step; experts are moved with their states, as its "
    .. "sharded parameters (FSEP) are not here", P.laer {}),
  moonep = placed("MoonEP: copies so that every device computes the mean, to the token",
    P.moonep {}),
  prophet_planner = placed("Pro-Prophet's planner alone: few experts are copied, each to the "
    .. "devices that have tokens for it", P.prophet {}),
  swap = placed("SmartMoE: experts are swapped between devices until these compute about equally "
    .. "many rows", P.swap {}),
  top2 = placed("the two heaviest experts of a layer are copied to all devices, every step",
    P.top_k { k = 2, shadows = 2 }),
  top3 = placed("the three heaviest experts of a layer are copied to all devices, every step",
    P.top_k { k = 3, shadows = 3 }),
  prophet = { doc = "few experts with many tokens are copied to the devices with tokens for them, "
      .. "in two transfers that the neighbouring block's compute hides; the planner assumes that",
    all_reduce = DDP, passes = prophet({ hidden = 1, split = true }, true) },
  prophet_blocking = { doc = "prophet's planner alone: copies and their gradients block compute",
    all_reduce = DDP, passes = prophet({ hidden = 0 }) },
  prophet_scheduler = { doc = "prophet_blocking's placements, copies scheduled during compute",
    all_reduce = DDP, passes = prophet({ hidden = 0 }, true) },
  prophet_whole = { doc = "prophet with every layer's copies in one transfer",
    all_reduce = DDP, passes = prophet({ hidden = 1 }, true) },
  lina_pipelining = { doc = "lina_partition with all-to-alls in micro-ops, pipelined with experts",
    all_reduce = LINA, passes = lina(3) },
  -- Systems for moe.infer only: experts that are copied from host memory have no backward.
  lina_inference = { doc = "moe.infer: Lina's scheduler, which copies experts from host memory to "
      .. "as many devices as estimated from the paths of tokens through the layers before",
    all_reduce = AFTER, passes = { P.lina_inference {} } },
  lina_no_estimation = { doc = "moe.infer: lina_inference that places experts only by the gate's "
      .. "counts",
    all_reduce = AFTER, passes = { P.lina_inference { estimation = false } } },
  lina_no_fine_tuning = { doc = "moe.infer: lina_inference that never corrects its estimates",
    all_reduce = AFTER, passes = { P.lina_inference { fine_tuning = false } } },
}

--- Fields that are names for a pass with one option: the option, and the field's value without the
--- pass. The pass of a field runs before those that the system lists, or after them.
M.FOR_PASS = { zero = { "stage", 0, first = true }, recompute = { "what", "none" } }

local function field_for_pass(name, type)
  local option, without = unpack(M.FOR_PASS[name])
  for _, row in ipairs(core.table "passes") do
    local enum = row.name == name and policy.pass_options(row)[option].enum
    if enum then type = schema.merged(type, { enum = { without, unpack(enum) } }) end
  end
  return schema.merged(type, { default = without,
    doc = ("the pass %s with this value of its option %s, none where it is the default")
      :format(name, option) })
end

--- The fields of a system apart from its list of passes.
M.FIELDS = {
  zero = field_for_pass("zero", { type = "integer", lo = 0, hi = 1 }),
  recompute = field_for_pass("recompute", { type = "string" }),
  all_reduce = { type = M.REDUCE,
    doc = "the all-reduce policy; default: that of the known system" },
  packing = { type = packing.FIELDS,
    doc = "expert packing: Lina's controller chooses by what factor a device holds more experts" },
  stack = schema.merged(stacks.FIELD, { doc = "software that runs the system's kernels in "
    .. "simulations, in place of the cluster's field stack, with the same values; default: the "
    .. "cluster's" }),
  of = { type = "list", of = { type = "any" }, as = "(string|moe.System)[]", least = "system",
    doc = "systems, or names of known systems; the fastest by simulation is taken" },
}

-- Returns the passes with those of the fields of M.FOR_PASS; a pass that the list has already, and
-- whose field has its default, stays.
local function with_fields(passes, fields)
  local out = { unpack(passes) }
  for name, row in pairs(M.FOR_PASS) do
    local value = fields[name]
    if value ~= row[2] then
      for i = #out, 1, -1 do
        if choice.first(out[i]).name == name then table.remove(out, i) end
      end
      table.insert(out, row.first and 1 or #out + 1, policy.passes[name] { [row[1]] = value })
    end
  end
  return out
end

-- Returns the systems that the list `of` names; each has passes and an all-reduce policy of its
-- own.
local function members_of(of, path, at)
  local members = {}
  for i, entry in ipairs(of) do
    if type(entry) == "string" and not M.known[entry] then
      errors.user(schema.unknown_text(("%s.of[%d]"):format(path, i), "system", entry,
        schema.keys_of(M.known)), at, ("system.of[%d]"):format(i))
    end
    members[i] = type(entry) == "string" and M.system(entry) {} or entry
  end
  schema.field({ type = "list", of = { type = "system" }, distinct = true }, members,
    path .. ".of", at)
  for i, member in ipairs(members) do
    if member.stack ~= nil then
      errors.user(("%s.of[%d].stack: the systems of a list are compared under one stack; give it "
        .. "as the cluster's field stack"):format(path, i), at)
    end
  end
  return members
end

local function passes_of(name, given, path, at)
  local passes = schema.field({ type = "list", of = { type = "any" } }, given, path, at)
  local function take(class, what)
    local taken
    for i = #passes, 1, -1 do
      if schema.is_a(class, passes[i]) then
        if taken then errors.user(("%s: has two %ss; give one"):format(path, what), at) end
        taken = table.remove(passes, i)
      end
    end
    return taken
  end
  local schedule = take("pipeline", "pipeline schedule")
  local dispatcher, seen = take("dispatcher", "dispatcher"), {}
  for i, pass in ipairs(passes) do
    local place = ("%s[%d]"):format(path, i)
    local chosen = schema.is_a("best", pass, place, at) or schema.is_a("fallback", pass, place, at)
    if not chosen then schema.field({ type = "pass" }, pass, place, at) end
    local named = choice.first(pass).name
    if seen[named] and rawget(policy.passes, named) and named ~= "chunked" then
      errors.user(("%s: '%s' is in the list already, as number %d; give one of the two"):format(
        place, named, seen[named]), at, place)
    end
    seen[named] = i
  end
  local others = schedule or dispatcher
  if #passes > 0 or (others and not M.known[name]) then return passes, schedule, dispatcher end
  if not M.known[name] then
    schema.unknown("moe.system", "system (only a known system may have no passes)", name,
      schema.keys_of(M.known), at)
  end
  return M.known[name].passes, schedule, dispatcher
end

local function make(name, t, at)
  local path = ("system '%s'"):format(name)
  if type(t) ~= "table" then
    schema.refuse(path, t,
      "a table of passes, or an empty table, {}, for the passes of a known system", at)
  end
  local given, passes = {}, {}
  for key, value in pairs(t) do
    if type(key) == "number" then passes[key] = value else given[key] = value end
  end
  local fields = schema.check(M.FIELDS, given, path, at)
  if fields.of and (next(passes) or next(given, next(given))) then
    errors.user(path .. ".of: each system in the list has its own passes and fields; give `of` "
      .. "without other fields", at)
  end
  stacks.resolve(fields.stack, path .. ".stack", at, schema.collector(path, "system"))
  local known = M.known[name]
  local own = not fields.packing and known and known.packing
  local schedule, dispatcher
  if not fields.of then passes, schedule, dispatcher = passes_of(name, passes, path, at) end
  return schema.object({ name = name, at = at, pipeline = schedule, dispatcher = dispatcher,
    members = fields.of and members_of(fields.of, path, at),
    passes = not fields.of and with_fields(passes, fields) or nil,
    all_reduce = fields.all_reduce or known and known.all_reduce or AFTER,
    stack = fields.stack,
    packing = own and schema.check(packing.FIELDS, own, path, at) or fields.packing }, mt)
end

--- Returns a system of these passes, which may be none. fields: as M.FIELDS has them; those left
--- out have their defaults.
function M.of_passes(name, passes, fields, at, schedule, dispatcher)
  local checked = schema.check(M.FIELDS, fields, ("system '%s'"):format(name), at)
  return schema.object({ name = name, at = at, passes = with_fields(passes, checked),
    pipeline = schedule, dispatcher = dispatcher, all_reduce = checked.all_reduce or AFTER }, mt)
end

--- Returns the names of the passes of a known system, in their order; nil for another name.
function M.pass_names(name)
  local known, names = M.known[name], {}
  if not known then return nil end
  for i, pass in ipairs(known.passes) do names[i] = choice.first(pass).name end
  return names
end

--- Returns the stack of the software that a known system is named after; nil where its name is that
--- of a technique.
function M.software(name) return M.known[name] and M.known[name].software end

--- Returns the known system of this name, whose errors are raised at `at`.
function M.named(name, at) return make(name, {}, at) end

--- Returns the values of M.FIELDS of a system.
function M.fields_of(system)
  local own = {}
  for name in pairs(M.FIELDS) do own[name] = system[name] end
  for _, pass in ipairs(system.passes or {}) do
    local row = M.FOR_PASS[choice.first(pass).name]
    if row then own[choice.first(pass).name] = choice.first(pass).options[row[1]] end
  end
  return own
end

--- Returns the system with these values of M.FIELDS, which are checked already.
function M.with_fields(system, fields)
  local passes = {}
  for _, pass in ipairs(system.passes) do
    if not M.FOR_PASS[choice.first(pass).name] then passes[#passes + 1] = pass end
  end
  local changes = schema.merged(fields, { passes = with_fields(passes, fields) })
  for name in pairs(M.FOR_PASS) do changes[name] = nil end
  return M.with(system, changes)
end

--- Returns the system with other fields, which are checked already.
function M.with(system, changes) return schema.object(schema.merged(system, changes), mt) end

function M.system(name)
  local at = errors.here()
  -- Names of systems become parts of the names of output files.
  if type(name) ~= "string" or not name:match("^%w[%w_.+-]*$") then
    schema.refuse("moe.system", name,
      "a name of letters, digits, _, ., + and - that begins with a letter or digit", at)
  end
  return function(t) return make(name, t, errors.here()) end
end

--- Returns the cluster as the system's plans see it: with the stack that the system states.
function M.cluster_of(system, cluster)
  if system.stack == nil then return cluster end
  return cluster_lib.with(cluster, schema.merged(cluster.given, { stack = system.stack }),
    { stack = true }, cluster.at)
end

-- Returns the candidate with a list of stages and a pipeline schedule, or nil for the default.
local function candidate_of(system, list, schedule)
  local label = list.label
  if schedule ~= system.pipeline then  -- one of several
    label = (label and label .. " " or "") .. pipeline.label(schedule)
  end
  return { name = system.name, stages = list.stages, choice = label,
    all_reduce = system.all_reduce, packing = system.packing, pipeline = schedule,
    dispatcher = system.dispatcher }
end

--- Returns the plans that the system may lead to, as a list of alternatives, of which the fastest
--- is taken. An alternative is a list of candidates, of which the first that fits in memory is
--- taken. A candidate is a system as the core takes it, with .choice (a label that names the chosen
--- options, or nil).
function M.expand(system)
  local alternatives, schedule = {}, system.pipeline
  for _, member in ipairs(system.members or {}) do
    for _, alternative in ipairs(M.expand(member)) do
      for _, c in ipairs(alternative) do
        c.choice = c.choice and ("%s %s"):format(member.name, c.choice) or member.name
      end
      alternatives[#alternatives + 1] = alternative
    end
  end
  if system.members then return alternatives end
  for _, lists in ipairs(choice.alternatives(system.passes)) do
    for _, one in ipairs(schedule and schedule.of or { schedule or false }) do
      local candidates = {}
      for j, list in ipairs(lists) do candidates[j] = candidate_of(system, list, one or nil) end
      alternatives[#alternatives + 1] = candidates
    end
  end
  return alternatives
end

--- Returns the names, kinds and options of a candidate's stages, for results.json.
function M.describe(candidate)
  local out = {}
  for i, s in ipairs(candidate.stages) do
    out[i] = { name = s.name, kind = s.kind, options = s.options }
  end
  return out
end

return M
