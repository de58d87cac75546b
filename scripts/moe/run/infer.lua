-- moe.infer{...}: inference. Batches go through the forward of a model on real ranks, or in a
-- simulation on a cluster; the system decides on which devices the experts are.
local core = require "moe.core"
local effects = require "moe.results.effects"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"
local settings = require "moe.run.settings"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"
local train = require "moe.run.train"

local M = {}

local EXECUTORS = { "simulate" }
for _, name in ipairs(train.EXECUTORS) do EXECUTORS[#EXECUTORS + 1] = name end

local function ms(doc) return { type = "number", lo = 0, hi = 1e6, doc = doc } end

M.SWAPS = {
  place_ms = ms "duration of phase 1, which places experts by the estimate, on a device",
  resume_ms = ms "duration of phase 2 with its exchange, if the estimate is right",
  rerun_ms = ms "as resume_ms, if the estimate is wrong; default: place_ms and the exchange",
  host_bytes_per_s = { type = "number", lo = 1, hi = 1e15,
    doc = "bytes per second from host memory to each device" },
}

M.INFER = {
  model = { type = "model", required = true, doc = "moe.model.gpt2_moe {...}" },
  system = { type = "system",
    doc = "moe.system; default: raf_rows, where experts stay on their owners" },
  ranks = train.REAL_RUN.ranks,
  batches = { type = "integer", lo = 1, hi = 1e9, default = 1, doc = "number of batches" },
  first_batch = { type = "integer", lo = 1, hi = 1e9, default = 1,
    doc = "number of the first batch; batch i is the same in every run" },
  executor = { type = "string", enum = EXECUTORS, default = "cpu",
    doc = "where ranks run: on the CPU (cpu), on a GPU (cuda), or in a simulation (simulate)" },
  cluster = { type = "cluster", doc = "moe.cluster, for the executor simulate only" },
  swaps = { type = M.SWAPS, doc = "of a simulation of lina_inference: durations and rates in "
    .. "place of those by the cluster's rates" },
  precision = train.RUN.precision,
  attention = train.RUN.attention,
  edits = train.RUN.edits,
  parameters = { type = "string",
    doc = "a checkpoint of moe.train in the output folder, or a model.safetensors or its index; "
      .. "default: the initial parameters" },
  tokens = { type = "string", default = "text",
    doc = "where tokens come from: text, the part of the text that training does not read; "
      .. "reference, made-up tokens; or the name of a .json file with rows of token ids, seq + 1 "
      .. "each, of which a batch takes the next ones" },
  text = train.RUN.text,
  popularity = { type = "popularity",
    doc = "moe.lina.popularity, the profile from which lina_inference estimates" },
  link = train.REAL_RUN.link,
  pace = train.REAL_RUN.pace,
  record = train.RUN.record,
  timeout_s = train.RUN.timeout_s,
}

-- Returns the only candidate of a system. Raises a user error if the system has several, or a stage
-- that needs a training step.
local function candidate_of(system, at)
  local alternatives = system_lib.expand(system)
  local function refuse(why)
    errors.user(("moe.infer.system: system '%s' %s"):format(system.name, why), at)
  end
  if #alternatives > 1 or alternatives[1][1].packing then
    refuse("has several candidates, which are compared by times of training steps; "
      .. "give a system without moe.best, packing and `of`")
  end
  for _, stage in ipairs(alternatives[1][1].stages) do
    if target.stage_reads_times(stage) then
      refuse(("has the pass '%s', which decides by times of training steps; give a system without "
        .. "it"):format(stage.name))
    end
    if stage.kind == "placement" and stage.name ~= "lina_inference" then
      refuse(("has the pass '%s', which places experts for the next training step; for inference "
        .. "give a system with lina_inference"):format(stage.name))
    end
  end
  return alternatives[1][1]
end

local function check_popularity(c, candidate, at)
  local estimates
  for _, stage in ipairs(candidate.stages) do
    if stage.name == "lina_inference" then estimates = stage.options.estimation end
  end
  if estimates and not c.popularity then
    errors.user(("moe.infer.popularity: is missing; '%s' estimates from moe.lina.popularity; give "
      .. "it, or estimation = false in the pass"):format(c.system.name), at)
  elseif c.popularity and not estimates then
    errors.user(("moe.infer.popularity: is not used, since the system '%s' makes no estimates; "
      .. "omit it"):format(c.system.name), at)
  end
end

local function options_of(c, spec, at)
  -- train.run_options also needs these fields, which inference does not use.
  local fields = schema.merged(c, { steps = c.batches, init = "reference", eval_batches = 0,
    checkpoint_every = 0 })
  local open = train.is_open(c.parameters)
  fields.parameters = open and c.parameters or nil
  local options = train.run_options(c.executor, fields, spec, "moe.infer", at)
  options.first_step = c.first_batch - 1
  options.data.held_out = true
  if not open then
    options.parameters_from = train.checkpoint(c.parameters, core.out_dir, "moe.infer.parameters",
      at)
  end
  options.popularity = c.popularity and c.popularity.handle
  return options
end

local SIMULATED = { model = true, system = true, batches = true, first_batch = true,
  popularity = true, executor = true, cluster = true, swaps = true }

local function check_cluster(c, given, at)
  if c.executor ~= "simulate" then
    local only = c.cluster and "cluster" or c.swaps and "swaps"
    if not only then return end
    errors.user(("moe.infer.%s: is only used with executor = 'simulate'; here it is '%s'")
      :format(only, c.executor), at)
  end
  if not c.cluster then
    errors.user("moe.infer.cluster: is missing; the executor 'simulate' needs a cluster", at)
  end
  for _, key in ipairs(schema.keys_of(given)) do
    if not SIMULATED[key] then
      errors.user(("moe.infer.%s: is not used by a simulation; omit it"):format(key), at)
    end
  end
end

-- Returns in how many layers of all batches experts were placed again, of how many in which they
-- may be.
local function again_of(inference)
  local again = { placed = 0, of = 0 }
  for _, layers in ipairs(inference.placed_again) do
    for i, yes in ipairs(layers) do
      again.placed, again.of = again.placed + (yes and 1 or 0),
        again.of + (inference.phase_2[i] and 1 or 0)
    end
  end
  return again
end

local function simulated(c, candidate, at)
  local spec = target.cluster_spec(c.model, system_lib.cluster_of(c.system, c.cluster))
  spec.inference, spec.cost.swaps = true, c.swaps
  for _, stage in ipairs(candidate.stages) do
    if stage.name == "lina_inference" and not spec.routing then
      errors.user(("moe.infer.model.routing: is missing; '%s' places experts by the tokens' "
        .. "choices, which a simulation takes from moe.trace or moe.workload"):format(
        c.system.name), at)
    end
  end
  local plan = target.plan_of(spec, candidate, at)
  errors.stop_in "check"
  local result = train.started("serving", plan, { executor = "simulate", steps = c.batches,
    first_step = c.first_batch - 1, popularity = c.popularity and c.popularity.handle },
    spec.ranks, at)
  local info = plan:info()
  local out = target.mark({ no_room = result.stop_reason, peak_bytes = info.peak_bytes },
    spec, plan)
  if out.oom then core.warn("moe.infer: OOM: " .. out.misfit) end
  out.notes = effects.lines { { system = c.system.name, fill = info.fill,
    padded_rows = info.padded_rows ~= "" and info.padded_rows or nil,
    without_effect = info.without_effect } }
  for _, line in ipairs(out.notes) do core.warn("moe.infer: " .. line) end
  for _, key in ipairs { "samples_ms", "metrics", "moe", "provenance", "timelines" } do
    out[key] = result[key]
  end
  for _, key in ipairs { "rows", "phase_2", "placed_again", "answer_ms", "layer_times" } do
    out[key] = result.inference[key]
  end
  out.again = again_of(result.inference)
  return out
end

schema.record("infer layer", "layer", "times of an MoE layer in a batch of inference, as Lina's "
  .. "authors divide them: from the begin on the first device to the end on the last one", {
    { "layer_ms", "number", "from the begin of the gate to the end of the combine" },
    { "a2a_ms", "number", "sum of both all-to-alls, on the first device" },
    { "expert_ms", "number", "from the end of the first all-to-all to the end of the experts" },
    { "phase_2_ms", "number", "from the end of the gate until the placement is final" },
    { "mapping_wait_ms", "number", "part of phase_2_ms that waits for the placement of phase 1" },
    { "swap_wait_ms", "number", "how much later experts end because they wait for their weights" },
  })

schema.record("infer result", "result", "the result of inference; a simulation has the fields "
  .. "that follow from the plan and the model's routing", {
    { "losses", "number[]?", "loss of each batch" },
    { "accuracy", "number[]?", "share of next tokens that are predicted correctly, of each batch" },
    { "digest", "string?", "digest of all predictions" },
    { "parameters_digest", "string?", "digest of the parameters" },
    { "samples_ms", "number[]", "time of each batch" },
    { "answer_ms", "number[]", "time of each batch without its loss" },
    { "layer_times", "moe.InferLayer[][]", "times of MoE layers, indexed by batch and layer" },
    { "metrics", "moe.Metrics[]", "times of each batch, with their parts" },
    { "moe", "moe.MoeStats[][]", "statistics of MoE layers, indexed by batch and layer" },
    { "provenance", "string", "simulated, emulated or measured" },
    { "rows", "integer[][][]?", "number of token rows, indexed by batch, MoE layer and rank" },
    { "phase_2", "boolean[]",
      "for each MoE layer: whether lina_inference may place experts again in it" },
    { "placed_again", "boolean[][]",
      "indexed by batch and MoE layer: whether lina_inference placed experts again" },
    { "again", "{ placed: integer, of: integer }", "in how many layers of all batches it placed "
      .. "experts again, of how many in which it may" },
    { "record", "string?", "path of the recorded trace" },
    { "corpus", "string?", "the source of the text" },
    { "peak_bytes", "integer?", "bytes that the executor allocated for a rank; of a simulation the "
      .. "planned ones" },
    { "oom", "boolean?", "true if no device of the simulated cluster can run the plan" },
    { "misfit", "string?", "if oom: the reason, with the parts of the peak" },
    { "notes", "string[]?", "of a simulation: lines on rows that are padded and on passes without "
      .. "effect, as under a table of runs; they are also printed" },
    { "executed", "table<string, string[]>[]?",
      "for each rank and lane the names of its ops, in order" },
    { "stopped", "boolean?", "whether the run was interrupted" },
  })

--- Runs inference on real ranks, or simulates it; returns a record of the type "infer result".
M.infer = schema.taking(M.INFER, "moe.infer", function(c, at, t)
  errors.stop_in "policies"
  c.system = c.system or system_lib.system "raf_rows" {}
  c = settings.call(c, M.INFER, "moe.infer", at)
  if c.model.bias_balance then
    errors.user("moe.infer.model: has bias_balance, whose biases exist only in training; give a "
      .. "model without it", at)
  end
  if (c.model.mtp_layers or 0) > 0 then
    errors.user(("moe.infer.model: has mtp_layers = %d, which exist only in training; give "
      .. "mtp_layers = 0"):format(c.model.mtp_layers), at)
  end
  local candidate = candidate_of(c.system, at)
  check_popularity(c, candidate, at)
  check_cluster(c, t, at)
  if c.executor == "simulate" then return simulated(c, candidate, at) end
  train.check_executor(c.executor, "moe.infer.executor", at)
  local spec = target.real_spec(c.executor, c.model, settings.ranks(c.ranks), c.link, nil,
    c.precision)
  target.say_dtype(c.executor, c.model, spec)
  spec.inference, spec.cost = true, { kind = "none" }
  spec.own_attention = train.own_attention(c.executor, c, "moe.infer", at)
  spec.edits = train.edits(c.executor, c, "moe.infer", at)
  local options = options_of(c, spec, at)
  train.claim_outputs(c, "moe.infer", at)
  local plan = target.plan_of(spec, candidate, at)
  errors.stop_in "check"
  local result = train.started("serving", plan, options, spec.ranks, at)
  local inference = result.inference
  local out = {}
  for _, key in ipairs { "losses", "samples_ms", "metrics", "moe", "provenance", "peak_bytes",
    "executed", "stopped", "record", "corpus", "timelines" } do
    out[key] = result[key]
  end
  for key, value in pairs(inference) do out[key] = value end
  out.again = again_of(inference)
  out.parameters_digest = result.digest
  return out
end)

return M
