-- moe.from_megatron{...}: the arguments of a run of Megatron-LM as a model, a grid, a system and an
-- optimizer. Each argument that bears on the step is taken, or refused by name; those without
-- effect on it are listed; one that is not known stops. Names and defaults are those of
-- megatron/training/arguments.py of Megatron-LM (core 0.15, 2026).
local core = require "moe.core"
local errors = require "moe.base.errors"
local grid_lib = require "moe.spec.grid"
local megatron_arguments = require "moe.formats.megatron_arguments"
local model_lib = require "moe.spec.model"
local pipeline_times = require "moe.spec.pipeline_times"
local plan = require "moe.run.plan"
local policy = require "moe.spec.policy"
local schema = require "moe.base.schema"
local step_log = require "moe.formats.step_log"
local system = require "moe.spec.system"

local M = {}

M.FIELDS = {
  arguments = { type = "any", as = "string|table", required = true, doc = "a command line, the "
    .. "name of a file with one (a shell script, or YAML of Megatron's tests), or a table "
    .. "{ num_layers = 12, swiglu = true }" },
  cluster = { type = "cluster", required = true, doc = "moe.cluster, with all ranks of the run" },
  log = { type = "string", doc = "a file with the run's output, of which the iteration lines and "
    .. "the memory are read" },
  vocab = { type = "integer", lo = 1, hi = 1e8, doc = "size of the vocabulary before padding, "
    .. "which the arguments state only for some tokenizers" },
}

-- only: argument -> { the one value that is built, the default if that is another }; parts: what is
-- not built, by the argument that turns it on; ignored: patterns of the names of arguments that do
-- not change the time or the memory of a step as it is planned here; counts: arguments that are
-- whole numbers, with the least of each; words: arguments that are words, with those that are
-- built; vocabularies: of tokenizers whose size no file decides; off: values with which arguments
-- in parts turn nothing on.
local KNOWN = core.library_json "formats/megatron_arguments.json"

local function is_ignored(name)
  for _, pattern in ipairs(KNOWN.ignored) do
    if name:find(pattern) then return true end
  end
end

local Arguments = {}
Arguments.__index = Arguments

function Arguments:fail(name, text, ...)
  local place = self.lines[name] and ("%s:%d"):format(self.name, self.lines[name]) or self.name
  errors.user(("%s: %s: " .. text):format(place, name, ...), self.at)
end

-- Returns the value of an argument, or `default`; without one the argument must be there.
function Arguments:number(name, default)
  local values = self.values[name]
  self.read[name] = true
  if not values then
    if default == nil then self:fail(name, "is missing") end
    return default or nil
  end
  local value = #values == 1 and tonumber(values[1])
  if not value or value ~= value or math.abs(value) == math.huge then
    self:fail(name, "'%s' is not allowed; give a number%s", table.concat(values, " "),
      (values[1] or ""):find "%$" and " (the script does not set this variable)" or "")
  end
  local least = KNOWN.counts[name]
  if least and (value < least or value ~= math.floor(value)) then
    self:fail(name, "'%s' is not allowed; give a whole number from %d", values[1], least)
  end
  return value
end

function Arguments:word(name, default)
  local values = self.values[name]
  self.read[name] = true
  if not values then return default end
  if #values ~= 1 then self:fail(name, "has %d values; give one", #values) end
  local built = KNOWN.words[name] or values
  for _, word in ipairs(built) do
    if word == values[1] then return word end
  end
  self:fail(name, "'%s' is not built; give one of: %s", values[1], table.concat(built, ", "))
end

function Arguments:flag(name)
  local values = self.values[name]
  self.read[name] = true
  local value = values and (values[1] or "true"):lower()
  if value and value ~= "true" and value ~= "false" then
    self:fail(name, "'%s' is not allowed; give true or false, or the name alone", values[1])
  end
  return value == "true"
end

-- Returns the arguments by name.
local function read(given, at)
  local list, name
  if type(given) == "table" then
    list, name = {}, "from_megatron.arguments"
    for key, value in pairs(given) do
      local values = {}
      for i, v in ipairs(type(value) == "table" and value or { value }) do
        values[i] = type(v) == "number" and ("%.17g"):format(v) or tostring(v)
      end
      list[#list + 1] = { name = tostring(key):gsub("^%-%-", ""):gsub("_", "-"), values = values }
    end
  elseif given:find "^%s*%-%-" or given:find "%s%-%-" then
    list, name = megatron_arguments.parse(given, "from_megatron.arguments"), "arguments"
  else
    list = megatron_arguments.parse(errors.call(at, core.read_file, given), given)
    name = given
  end
  local a = setmetatable({ values = {}, lines = {}, read = {}, name = name, at = at }, Arguments)
  for _, one in ipairs(list) do a.values[one.name], a.lines[one.name] = one.values, one.line end
  return a
end

-- Checks arguments of which one value, or none, is built.
local function check_parts(a)
  for _, name in ipairs(schema.keys_of(KNOWN.only)) do
    local built, default = unpack(KNOWN.only[name])
    local given = a.values[name]
    local value = given and (given[1] or "true") or default or built
    a.read[name] = true
    if value ~= built then
      a:fail(name, "%s'%s': only %s is built", given and "" or "is by default ", value, built)
    end
  end
  for _, name in ipairs(schema.keys_of(KNOWN.parts)) do
    local given = a.values[name]
    a.read[name] = true
    if given and not KNOWN.off[given[1] or ""] then
      a:fail(name, "%s is not built", KNOWN.parts[name])
    end
  end
end

-- Adds those that were not read and are without effect to `ignored`. Others stop.
local function check_rest(a, ignored)
  for _, name in ipairs(schema.keys_of(a.values)) do
    if not a.read[name] and is_ignored(name) then
      ignored[#ignored + 1] = name
    elseif not a.read[name] then
      local near = core.nearest(name, schema.keys_of(a.read))
      a:fail(name, "is not known, or is not read with these others%s", near ~= ""
        and (", did you mean '%s'?"):format(near) or "")
    end
  end
end

-- Returns a letter per block of moe-layer-freq: a number, or a list such as ([0]*3+[1]*11).
local function ffn_letters(a, layers)
  local text = a:word("moe-layer-freq", "1"):gsub("%s", "")
  local every, out = tonumber(text), {}
  if every then
    for i = 1, layers do out[i] = (i - 1) % every == 0 and "m" or "d" end
  else
    for part in text:gsub("^%((.*)%)$", "%1"):gmatch "[^+]+" do
      local list, times = part:match "^%(?%[([%d,]+)%]%)?%*?(%d*)$"
      if not list then a:fail("moe-layer-freq", "'%s' is not a number or a list", text) end
      for _ = 1, times == "" and 1 or tonumber(times) do
        for x in list:gmatch "%d+" do out[#out + 1] = x == "0" and "d" or "m" end
        if #out > 4096 then a:fail("moe-layer-freq", "has more than 4096 entries") end
      end
    end
  end
  if #out ~= layers then
    a:fail("moe-layer-freq", "has %d entries for num-layers = %d", #out, layers)
  end
  return table.concat(out)
end

local function vocab_of(a, given, tp)
  local vocab = a:number("padded-vocab-size", false)
  if vocab then return vocab end
  -- pretrain_gpt.py takes GPT2BPETokenizer unless a type is given.
  vocab = given or a:number("vocab-size", false) or KNOWN.vocabularies[
    a:word("tokenizer-type", a.values["vocab-file"] and "GPT2BPETokenizer") or ""]
  if not vocab then
    a:fail("vocab-size", "is missing, and the tokenizer is a file; give from_megatron.vocab")
  end
  local multiple = a:number("make-vocab-size-divisible-by", 128) * tp
  return math.ceil(vocab / multiple) * multiple
end

local function router_of(a, k)
  local scores, groups = a:word("moe-router-score-function", "softmax"),
    a:number("moe-router-num-groups", 1)
  local top = groups > 1 and a:number("moe-router-group-topk", groups) or 1
  local before = a:flag "moe-router-pre-softmax"  -- of softmax alone
  local each = groups > 1 and k / top or 1  -- choices of a group that make its score
  if each ~= 1 and each ~= 2 then
    a:fail("moe-router-group-topk", "%d with moe-router-topk = %d: only k and k / 2 are built", top,
      k)
  end
  return { scores = scores, scale = a:number("moe-router-topk-scaling-factor", 1), groups = groups,
    weight = k > 1 and (scores == "sigmoid" or not before) and "renorm"
      or "prob", top_groups = top, group_score = each == 2 and "top2" or "max" }
end

-- Adds the fields of attention. head_dim: the default width of a head.
local function set_attention(a, fields, head_dim)
  if a:flag "multi-latent-attention" then
    fields.kv_rank, fields.q_rank = a:number("kv-lora-rank", 32), a:number("q-lora-rank", 0)
    fields.nope, fields.rotary = a:number("qk-head-dim", 128), a:number("qk-pos-emb-head-dim", 64)
    fields.value_dim, fields.rope_form = a:number("v-head-dim", 128), "interleaved"
    for _, name in ipairs { "kv-channels", "qk-layernorm" } do a.read[name] = true end
    local scaling = a:number("rotary-scaling-factor", 40)
    if a:word("rope-type", "yarn") == "yarn" and scaling ~= 1 then
      fields.rope_scaling, fields.rope_factor = "yarn", scaling
      fields.original_seq = a:number("original-max-position-embeddings", 4096)
      fields.mscale, fields.mscale_all_dim = a:number("mscale", 1), a:number("mscale-all-dim", 1)
    end
  else
    local head = a:number("kv-channels", head_dim)
    fields.head_dim = head
    fields.kv_heads = a:flag "group-query-attention" and a:number("num-query-groups", 1)
      or fields.heads
    if fields.heads % fields.kv_heads ~= 0 then
      a:fail("num-query-groups", "%d does not divide num-attention-heads = %d", fields.kv_heads,
        fields.heads)
    end
    fields.qk_norm = a:flag "qk-layernorm" and "head" or "none"
    local turning = a:number("rotary-percent", 1)
    if turning <= 0 or turning > 1 then
      a:fail("rotary-percent", "%g is not allowed; give a number above 0, 1 at most", turning)
    end
    if turning < 1 then fields.rotary = math.floor(head * turning / 2) * 2 end
  end
end

-- Adds the fields of norms and positions.
local function set_norms(a, fields)
  local norm, eps = a:word("normalization", "LayerNorm"), a:number("norm-epsilon", 1e-5)
  if norm == "LayerNorm" and eps ~= 1e-5 then
    a:fail("norm-epsilon", "%g: LayerNorm is built with 1e-5 alone", eps)
  end
  local positions = a:flag "use-rotary-position-embeddings" and "rope"
    or a:word("position-embedding-type", "learned_absolute")
  if positions ~= "rope" and a:flag "no-position-embedding" then
    a:fail("no-position-embedding", "without rope is not built")
  end
  fields.norm, fields.eps, fields.positions = norm:lower(), eps, positions ~= "rope"
end

local function model_of(a, t)
  local layers, hidden = a:number "num-layers", a:number "hidden-size"
  local heads, k = a:number "num-attention-heads", a:number("moe-router-topk", 2)
  local experts = a:number "num-experts"
  if k > experts then
    a:fail("moe-router-topk", "%d is more than num-experts = %d", k, experts)
  end
  local gated = a:flag "swiglu"
  local ffn = a:number("ffn-hidden-size",
    gated and math.floor(4 * hidden * 2 / 3 / 64) * 64 or 4 * hidden)
  local biased = not a:flag "disable-bias-linear"
  local balance = a:word("moe-router-load-balancing-type", "aux_loss")
  local weight = balance ~= "none" and a:number("moe-aux-loss-coeff", 0) or 0
  local shared = a:number("moe-shared-expert-intermediate-size", 0)
  local fields = { name = "megatron", layers = layers, hidden = hidden, heads = heads, k = k,
    vocab = vocab_of(a, t.vocab, a:number("tensor-model-parallel-size", 1)),
    seq = a:number "seq-length", batch_per_device = a:number "micro-batch-size", ffn = ffn,
    experts = experts, expert_ffn = a:number("moe-ffn-hidden-size", ffn),
    shared_ffn = shared, shared_gate = shared > 0 and a:flag "moe-shared-expert-gate",
    ffns = ffn_letters(a, layers),
    tied = not a:flag "untie-embeddings-and-output-weights", router = router_of(a, k),
    theta = a:number("rotary-base", 10000), form = gated and "silu_mul" or "gelu",
    qkv_bias = biased or a:flag "add-qkv-bias", out_bias = biased, ffn_bias = biased,
    rope_form = a:flag "rotary-interleaved" and "interleaved" or "halves",
    gate = "top_k", dtypes = a:flag "bf16" and "megatron_bf16" or nil,
    balance_loss = weight > 0 and { coefficient = weight } or nil }
  if not a:flag "bf16" then
    if a:flag "fp16" then a:fail("fp16", "is not built with Megatron's states; only bf16 is") end
    fields.dtypes = "pure_f32"
  end
  if a:flag "moe-router-enable-expert-bias" then
    fields.bias_balance = { rate = a:number("moe-router-bias-update-rate", 1e-3) }
  end
  fields.mtp_layers = a:number("mtp-num-layers", 0)
  if fields.mtp_layers > 0 then fields.mtp_factor = a:number("mtp-loss-scaling-factor", 0.1) end
  local factor = a:number("moe-expert-capacity-factor", false)
  if factor then fields.capacity_factor = factor else fields.capacity = "none" end
  set_norms(a, fields)
  set_attention(a, fields, hidden / heads)
  return model_lib.constructors.decoder(fields)
end

local function grid_of(a, cluster)
  local tp, pp = a:number("tensor-model-parallel-size", 1),
    a:number("pipeline-model-parallel-size", 1)
  local ep = a:number("expert-model-parallel-size", 1)
  local etp = a:number("expert-tensor-parallel-size", tp)
  if tp > 1 and not a:flag "sequence-parallel" then
    a:fail("tensor-model-parallel-size", "%d without sequence-parallel is not built", tp)
  end
  local cp, comm = a:number("context-parallel-size", 1), a:word("cp-comm-type", "p2p")
  local ranks = cluster.devices / (tp * pp * cp)
  local micro = a:number "micro-batch-size"
  local whole = a:number("global-batch-size", micro * ranks)
  if whole % (micro * ranks) ~= 0 then
    a:fail("global-batch-size", "%d is no multiple of micro-batch-size = %d times the %g ranks "
      .. "with batches of their own on this cluster", whole, micro, ranks)
  end
  return grid_lib.grid { pp = pp, ep = ep, micro_batches = whole / (micro * ranks),
    tp = tp > 1 and tp or nil, cp = cp > 1 and cp or nil, cp_comm = cp > 1 and comm or nil,
    etp = etp > 1 and etp or nil,
    layout = a:word "pipeline-model-parallel-layout" }, pp
end

-- The flex dispatcher's backends: the dispatcher here, the argument with its SMs and their default.
local BACKENDS = { deepep = { "deepep_v1", "moe-deepep-num-sms", 20 },
  hybridep = { "hybridep", "moe-hybridep-num-sms", 16 } }

-- Returns the dispatcher of rows, or nil for all-to-alls.
local function dispatcher_of(a)
  local kind = a:word("moe-token-dispatcher-type", "allgather")
  if kind == "flex" then
    local known = BACKENDS[a:word("moe-flex-dispatcher-backend", "deepep")]
    a:flag "moe-enable-deepep"  -- the older name of this backend
    return policy.dispatchers[known[1]] { sms = a:number(known[2], known[3]), wire = "bf16" }
  elseif kind == "allgather" and a:number("expert-model-parallel-size", 1) > 1 then
    return policy.dispatchers.allgather {}
  end
end

-- What is made again of each module of selective recomputation.
local MODULES = { core_attn = "attention", layernorm = "norms", moe = "experts",
  moe_act = "activations" }

local function modules_of(a, layers)
  local parts, name = {}, "recompute-modules"
  for i, module in ipairs(a.values[name] or { "core_attn" }) do
    parts[i] = MODULES[module] or a:fail(name, "'%s' is not built; only %s are", module,
      table.concat(schema.keys_of(MODULES), ", "))
    if module == "moe_act" and ffn_letters(a, layers):find "d" then
      a:fail(name, "moe_act beside dense layers is not built")
    end
  end
  a.read[name] = true
  table.sort(parts, function(x, y) return x == "norms" and y ~= "norms" end)
  return table.concat(parts, "+")
end

local function system_of(a, pp, layers)
  local passes = { policy.passes.irregular_a2a {}, policy.passes.used_rows {},
    policy.passes.weights_at_experts {} }
  passes[#passes + 1] = dispatcher_of(a)
  if a:flag "use-distributed-optimizer" then table.insert(passes, policy.passes.zero {}) end
  table.insert(passes, policy.passes.blocking_a2a {})
  local granularity = a:word "recompute-granularity"
  if granularity == "full" then
    local every = a:number("recompute-num-layers", 1)
    if a:word("recompute-method", "uniform") ~= "uniform" or every ~= 1 then
      a:fail("recompute-num-layers", "only full recomputation of each layer (uniform, 1) is built")
    end
    table.insert(passes, policy.passes.recompute {})
  elseif granularity == "selective" then
    table.insert(passes, policy.passes.recompute { what = modules_of(a, layers) })
  end
  local stages = pp > 1 and a:number("num-virtual-stages-per-pipeline-rank", false)
  local per = pp > 1 and a:number("num-layers-per-virtual-pipeline-stage", false)
  if per then stages = layers / pp / per end
  local layout = a:word "pipeline-model-parallel-layout"
  if layout then  -- what is wrong in it the plan says
    local ok, made = pcall(pipeline_times.pipeline_layout, { layout = layout, ranks = pp })
    stages = ok and #made.stages / pp or stages
  end
  if pp > 1 then
    table.insert(passes, stages and stages > 1 and policy.pipelines.interleaved { chunks = stages }
      or policy.pipelines["1f1b"] {})
  end
  local known = system.known.megatron.all_reduce
  passes.all_reduce = a:flag "overlap-grad-reduce" and known
    or schema.merged(known, { lane = "comm", place = "after" })
  return system.system "megatron_arguments"(passes)
end

local function optimizer_of(a)
  local name, clip = a:word("optimizer", "adam"), a:number("clip-grad", 1)
  if name == "sgd" then
    return { name = "sgd", lr = a:number("lr", 1e-3), momentum = a:number("sgd-momentum", 0.9),
      clip_norm = clip }
  end
  return { name = "adamw", lr = a:number("lr", 1e-3), weight_decay = a:number("weight-decay", 0.01),
    beta1 = a:number("adam-beta1", 0.9), beta2 = a:number("adam-beta2", 0.999),
    eps = a:number("adam-eps", 1e-8), clip_norm = clip }
end

--- moe.from_megatron{...}: returns { model, grid, system, optimizer, ignored, predicted,
--- measured }.
function M.from_megatron(t)
  local at = errors.here()
  t = schema.check(M.FIELDS, t, "moe.from_megatron", at)
  if type(t.arguments) ~= "string" and type(t.arguments) ~= "table" then
    schema.refuse("moe.from_megatron.arguments", t.arguments, "a text, a file's name or a table",
      at)
  end
  local a = read(t.arguments, at)
  check_parts(a)
  local m = { ignored = {} }
  m.optimizer = optimizer_of(a)
  local pp
  m.grid, pp = grid_of(a, t.cluster)
  m.model = model_of(a, t)
  m.system = system_of(a, pp, m.model.layers)
  check_rest(a, m.ignored)
  local sim = plan.plan { model = m.model, cluster = t.cluster, grid = m.grid, system = m.system,
    optimizer = m.optimizer, detail = m.grid.pp > 1 and "turns" or nil }:simulate()
  m.predicted = { ms = sim.iteration_ms, memory_gib = sim.peak_bytes and sim.peak_bytes / 2 ^ 30 }
  if t.log then
    local log = step_log.read(t.log, "megatron")
    m.measured = { ms = log.ms, spread = log.spread, memory_gib = log.memory_gib }
  end
  return m
end

schema.record("megatron run", "m", "a run of Megatron-LM, from moe.from_megatron", {
  { "model", "moe.Model", "the model" },
  { "grid", "moe.Grid", "ranks and micro-batches" },
  { "system", "moe.System", "dispatcher, schedule, recomputation and sharding of states" },
  { "optimizer", "moe.Optimizer", "the optimizer" },
  { "ignored", "string[]", "arguments without effect on the step as it is planned here" },
  { "predicted", "{ ms: number, memory_gib: number? }", "the simulated step and the planned "
    .. "memory of the fullest device" },
  { "measured", "{ ms: number, spread: number, memory_gib?: number }?", "of the log: the median "
    .. "iteration after two, the spread of the middle half over it, the most memory allocated" },
})

return M
