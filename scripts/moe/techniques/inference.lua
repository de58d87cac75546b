-- Lina's inference scheduler (ATC 2023, section 5), as functions of moe.lina: traces of routing
-- with estimates of the experts' popularity, their simulation under a system on a cluster, the
-- allocation of devices to experts, and the statistic of routing in the paper's figure 9.
local core = require "moe.core"
local errors = require "moe.base.errors"
local model_lib = require "moe.spec.model"
local policy = require "moe.spec.policy"
local routing = require "moe.spec.routing"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"

local M = {}

local mt = schema.class("inference_trace", "a trace from moe.lina.trace {...}")
local profile_mt = schema.class("popularity", "a profile from moe.lina.popularity {...}")

local function count(default, doc) return { type = "integer", lo = 1, hi = 1e6, default = default,
  doc = doc } end

M.TRACE = {
  model = { type = "model", required = true, doc = "moe.model" },
  devices = { type = "integer", lo = 1, hi = 65536, required = true,
    doc = "number of devices of the cluster" },
  routing = { type = "routing", required = true, doc = "which experts tokens choose" },
  batches = count(50, "number of batches that are served"),
  profile_batches = { type = "integer", lo = 0, hi = 1e6, default = 20,
    doc = "number of batches before the served ones, from which the profile of paths is made" },
  step = { type = "integer", lo = 1, hi = 1e9, default = 1,
    doc = "step of the routing for the first batch" },
  path = { type = "integer", lo = 1, hi = 62, default = 3,
    doc = "length of a path: from the choices in this many layers the next layer is estimated" },
  keep = { type = "integer", lo = 1, hi = 65536,
    doc = "number of most probable next experts that are kept for each path; default: choices per "
      .. "token" },
  shorter = { type = "boolean", default = false,
    doc = "true: a path that the profile does not contain is replaced by its longest end that it "
      .. "contains; false: tokens with such a path are not counted" },
}

M.POPULARITY = {
  trace = { type = "any", required = true, as = "string|moe.Routing",
    doc = "a recorded trace: its file or moe.trace" },
  step = { type = "integer", lo = 1, hi = 1e9, default = 1,
    doc = "step of the trace that is the first batch" },
  batches = { type = "integer", lo = 1, hi = 1e9,
    doc = "number of batches; default: all from the first one on" },
  path = M.TRACE.path, keep = M.TRACE.keep, shorter = M.TRACE.shorter,
}

local PLACE = {
  cap = { type = "integer", lo = 1, hi = 65536, default = 4,
    doc = "largest number of experts on a device" },
  seed = { type = "integer", lo = 0, hi = 2 ^ 53, default = 0,
    doc = "seed for the random devices of experts for which no token is expected" },
  share = { type = "string", enum = { "even", "weighted" }, default = "even",
    doc = "how the devices of an expert share its tokens: evenly (paper), or in proportion to the "
      .. "part of the expert that phase 1 gave each device" },
}

local function ms(default, doc)
  return { type = "number", lo = 0, hi = 1e6, default = default, doc = doc }
end

M.INFERENCE = schema.merged(PLACE, {
  trace = { type = "inference_trace", required = true, doc = "moe.lina.trace" },
  cluster = { type = "cluster", required = true, doc = "moe.cluster" },
  system = { type = "string", default = "lina",
    enum = { "lina", "baseline", "ideal", "no_estimation", "no_fine_tuning" },
    doc = "the system that serves the batches" },
  schedule = { type = "string", enum = { "paper", "closed_form" }, default = "paper",
    doc = "durations of the two phases: paper, 6.2 ms for phase 1, and for phase 2 1.45 ms if the "
      .. "estimate is right and 6.2 ms if not; closed_form, place_ms and the times on the links" },
  place_ms = ms(nil, "duration of phase 1 on one device; default: 6.2, with closed_form 0.2"),
  resume_ms = ms(nil, "duration of phase 2 if the estimate is right"),
  rerun_ms = ms(nil, "duration of phase 2 if the estimate is wrong"),
  host_bytes_per_s = { type = "number", lo = 1, hi = 1e15, default = 25e9,
    doc = "bytes per second from host memory to each device; the default is PCIe 4.0 x16 without "
      .. "its overhead" },
  normalise = { type = "boolean", default = false,
    doc = "whether estimates are scaled to add up to the number of devices; if false, they lack "
      .. "the probabilities that a path's profile omits (`keep`)" },
  compare = { type = "string", enum = { "list", "set" }, default = "list",
    doc = "how phase 2 compares the 2k most popular experts: as an ordered list or as a set" },
  ends = { type = "table", default = {},
    doc = "name of an assumed constant of the cluster -> 'lo' or 'hi', the end of its band to "
      .. "simulate with" },
})

M.PLACE = schema.merged(PLACE, {
  popularity = { type = "list", of = { type = "number", lo = 0, hi = 1e6 }, required = true,
    doc = "for each expert how many devices it should have; the sum may be at most `devices`" },
  devices = { type = "integer", lo = 1, hi = 65536, required = true, doc = "number of devices" },
})

M.LOCALITY = {
  top = count(2, "number of most popular next experts that are counted"),
  experts = { type = "integer", lo = 1, hi = 65536, required = true, doc = "experts of a layer" },
  choices = { type = "table",
    doc = "choices[layer][token]: the chosen expert, from 1; 0 means none" },
  routing = { type = "routing", doc = "a workload or a trace, in place of choices" },
  layers = count(12, "MoE layers of the routing"),
  ranks = count(1, "ranks of the routing"), tokens = count(4096, "tokens per rank"),
  k = count(1, "choices per token"),
  batches = count(10, "number of batches"), step = count(1, "step of the first batch"),
}

M.TOKEN_CLASSES = {
  classes = count(64, "number of classes of tokens; a token keeps its class through all layers"),
  skew = { type = "number", lo = 0, hi = 20, default = 1,
    doc = "class i is chosen in proportion to i^-skew" },
  ratio = { type = "number", lo = 1, hi = 1e6, default = 4,
    doc = "popularity of the most popular expert divided by that of the least popular one, when "
      .. "classes are assigned to experts" },
  stray = { type = "number", lo = 0, hi = 1, default = 0,
    doc = "share of choices that ignore the class" },
  drift = { type = "number", lo = 0, hi = 20, default = 0,
    doc = "standard deviation of a class's log popularity, drawn again in each step" },
  seed = { type = "integer", lo = 0, hi = 2 ^ 53,
    doc = "seed of the random numbers; default: --seed, or 1" },
}

-- Durations of the paper's two scheduling phases, communication included (section 7.3): phase 1,
-- and phase 2 if the estimate is right (resume_ms) or wrong (rerun_ms).
local PAPER_MS = { place_ms = 6.2, resume_ms = 1.45, rerun_ms = 6.2 }
local PLACE_MS = 0.2  -- tests/bench: 0.13 ms from the paths of 16k tokens to the mapping

-- Returns the model's sizes on `devices` devices. Raises a user error if its gate is a policy.
local function resolved(model, devices, path, at)
  local spec = model_lib.resolve(model, devices, "f16")
  if spec.gate then
    errors.user(path .. ".model: its gate is a policy; give a model with a built-in gate", at)
  end
  return spec.model
end

--- moe.lina.trace{...}: returns a moe.InferenceTrace, the choices of tokens in each layer. It does
--- not depend on cluster and system, so that one trace can be used with many.
local function trace(t)
  local at = errors.here()
  local c = schema.check(M.TRACE, t, "moe.lina.trace", at)
  errors.stop_in "policies"
  errors.stop_in "check"
  local spec = resolved(c.model, c.devices, "moe.lina.trace", at)
  local query = { routing = c.routing, step = c.step, ranks = c.devices, k = c.model.k,
    tokens = spec.batch_per_device * spec.seq, experts = spec.experts,
    layers = math.floor(spec.layers / spec.moe_every), path = c.path, keep = c.keep,
    shorter = c.shorter, profile_batches = c.profile_batches, batches = c.batches }
  local handle, info = errors.call(at, core.lina_trace, query)
  return schema.object({ handle = handle, model = c.model, devices = c.devices,
    paths = info.paths, path = c.path, shorter = c.shorter, routing = c.routing.name,
    routing_model = c.routing,
    -- At this capacity factor no choice of any batch is dropped.
    capacity_factor = info.most_rows * query.experts / (query.tokens * query.k) * (1 + 1e-9) }, mt)
end

local function popularity(t)
  local at = errors.here()
  local c = schema.check(M.POPULARITY, t, "moe.lina.popularity", at)
  local file = schema.is_a("routing", c.trace, "moe.lina.popularity.trace", at) and c.trace.file
    or c.trace
  if type(file) ~= "string" then
    schema.refuse("moe.lina.popularity.trace", c.trace,
      "the name of a trace's file, or moe.trace 'file' {}", at)
  end
  errors.stop_in "policies"
  errors.stop_in "check"
  local handle, info = errors.call(at, core.lina_popularity, { trace = file, step = c.step,
    batches = c.batches or 0, path = c.path, keep = c.keep or 1, shorter = c.shorter })
  return schema.object({ handle = handle, path = c.path, paths = info.paths, layers = info.layers,
    experts = info.experts, batches = info.batches }, profile_mt)
end

-- Returns the system to simulate: only real rows are sent and computed, and ops run one after the
-- other, except for those of lane kind "host", which run while the rank computes.
local function system_of(c)
  local passes = { policy.passes.irregular_a2a {}, policy.passes.used_rows {} }
  if c.system ~= "baseline" and c.system ~= "ideal" then
    table.insert(passes, 1, policy.passes.lina_inference { path = c.trace.path,
      shorter = c.trace.shorter, cap = c.cap, seed = c.seed, share = c.share,
      normalise = c.normalise, compare = c.compare, estimation = c.system ~= "no_estimation",
      fine_tuning = c.system ~= "no_fine_tuning" })
  end
  return system_lib.system("inference_" .. c.system)(passes)
end

-- Returns the plan of the forward of the trace's model on the cluster, including the durations of
-- the two scheduling phases.
local function plan_of(c, at)
  local spec = target.cluster_spec(c.trace.model, c.cluster, nil, c.ends)
  local constants = c.schedule == "paper" and PAPER_MS or { place_ms = PLACE_MS }
  local swaps = { host_bytes_per_s = c.host_bytes_per_s }
  for _, name in ipairs { "place_ms", "resume_ms", "rerun_ms" } do
    swaps[name] = c[name] or constants[name]
  end
  spec.model.capacity_factor = c.trace.capacity_factor
  spec.fill, spec.sample = model_lib.fill(c.trace.model, spec.model), false  -- of balanced routing
  spec.inference, spec.cost = true, { kind = "roofline", swaps = swaps }
  if c.system ~= "ideal" then spec.routing = c.trace.routing_model end
  return target.plan_of(spec, system_lib.expand(system_of(c))[1][1], at)
end

local function inference(t)
  local at = errors.here()
  local c = schema.check(M.INFERENCE, t, "moe.lina.inference", at)
  if c.cluster.devices ~= c.trace.devices then
    errors.user(("moe.lina.inference.cluster: has %d devices, but the trace was made for %d")
      :format(c.cluster.devices, c.trace.devices), at)
  end
  local assumed = {}
  for _, a in pairs(c.cluster.assumed) do
    assumed[a.name] = { value = a.value, lo = a.lo, hi = a.hi }
  end
  for name, part in pairs(c.ends) do
    if not assumed[name] then
      schema.unknown("moe.lina.inference.ends", "constant", name, schema.keys_of(assumed), at)
    end
    if part ~= "lo" and part ~= "hi" then
      schema.refuse("moe.lina.inference.ends." .. name, part, "'lo' or 'hi'", at)
    end
  end
  local result = errors.call(at, core.lina_inference, c.trace.handle, plan_of(c, at), c.compare)
  result.system, result.assumed = c.system, assumed
  return result
end

local function place(t)
  local at = errors.here()
  local c = schema.check(M.PLACE, t, "moe.lina.place", at)
  core.array(c.popularity)
  return errors.call(at, core.lina_place, c)
end

local function locality(t)
  local at = errors.here()
  local c = schema.check(M.LOCALITY, t, "moe.lina.locality", at)
  if (c.choices == nil) == (c.routing == nil) then
    errors.user(("moe.lina.locality: give either choices or routing, %s"):format(
      c.choices and "not both" or "neither is given"), at)
  end
  return errors.call(at, core.lina_locality, c)
end

local function token_classes(t)
  local at = errors.here()
  local c = schema.check(M.TOKEN_CLASSES, t or {}, "moe.lina.token_classes", at)
  c.seed = c.seed or core.args.seed or 1
  return routing.object(errors.call(at, core.lina_token_classes, c))
end

schema.record("lina batches", "result", "simulated inference, over all batches and MoE layers", {
  { "median_ms", "number", "median of the times of batches" },
  { "p95_ms", "number", "95th percentile of the times of batches" },
  { "batch_ms", "number[]", "time of each batch" },
  { "layer_median_ms", "number", "median of the times of MoE layers" },
  { "layer_p95_ms", "number", "95th percentile of the times of MoE layers" },
  { "a2a_median_ms", "number", "median of the times of both all-to-alls of a layer" },
  { "a2a_p95_ms", "number", "95th percentile of the times of both all-to-alls of a layer" },
  { "expert_p95_ms", "number", "95th percentile of the times of a layer's experts" },
  { "accuracy", "number?",
    "share of estimates with the right 2k most popular experts, for k choices per token" },
  { "accuracy_by_layer", "{ layer: integer, accuracy: number }[]",
    "the accuracy of each MoE layer" },
  { "fine_tuning", "number?",
    "share of the estimated layers in which phase 2 placed experts again" },
  { "phase2_ms", "number", "time of phase 2 per batch" },
  { "mapping_wait_ms", "number",
    "time per batch of waiting for the mapping of experts to devices" },
  { "swap_wait_ms", "number", "time per batch of waiting for swapped experts" },
  { "swapped", "number", "number of swapped experts per batch" },
  { "resume_ms", "number?", "duration of phase 2 if the estimate is right" },
  { "rerun_ms", "number?", "duration of phase 2 if the estimate is not right" },
  { "system", "string", "the system that served the batches" },
  { "assumed", "table<string, { value: number, lo: number, hi: number }>",
    "the cluster's assumed constants, indexed by name" },
})

schema.record("inference trace", "trace",
  "the choices of tokens in each layer, batch after batch", {
  { "paths", "integer", "number of paths that the profile contains" },
  { "path", "integer", "number of layers of a path" },
  { "devices", "integer", "number of devices" },
  { "routing", "string", "name of the routing model" },
})

schema.record("popularity", "profile", "how often each expert follows each path", {
  { "paths", "integer", "number of paths that the profile contains" },
  { "path", "integer", "number of layers of a path" },
  { "layers", "integer", "number of MoE layers" },
  { "experts", "integer", "number of experts of a layer" },
  { "batches", "integer", "number of batches that were counted" },
})

--- The functions of moe.lina except packing, in the form that schema.functions takes.
M.functions = {
  trace = { trace, M.TRACE, "moe.InferenceTrace",
    "the choices of tokens in each layer, batch after batch, and the popularity of experts "
      .. "estimated from the tokens' paths; usable with many clusters and systems" },
  inference = { inference, M.INFERENCE, "moe.LinaBatches",
    "simulates the batches of a trace on a cluster" },
  popularity = { popularity, M.POPULARITY, "moe.Popularity",
    "makes the profile from which lina_inference estimates in moe.infer: how often each expert "
      .. "follows each path in a recorded trace" },
  place = { place, M.PLACE, "{ holders: integer[][], experts: integer[][] }",
    "phase 1 of the allocation: for each expert its devices, which share its tokens evenly, and "
      .. "for each device its experts" },
  locality = { locality, M.LOCALITY,
    "{ share: number[], layers: { layer: integer, share: number[] }[], tokens: integer }",
    "of the tokens that chose the same expert, the share that choose one of the 1, 2, ... most "
      .. "popular experts in the next layer (paper: figure 9), over all experts" },
  token_classes = { token_classes, M.TOKEN_CLASSES, "moe.Routing",
    "a made-up routing model in which each token keeps a class through all layers, and the class "
      .. "decides its choices" },
}

return M
