-- moe.pipemoe: PipeMoE's choice of a degree (the number of chunks into which it cuts a layer along
-- the capacity). The choice uses straight lines: a transfer of n bytes takes alpha_a + beta_a n,
-- the experts of a chunk alpha_e + beta_e n. Units: seconds; n_d is bytes of a rank's all-to-all,
-- n_e multiply-adds of one of the two GEMMs of a rank's experts.
local core = require "moe.core"
local errors = require "moe.base.errors"
local paper = require "moe.models.pipemoe"
local schema = require "moe.base.schema"
local target = require "moe.spec.target"
local train = require "moe.run.train"

local M = {}

local function least_0(doc, required)
  return { type = "number", lo = 0, hi = 1e30, doc = doc, required = required }
end

local OBJECTIVE = { type = "string", enum = { "forward", "step" }, default = "forward",
  doc = "the time to make short: that of the forward (paper), or of the step with its backward" }

local LINES = {
  alpha_a = least_0("start-up of a transfer, seconds", true),
  beta_a = least_0("seconds per byte of a transfer", true),
  n_d = least_0("bytes of a rank's all-to-all", true),
  alpha_e = least_0("start-up of a chunk's experts, both GEMMs together, seconds", true),
  beta_e = least_0("seconds that both GEMMs take per multiply-add of one of them", true),
  n_e = least_0("multiply-adds of one GEMM: rows * hidden * ffn", true),
  alpha_b = least_0 "as alpha_e, for the experts' backward; default: twice alpha_e",
  beta_b = least_0 "as beta_e, for the experts' backward; default: twice beta_e",
  cut_s = least_0 "seconds that cutting takes, once; default: 0, as in the paper",
  objective = OBJECTIVE,
}

local DEGREE = { type = "integer", lo = 1, hi = 65536 }

M.DEGREE = schema.merged(LINES, {
  max_degree = schema.merged(DEGREE, { default = 64, doc = "the largest degree" }),
  allowed = { type = "list", of = DEGREE,
    doc = "degrees among which to choose; default: all up to max_degree" },
  method = { type = "string", enum = { "exact", "brute", "paper", "paper_fixed" },
    default = "exact",
    doc = "how to find the degree. exact: in closed form; brute: by trying every degree; paper: "
      .. "Algorithm 1 as printed; paper_fixed: Algorithm 1 without its errata" },
})

M.TIME = schema.merged(LINES, {
  degree = schema.merged(DEGREE, { required = true, doc = "number of chunks" }),
  by = { type = "string", enum = { "closed_form", "recurrence" }, default = "closed_form",
    doc = "how the time is computed: by the paper's closed form, or chunk by chunk" },
})

M.LAYERS = {
  devices = { type = "integer", required = true, doc = "number of GPUs: 16, 32 or 64" },
  alpha_a_16 = { type = "string", enum = { "likely", "printed" }, default = "likely",
    doc = "alpha_a on 16 GPUs: likely, 1.72e-4 s; printed, 1.72e-5 s as in the paper" },
  k = { type = "integer", lo = 1, hi = 64, default = paper.k, doc = "choices per token" },
  element_bytes = { type = "integer", lo = 1, hi = 8, default = paper.element_bytes,
    doc = "bytes per element; with 1, beta_a is taken as seconds per element" },
  times_experts = { type = "boolean", default = false,
    doc = "whether rows are multiplied by E/P (experts per GPU), as in lines 2 and 3 of "
      .. "Algorithm 1" },
}

M.FIT = {
  model = { type = "model", required = true, doc = "moe.model" },
  cluster = { type = "cluster", doc = "moe.cluster; give this or ranks" },
  ranks = { type = "integer", lo = 2, hi = 1024,
    doc = "number of ranks on this machine, whose ops are then measured" },
  link = { type = train.LINK, doc = "the emulated link of the ranks" },
  objective = OBJECTIVE,
}

local degree = schema.taking(M.DEGREE, "moe.pipemoe.degree", function(c, at)
  if c.allowed then
    table.sort(c.allowed)
    core.array(c.allowed)
  end
  return errors.call(at, core.pipemoe_degree, c)
end)

local time = schema.taking(M.TIME, "moe.pipemoe.time", function(c, at)
  return errors.call(at, core.pipemoe_time, c)
end)

-- Returns whether four layers like l fit in a GPU's memory. The paper keeps 522 of its 864 layers
-- but does not give the rule. This guess keeps as many: fp32; four copies of each parameter (Adam);
-- 8 tensors of width M (hidden) and 4 of width H (ffn) per routed row; 6 of width M per token.
local function fits(l)
  local weights = 8 * l.experts_per_device * l.hidden * l.ffn
  local rows = l.batch * l.seq * (22 * l.hidden + 8 * l.ffn)
  return 16 * (weights + rows) <= paper.gib * 2 ^ 30
end

local function layer_of(c, batch, seq, ffn, hidden, experts)
  local line = paper.all_to_all[c.devices]
  local printed = c.alpha_a_16 == "printed" and c.devices == 16
  local l = { devices = c.devices, experts_per_device = experts, batch = batch, seq = seq,
    hidden = hidden, ffn = ffn, rows = c.k * batch * seq * (c.times_experts and experts or 1),
    alpha_a = printed and paper.printed_alpha_16 or line.alpha, beta_a = line.beta,
    alpha_gemm = paper.alpha_gemm, beta_gemm = paper.beta_gemm }
  l.lines = { alpha_a = l.alpha_a, beta_a = l.beta_a, n_d = l.rows * hidden * c.element_bytes,
    alpha_e = 2 * l.alpha_gemm, beta_e = 2 * l.beta_gemm, n_e = l.rows * hidden * ffn }
  l.fits = fits(l)
  return l
end

local layers = schema.taking(M.LAYERS, "moe.pipemoe.layers", function(c, at)
  if not paper.all_to_all[c.devices] then
    schema.refuse("moe.pipemoe.layers.devices", c.devices, "16, 32 or 64", at)
  end
  local out = {}
  for _, batch in ipairs(paper.batch) do
    for _, seq in ipairs(paper.seq) do
      for _, ffn in ipairs(paper.ffn) do
        for _, hidden in ipairs(paper.hidden) do
          for _, experts in ipairs(paper.experts_per_device) do
            out[#out + 1] = layer_of(c, batch, seq, ffn, hidden, experts)
          end
        end
      end
    end
  end
  return out
end)

-- Returns the specification of a plan without passes, on the cluster or on ranks of this machine.
local function spec_of(c, at)
  schema.one_of(c, "cluster", "ranks", "moe.pipemoe.fit", at)
  if c.cluster and c.link then
    errors.user("moe.pipemoe.fit.link: is only used with ranks; a cluster has its own links", at)
  end
  train.check_device("cpu", c, "moe.pipemoe.fit", at)
  local optimizer = schema.field(target.OPTIMIZER_FIELD, nil, "optimizer", at)
  local spec = c.cluster and target.cluster_spec(c.model, c.cluster, optimizer)
    or target.real_spec("cpu", c.model, c.ranks, c.link, optimizer, "f32")
  spec.system = { name = "fit", stages = core.array {} }
  return spec
end

local fit = schema.taking(M.FIT, "moe.pipemoe.fit", function(c, at)
  errors.stop_in "policies"
  errors.stop_in "check"
  return errors.call(at, core.pipemoe_fit, spec_of(c, at), c.objective)
end)

M.functions = schema.functions("moe.pipemoe", "function", {
  degree = { degree, M.DEGREE, "{ degree: integer, time_s: number }",
    "the best degree and its time" },
  fit = { fit, M.FIT, "{ lines: table, error: table, degrees: integer[], capacity: integer }",
    "fits lines (alpha_a, ..., for moe.pipemoe.degree and .time) to a model's MoE layers, all of "
      .. "which have the same sizes. error: median, worst and r2 for transfer, experts and "
      .. "backward; degrees: those whose chunks were timed; capacity: the highest possible degree"
    },
  layers = { layers, M.LAYERS, "table[]",
    "the paper's 288 layers on a cluster: a list of { batch, seq, hidden, ffn, "
      .. "experts_per_device, rows, devices, alpha_a, beta_a, alpha_gemm, beta_gemm, lines = "
      .. "fields "
      .. "for moe.pipemoe.degree and .time, fits = whether the layer fits in memory }" },
  time = { time, M.TIME, "number", "time of a layer at a degree, in seconds" },
})

return M
