-- moe.lina: parts of Lina's schedulers for training and inference (ATC 2023) as functions: the
-- packing controller, the profile from which the pass lina_inference estimates popularity, and the
-- statistic of routing in the paper's figure 9.
local core = require "moe.core"
local errors = require "moe.base.errors"
local packing = require "moe.spec.packing"
local routing = require "moe.spec.routing"
local schema = require "moe.base.schema"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"

local M = {}

local profile_mt = schema.class("popularity", "a profile from moe.lina.popularity {...}")

M.PACKING = schema.merged(packing.FIELDS, {
  model = { type = "model", required = true, doc = "moe.model" },
  cluster = { type = "cluster", required = true, doc = "moe.cluster" },
  system = { type = "system",
    doc = "the system whose micro-ops are measured; default: lina_pipelining" },
})

local function size(name, doc)
  return schema.merged(schema.optional(routing.LOADS[name]),
    { doc = doc .. "; default: the trace's" })
end

-- A routing with its sizes, which a workload has not and a trace has.
M.ROUTED = {
  routing = { type = "any", as = "string|moe.Routing", required = true,
    doc = "moe.workload, or a recorded trace: its file or moe.trace" },
  ranks = size("ranks", "number of ranks that hold tokens"),
  tokens = size("tokens", "tokens per rank"),
  experts = size("experts", "experts of a layer"),
  k = size("k", "choices per token"),
  layers = { type = "integer", lo = 1, hi = 1e6,
    doc = "number of MoE layers; default: the trace's" },
  step = { type = "integer", lo = 1, hi = 1e9, default = 1,
    doc = "step of the routing that is the first batch" },
  batches = { type = "integer", lo = 1, hi = 1e6,
    doc = "number of batches; default: all of the trace from the first one on" },
}

M.POPULARITY = schema.merged(M.ROUTED, {
  path = { type = "integer", lo = 1, hi = 62, default = 3,
    doc = "length of a path: from the choices in this many layers the next layer is estimated" },
  keep = { type = "integer", lo = 1, hi = 65536,
    doc = "number of most probable next experts that are kept for each path; default: choices per "
      .. "token" },
  shorter = { type = "boolean", default = false,
    doc = "true: a path that the profile does not contain is replaced by its longest end that it "
      .. "contains; false: tokens with such a path are not counted" },
})

M.LOCALITY = schema.merged(M.ROUTED, {
  top = { type = "integer", lo = 1, hi = 65536, default = 2,
    doc = "number of most popular next experts that are counted" },
})

local pack = schema.taking(M.PACKING, "moe.lina.packing", function(c, at)
  errors.stop_in "policies"
  local system = c.system or system_lib.system "lina_pipelining" {}
  local candidate = system_lib.expand(system)[1][1]
  local spec = target.cluster_spec(c.model, system_lib.cluster_of(system, c.cluster))
  local _, seen = packing.choose(spec, c,
    function(s) return target.plan_of(s, candidate, at) end, at)
  return seen
end)

-- Checks the fields of a function; returns them with the sizes of the trace, if it is one, and
-- `routing` as the core takes it.
local function routed(fields, t, path, at)
  local c = schema.check(fields, t, path, at)
  if type(c.routing) == "string" then c.routing = routing.trace(c.routing) {} end
  if not schema.is_a("routing", c.routing, path .. ".routing", at) then
    schema.refuse(path .. ".routing", c.routing, fields.routing.doc, at)
  end
  local file = c.routing.file
  local trace = file and errors.call(at, core.trace_info, file) or {}
  if trace.steps then trace.batches = math.max(1, trace.steps - c.step + 1) end
  for _, name in ipairs { "ranks", "tokens", "experts", "k", "layers", "batches" } do
    c[name] = c[name] or trace[name]
    if not c[name] then
      errors.user(("%s.%s: is missing; only a trace has a value of its own"):format(path, name), at,
        path)
    end
  end
  return c
end

local function popularity(t)
  local at = errors.here()
  local c = routed(M.POPULARITY, t, "moe.lina.popularity", at)
  errors.stop_in "policies"
  errors.stop_in "check"
  local handle, paths = errors.call(at, core.lina_popularity, c)
  return schema.object({ handle = handle, path = c.path, paths = paths, layers = c.layers,
    experts = c.experts, batches = c.batches }, profile_mt)
end

local function capacity_factor(t)
  local at, most = errors.here(), 1
  local c = routed(M.ROUTED, t, "moe.lina.capacity_factor", at)
  core.end_loading()
  for step = c.step, c.step + c.batches - 1 do
    for layer = 1, c.layers do
      for _, loads in ipairs(errors.call(at, core.loads, c.routing.handle, { step = step,
        layer = layer, ranks = c.ranks, tokens = c.tokens, experts = c.experts, k = c.k })) do
        most = math.max(most, unpack(loads))
      end
    end
  end
  return most * c.experts / (c.k * c.tokens) * (1 + 1e-9)
end

-- Adds up how often the tokens of one rank whose first choice in layer l is expert i have expert j
-- in layer l + 1: counts[l][i][j].
local function count_next(c, step, rank, counts, at)
  local before
  for layer = 1, c.layers do
    local chosen = errors.call(at, core.choices, c.routing.handle, { step = step, layer = layer,
      rank = rank, ranks = c.ranks, tokens = c.tokens, experts = c.experts, k = c.k })
    for i = 1, before and #chosen or 0, c.k do
      local from, to = before[i], chosen[i]
      if from >= 0 and to >= 0 then
        local next_of = counts[layer - 1][from + 1]
        next_of[to + 1] = next_of[to + 1] + 1
      end
    end
    before = chosen
  end
end

-- Returns how many tokens there are, and for n = 1 to top how many chose one of the n most frequent
-- next experts.
local function followers(counts, top)
  local tokens, follow = 0, {}
  for n = 1, top do follow[n] = 0 end
  for _, next_of in ipairs(counts) do
    table.sort(next_of, function(a, b) return a > b end)
    for n, count in ipairs(next_of) do
      tokens = tokens + count
      for i = n, top do follow[i] = follow[i] + count end
    end
  end
  return tokens, follow
end

local function locality(t)
  local at = errors.here()
  local c = routed(M.LOCALITY, t, "moe.lina.locality", at)
  core.end_loading()
  local counts = {}
  for layer = 1, c.layers - 1 do
    counts[layer] = {}
    for i = 1, c.experts do
      counts[layer][i] = {}
      for j = 1, c.experts do counts[layer][i][j] = 0 end
    end
  end
  for step = c.step, c.step + c.batches - 1 do
    for rank = 1, c.ranks do count_next(c, step, rank, counts, at) end
  end
  local all, sum, layers = 0, {}, {}
  for layer, of_layer in ipairs(counts) do
    local tokens, follow = followers(of_layer, c.top)
    layers[layer] = { layer = layer + 1, share = {} }
    all = all + tokens
    for n, count in ipairs(follow) do
      layers[layer].share[n] = count / math.max(1, tokens)
      sum[n] = (sum[n] or 0) + count
    end
  end
  for n = 1, #sum do sum[n] = sum[n] / math.max(1, all) end
  return { share = sum, layers = layers }
end

schema.record("popularity", "profile", "how often each expert follows each path", {
  { "paths", "integer", "number of paths that the profile contains" },
  { "path", "integer", "number of layers of a path" },
  { "layers", "integer", "number of MoE layers" },
  { "experts", "integer", "number of experts of a layer" },
  { "batches", "integer", "number of batches that were counted" },
})

M.functions = schema.functions("moe.lina", "function", {
  capacity_factor = { capacity_factor, M.ROUTED, "number",
    "the least capacity factor of a model with which no choice of these batches is dropped" },
  locality = { locality, M.LOCALITY,
    "{ share: number[], layers: { layer: integer, share: number[] }[] }",
    "of the tokens that chose the same expert, the share that choose one of the 1, 2, ... most "
      .. "popular experts in the next layer (paper: figure 9), over all experts" },
  packing = { pack, M.PACKING, "moe.Packing",
    "runs the packing controller; returns what it chose and measured" },
  popularity = { popularity, M.POPULARITY, "moe.Popularity",
    "makes the profile from which lina_inference estimates in moe.infer: how often each expert "
      .. "follows each path of a routing" },
})

return M
