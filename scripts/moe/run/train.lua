-- moe.train{...}: one run, outside an experiment. The functions that check the options of a real
-- run are here too; moe.experiment, moe.plan and moe.infer use them.
local cluster = require "moe.spec.cluster"
local core = require "moe.core"
local errors = require "moe.base.errors"
local grid_lib = require "moe.spec.grid"
local outputs = require "moe.run.outputs"
local schema = require "moe.base.schema"
local settings = require "moe.run.settings"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"

local M = {}

local declared = schema.declared "run"

local RATE = { lo = 1e3, hi = 1e13, required = true }
local LATENCY = { hi = 1e7 }

M.INTRA = schema.changed(cluster.PLAIN_LINK, { bytes_per_s = RATE, latency_us = LATENCY })

M.LINK = schema.changed(M.INTRA, {
  devices_per_node = { type = "integer", lo = 1, hi = 1024, default = 1,
    doc = "ranks per node; the ranks of a node share one such link to other nodes" },
  intra = { type = M.INTRA,
    doc = "link of each rank inside its node; default: as the link between nodes" },
  blocks = schema.optional(declared.link_blocks),
  share = schema.optional(cluster.SHARE),
  sharing_efficiency = schema.optional(cluster.SHARING_EFFICIENCY),
})

M.NCCL = declared.nccl.type

--- Changes of a plan's graph for execution on a device, which are made after all passes.
M.EDITS = {
  fuse_gelu = { type = "boolean",
    doc = "GELU is computed in one op with the matrix product before it, and GELU's gradient in "
      .. "one op with the product that makes its input" },
  round_once = { type = "boolean",
    doc = "bf16: operands that several matrix products would round, for example parameters, are "
      .. "rounded once per step" },
  pad_logits = { type = "boolean",
    doc = "bf16: rows of logits are padded to a multiple of 64 numbers, so that they begin at "
      .. "addresses from which tensor cores read vectors; parameters keep their shapes" },
}

--- Fields of a real run, in moe.train, plan:run and the executor entries of an experiment.
M.RUN = schema.merged(schema.picked(declared, { "steps", "precision", "eval_batches", "resume_from",
  "checkpoint_to", "checkpoint_every", "check_finite", "poison", "timeout_s", "nccl" }), {
  attention = { type = "string", enum = { "cudnn", "own" },
    doc = "cuda in bf16: kernels of fused attention. cudnn: cuDNN's, if it is found and supports "
      .. "the shape, else as own; own: this project's plain kernels, without tensor cores. "
      .. "Default: cudnn" },
  edits = { type = M.EDITS, doc = "cuda: changes of the plan's graph; default: all" },
  parameters_to = { type = "string",
    doc = "a .safetensors file in the output folder to which the final parameters are written, "
      .. "with the names of the model's checkpoints" },
  parameters_as = { type = "string", enum = { "F64", "F32", "BF16" },
    doc = "type of the numbers in parameters_to; default: F64 in precision f64, else F32" },
  init = { type = "string", enum = { "reference" }, default = "reference",
    doc = "initial parameters" },
  tokens = { type = "string", default = "text",
    doc = "where tokens come from: text, files of text; reference, made-up tokens; or the name of "
      .. "a .json file with rows of token ids, seq + 1 each, of which a step takes the next ones" },
  parameters = { type = "string",
    doc = "initial parameters: a model.safetensors, or the index of several files, of a model made "
      .. "by from_config or by its name" },
  text = { type = "string",
    doc = "a UTF-8 file, or a folder of such files; default: a corpus found on this machine" },
  record = { type = "string",
    doc = "name of a file in the output folder to which the routing is written, as a trace; in an "
      .. "experiment each run's file begins with its number and system (trace-001-raf-NAME), and "
      .. "is kept with its results" },
  comm_priority = { type = "string", enum = { "high", "normal" },
    doc = "cuda: priority of the transfers' streams, compared with the streams for compute; "
      .. "default: high" },
})

local executors = {}  -- entries of core.table "executors", indexed by name
M.EXECUTORS = {}
for _, row in ipairs(core.table "executors") do
  executors[row.name] = row
  if #row.precisions > 0 then M.EXECUTORS[#M.EXECUTORS + 1] = row.name end
end

--- Returns whether the executor has ranks that compute; false for simulate.
function M.is_real(executor) return #executors[executor].precisions > 0 end

--- Returns whether the executor's ranks run their ops on a GPU.
function M.on_gpu(executor) return executors[executor].gpu end

--- Claims the output files of a single run, so that no other run of the recipe writes them. t:
--- checked fields; `path` names their table in errors.
function M.claim_outputs(t, path, at)
  local who = ("%s in line %s"):format(path, at and at.line or "?")
  outputs.claim(t.checkpoint_to, who, path .. ".checkpoint_to", at,
    t.checkpoint_to == t.resume_from)
  outputs.claim(t.record, who, path .. ".record", at)
  outputs.claim(t.parameters_to, who, path .. ".parameters_to", at)
end

--- Raises a user error if this machine cannot run the executor; `path` names the requesting field.
function M.check_executor(executor, path, at)
  local missing = core.executor_missing(executor)
  if missing then errors.user(("%s: %s"):format(path, missing), at) end
end

-- Raises a user error if the executor does not compute in this precision.
local function check_precision(executor, precision, path, at)
  local others = {}
  for _, name in ipairs(M.EXECUTORS) do
    for _, own in ipairs(executors[name].precisions) do
      if own == precision then
        if name == executor then return end
        others[#others + 1] = name
      end
    end
  end
  errors.user(("%s: '%s' is only possible on %s; %s computes in %s"):format(path, precision,
    table.concat(others, " or "), executor, table.concat(executors[executor].precisions, " or ")),
    at)
end

--- Returns whether the recipe selects this project's kernels of attention. Raises a user error for
--- kernels that the executor does not have.
function M.own_attention(executor, t, path, at)
  local kernels = t.attention
  if kernels and not M.on_gpu(executor) then
    errors.user(("%s.attention: '%s' is only for the executor cuda, and here it is %s; omit the "
      .. "field")
      :format(path, kernels, executor), at)
  end
  if kernels == "cudnn" and t.precision ~= "bf16" then
    errors.user(("%s.attention: 'cudnn' is only for precision 'bf16', and here it is '%s'; omit "
      .. "the field")
      :format(path, t.precision), at)
  end
  return kernels == "own"
end

--- Returns the changes of a plan's graph for the executor, or nil if there are none. All changes
--- that are possible are made unless the recipe sets them to false. t: a table with fields edits
--- and precision.
function M.edits(executor, t, path, at)
  local given = t.edits or {}
  if not M.on_gpu(executor) then
    for _, name in ipairs(schema.keys_of(given)) do
      errors.user(("%s.edits.%s: is only for the executor cuda, and here it is %s; omit the field")
        :format(path, name, executor), at, path .. ".edits." .. name)
    end
    return nil
  end
  local bf16 = t.precision == "bf16"
  local made = { fuse_gelu = given.fuse_gelu ~= false }
  for _, name in ipairs { "pad_logits", "round_once" } do
    if given[name] and not bf16 then
      errors.user(("%s.edits.%s: is only for precision 'bf16', and %s.precision is '%s'; omit the "
        .. "field"):format(path, name, path, t.precision), at, path .. ".edits." .. name)
    end
    made[name] = bf16 and given[name] ~= false
  end
  return made
end

local function check_power_of_two(path, value, at)
  local n = value or 1
  while n > 1 and n % 2 == 0 do n = n / 2 end
  if n ~= 1 then
    errors.user(("%s: %d is not a power of two; give a power of two"):format(path, value), at, path)
  end
end

-- Raises a user error if options for NCCL are wrong or not used: between ranks that are threads of
-- one process no bytes go through NCCL.
local function check_nccl(nccl, path, at)
  for _, name in ipairs { "channels", "channels_per_net_peer" } do
    check_power_of_two(path .. "." .. name, nccl[name], at)
  end
  if core.processes then return end
  errors.user(path .. ": NCCL is only used between processes, but here all ranks are threads of "
    .. "one process and copy bytes within its GPU; start one process per rank with mpirun, or omit "
    .. "the field", at, path)
end

--- Raises a user error if a pace is given for an executor without threads, or for ranks without an
--- emulated link or in several processes, whose transfers cannot be slowed down.
function M.check_pace(executor, t, path, at)
  if not t.pace then return end
  local why = M.on_gpu(executor) and "the executor cpu, and here it is " .. executor
    or core.processes and ("ranks that are threads of one process, and %d processes were started")
      :format(core.processes)
    or not t.link and "an emulated link, since a transfer in memory cannot be slowed down; give "
      .. path .. ".link too"
  if why then
    errors.user(("%s.pace: %g needs %s, or omit the field"):format(path, t.pace, why), at,
      path .. ".pace")
  end
end

--- Raises a user error if comm_priority, nccl or link.blocks is given for an executor without a GPU
--- or has a value that is not allowed. t: fields of M.REAL_RUN.
function M.check_device(executor, t, path, at)
  local link = t.link or {}
  local given = { comm_priority = t.comm_priority, nccl = t.nccl, ["link.blocks"] = link.blocks }
  for _, name in ipairs(M.on_gpu(executor) and {} or schema.keys_of(given)) do
    errors.user(("%s.%s: is only for the executor cuda; %s uses no GPU; omit the field"):format(
      path, name, executor), at, path .. "." .. name)
  end
  check_power_of_two(path .. ".link.blocks", link.blocks, at)
  if t.nccl then check_nccl(t.nccl, path .. ".nccl", at) end
end

--- Returns the number of CUDA blocks that a run's transfers use on the GPU: those of the emulated
--- link, or NCCL's channels. Returns nil if NCCL sets the number itself, or if no blocks are
--- used.
function M.blocks(executor, t)
  if not M.on_gpu(executor) then return nil end
  if t.link then return t.link.blocks or declared.link_blocks.default end
  return t.nccl and t.nccl.channels
end

--- Fields of a real run together with its ranks and link.
M.REAL_RUN = schema.merged(M.RUN, {
  ranks = { type = "integer", lo = 1, hi = 1024, default = 1,
    doc = "number of ranks: all in this process (cpu: threads; cuda: on one GPU), or one per "
      .. "process if several processes are started" },
  pace = declared.pace,
  link = { type = M.LINK,
    doc = "the emulated link; without it nothing delays bytes between the ranks" },
})

--- Returns the path of a checkpoint or trace. Raises a user error if it is outside the output
--- folder, except, with --trust, for a file that is read. folder: the output folder if the file is
--- read, nil if it is written.
function M.checkpoint(name, folder, path, at)
  if name == "" then
    errors.user(("%s: '' is not allowed; give the name of a file"):format(path), at)
  end
  local outside = name and (name:match("^/") or ("/" .. name .. "/"):match("/%.%./"))
  if outside and not (folder and core.args.trust) then
    errors.user(("%s: '%s' is outside the output folder; give a name in that folder%s"):format(path,
      name, folder and ", or run with --trust" or ""), at)
  end
  return name and folder and not name:match("^/") and folder .. "/" .. name or name
end

--- Raises a user error if ranks are processes of a job and the number of ranks differs from the
--- number of processes, or an emulated link is given, which only ranks of one process can have.
--- ranks: nil if the plan determines it.
function M.check_processes(ranks, link, path, at)
  local n = core.processes
  if n and ranks and ranks ~= n then
    errors.user(("%s.ranks: is %d, but %s started, one per rank; give the same number, for example "
      .. "by --ranks %d, or start as many processes as ranks by mpirun -n %d"):format(path, ranks,
      n == 1 and "1 process was" or n .. " processes were", n, ranks), at)
  end
  if n and link then
    errors.user(("%s.link: an emulated link is only possible if all ranks are in one process, and "
      .. "%d processes were started; omit the field, or start without a launcher"):format(path, n),
      at)
  end
end

--- Returns whether the name of a file with parameters is one of open models (safetensors or their
--- index) and not a checkpoint of moebench.
function M.is_open(name) return name and (name:match "%.safetensors$" or name:match "%.json$") end

-- Raises a user error for a field of an output file that no name is given for.
local function check_files(t, path, at)
  if t.checkpoint_every > 0 and not t.checkpoint_to then
    errors.user(path .. ".checkpoint_every: writes nothing without checkpoint_to, the name of a "
      .. "file in the output folder; give it too, or omit the field", at,
      path .. ".checkpoint_every")
  end
  if t.parameters_as and not t.parameters_to then
    errors.user(path .. ".parameters_as: is only used with parameters_to; omit it", at)
  end
end

--- Checks the fields of a run that depend on each other, and returns the options for plan:run of
--- the core. t: the fields, each checked alone before; path: their prefix in errors ("moe.train").
function M.run_options(executor, t, spec, path, at)
  local model, tensors = spec.model, spec.tensors
  local function field(name) return path .. "." .. name end
  check_precision(executor, t.precision, field "precision", at)
  M.check_processes(settings.ranks(t.ranks), t.link, path, at)
  M.check_device(executor, t, path, at)
  M.check_pace(executor, t, path, at)
  local rows = t.tokens:match "%.json$"
  if not rows and t.tokens ~= "text" and t.tokens ~= "reference" then
    errors.user(("%s: '%s' is not allowed; give text, reference or the name of a .json file with "
      .. "rows of token ids"):format(field "tokens", t.tokens), at)
  end
  if t.tokens ~= "text" and t.text then
    errors.user(("%s: is not used with tokens = '%s'; give only one of the two"):format(
      field "text", t.tokens), at)
  end
  if t.tokens == "text" and model.vocab < 256 then
    errors.user(("model.vocab: %d is too small for tokens = 'text', where a token is a byte; give "
      .. "at least 256, or tokens = 'reference'"):format(model.vocab), at)
  end
  local options = {}
  for name in pairs(declared) do options[name] = t[name] end
  for _, name in ipairs(tensors and {} or { "parameters", "parameters_to" }) do
    if t[name] then
      errors.user(field(name) .. ": the model's architecture does not say where its parameters are "
        .. "in a checkpoint; make the model by moe.model.from_config", at)
    end
  end
  check_files(t, path, at)
  if t.parameters then options.parameters = { path = t.parameters, sources = tensors } end
  if t.parameters_to then
    options.written = { path = M.checkpoint(t.parameters_to, nil, field "parameters_to", at),
      sources = tensors, type = t.parameters_as or t.precision == "f64" and "F64" or "F32" }
  end
  return schema.merged(options, {
    executor = executor, init = t.init, emulate_link = t.link ~= nil,
    urgent_comm = t.comm_priority ~= "normal",
    link_blocks = t.link and (t.link.blocks or declared.link_blocks.default),
    data = t.tokens == "reference" and { kind = "reference" }
      or rows and { kind = "rows", path = t.tokens }
      or { kind = "text", path = t.text or core.default_corpus(), seed = core.args.seed or 1 },
    resume_from = M.checkpoint(t.resume_from, core.out_dir, field "resume_from", at),
    checkpoint_to = M.checkpoint(t.checkpoint_to, nil, field "checkpoint_to", at),
    record = M.checkpoint(t.record, nil, field "record", at),
  })
end

M.TRAIN = schema.merged(M.REAL_RUN, {
  model = { type = "model", required = true, doc = "moe.model.gpt2_moe {...}" },
  system = { type = "system", doc = "moe.system; default: raf" },
  optimizer = target.OPTIMIZER_FIELD,
  grid = grid_lib.FIELD,
  executor = { type = "string", enum = M.EXECUTORS, default = "cpu",
    doc = "where ranks run: on the CPU (cpu) or on a GPU (cuda)" },
})

--- Returns the result of a run, or raises errors.failed if something failed after one step or more.
function M.good(result, at)
  if not result.stop_reason then return result end
  errors.failed(result, at)
end

--- Runs the plan with these options and returns the result. what: a word for the status line of the
--- terminal, for example "training".
function M.started(what, plan, options, ranks, at)
  core.status(("%s on %d ranks of %s"):format(what, ranks, options.executor))
  return errors.call(at, plan.run, plan, options)
end

-- Says how far an interrupted run came: the recipe, which ends at its next line, cannot.
local function say_stopped(result, steps)
  local losses = {}
  for i, loss in ipairs(result.losses) do losses[i] = ("%.4f"):format(loss) end
  core.undisturbed(function()
    core.say(("moe.train was interrupted after %d of %d steps; losses: %s"):format(#losses, steps,
      #losses <= 12 and table.concat(losses, " ")
      or table.concat(losses, " ", 1, 6) .. " .. " .. table.concat(losses, " ", #losses - 5)))
  end)
end

-- Says it if the tokens of a run had fewer choices than the model's k in its first step.
local function say_choices(result, spec)
  local load, choices, m = ((result.moe[1] or {})[1] or {}).load, 0, spec.model
  for _, n in ipairs(load or {}) do choices = choices + n end
  local tokens = spec.ranks / m.pp / (m.tp * m.cp) * m.micro_batches * m.batch_per_device * m.seq
  if load and choices < tokens * m.k then
    core.warn(("moe.train: gate '%s' gives a token %.2f choices on average, fewer than k = %d")
      :format(m.gate, choices / tokens, m.k))
  end
end

--- moe.train{...}: one training run on real ranks. Ops are profiled only if the plan needs it.
M.train = schema.taking(M.TRAIN, "moe.train", function(c, at)
  errors.stop_in "policies"
  c.system = c.system or system_lib.system "raf" {}
  c = settings.call(c, M.TRAIN, "moe.train", at)
  local system = c.system
  M.check_executor(c.executor, "moe.train.executor", at)
  local spec = target.real_spec(c.executor, c.model, settings.ranks(c.ranks), c.link,
    c.optimizer, c.precision)
  target.say_dtype(c.executor, c.model, spec)
  spec.own_attention = M.own_attention(c.executor, c, "moe.train", at)
  spec.edits = M.edits(c.executor, c, "moe.train", at)
  spec.cost.check_finite, spec.cost.blocks = c.check_finite, M.blocks(c.executor, c)
  spec.cost.pace = c.pace
  local options = M.run_options(c.executor, c, spec, "moe.train", at)
  options.keep_grad_norms = true
  M.claim_outputs(c, "moe.train", at)
  local alternatives = system_lib.expand(system)
  local plan
  if target.reads_times(alternatives) then
    plan = target.plan(spec, system).plan
  else
    if not target.reads_rates(alternatives) then spec.cost = { kind = "none" } end
    plan = target.plan_of(spec, alternatives[1][1], at)
  end
  errors.stop_in "check"
  local result = M.good(M.started("training", plan, options, spec.ranks, at), at)
  say_choices(result, spec)
  if result.stopped then say_stopped(result, c.steps) end
  return result
end)

schema.record("moe stats", "stats", "statistics of an MoE layer in a step", {},
  schema.declared "moe_stats")
schema.record("machine state", "state", "state of the machine at a step", {},
  schema.declared "machine_state")
schema.record("rank stats", "stats", "statistics of a rank in a step", {}, schema.declared "rank")
schema.record("train result", "result", "the result of a run on real ranks", {
  { "samples_ms", "number[]", "time of each step" },
  { "executed", "table<string, string[]>[]",
    "for each rank and lane the names of a step's ops, in order" },
  { "placements", "moe.LayerPlacement[][]?",
    "indexed by step and layer, if the model has a placement policy" },
  { "planner_error", "table<string, moe.PlannerError>?", "errors of Pro-Prophet's performance "
    .. "model against the executed spans, indexed by op (a2a, experts, trans, agg)" },
  { "pipeline", "moe.PipelineRank[]?", "what each pipeline rank did in the last step, if there are "
    .. "several" },
  { "record", "string?", "path of the recorded trace" },
  { "corpus", "string?", "the source of the text" },
  { "unigram_entropy", "number?", "unigram entropy of the text, in nats" },
  { "explain", "(step?: integer): moe.Explanation",
    "explains a step that ran, by default the first; only for results of plan:run" },
  { "spans", "(t?: moe.SpansFields): moe.Span[]",
    "the timeline of a step that ran, ordered by begin; only for results of plan:run" },
}, schema.changed(schema.declared "result", { metrics = { as = "moe.Metrics[]" },
  moe = { as = "moe.MoeStats[][]" }, ranks = { as = "moe.RankStats[][]" },
  machine_state = { as = "moe.MachineState[]" },
  eval_loss = { maybe = true }, stop_reason = { maybe = true }, digest = { maybe = true },
  peak_bytes = { maybe = true } }))

return M
