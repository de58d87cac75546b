-- What runs print and are started with: Megatron-LM's arguments, iteration lines, nccl-tests.
local core = require "moe.core"
local megatron_arguments = require "moe.formats.megatron_arguments"
local moe = require "moe"
local nccl_tests = require "moe.formats.nccl_tests"
local step_log = require "moe.formats.step_log"
local test = require "test"
local world = require "world"

-- Calls read("file") while the file has this text; returns its result or the message of its error.
local function of_text(text, read, how)
  local real = core.read_file
  core.read_file = function(path) return path == "file" and text or real(path) end
  local ok, value = pcall(read, "file", how)
  core.read_file = real
  return ok and value or value.message or tostring(value)
end

local function has(text, part) assert(tostring(text):find(part, 1, true), tostring(text)) end

local function arguments(text)
  local out = {}
  for _, a in ipairs(megatron_arguments.parse(text, "x")) do
    out[#out + 1] = a.name .. "=" .. table.concat(a.values, ",")
  end
  return table.concat(out, " ")
end

test("arguments are those of a command line, a shell script and YAML alike", function()
  local right = "num-layers=2 swiglu= data-path=a b,c hidden-size=64"
  assert(arguments "--num-layers 2 --swiglu --data-path 'a b' c --hidden-size=64" == right)
  assert(arguments [[
#!/bin/bash
LAYERS=${LAYERS:-3}; LAYERS=2   # a comment
MODEL=(
  --num-layers $LAYERS
  --swiglu # another
)
DATA="--data-path"
ALL=("${MODEL[@]}" $DATA "a b" c)
ALL+=(--hidden-size 64)
torchrun --nproc_per_node 8 pretrain_gpt.py \
  ${ALL[@]} ]] == right)
  assert(arguments [[
ENV_VARS:
  A: 1
MODEL_ARGS:
  # a comment
  --num-layers: 2 # layers
  --swiglu:
    true
  --hidden-size: '64'
TEST_TYPE: regular
]] == "num-layers=2 swiglu=true hidden-size=64")
  assert(arguments "num_layers: 2\nswiglu: true\n" == "num-layers=2 swiglu=true")
end)

local LINE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --num-experts 8 --seq-length "
  .. "32 --micro-batch-size 1 --global-batch-size 32 --swiglu --bf16 --normalization RMSNorm "
  .. "--position-embedding-type rope --disable-bias-linear --moe-token-dispatcher-type alltoall "
  .. "--use-distributed-optimizer --overlap-grad-reduce --vocab-size 100 --save x"

local function run(more, log)
  world.on_engine()  -- whatever ran before
  return moe.from_megatron { arguments = LINE .. " " .. (more or ""),
    cluster = moe.cluster.h100 { nodes = 2 }, log = log }
end

test("a run of Megatron-LM becomes a model, a grid and a system", function()
  local m = run "--expert-model-parallel-size 8 --moe-layer-freq ([0]*1+[1]*3) --kv-channels 8"
  assert(m.ignored[1] == "save" and #m.ignored == 1)
  assert(m.grid.ep == 8 and m.grid.micro_batches == 2)
  assert(m.predicted.ms > 0 and m.predicted.memory_gib > 0 and not m.measured)
  -- 128 rows of the vocabulary, twice tied; 4 heads of 8.
  local attention, norms = 4 * 4 * (4 * 8 * 64), 4 * 2 * 64 + 64
  local ffn = 3 * 64 * math.floor(4 * 64 * 2 / 3 / 64) * 64
  assert(m.model:parameters() == 128 * 64 + attention + norms + ffn + 3 * (8 * ffn + 8 * 64))
  local p = run "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
  assert(p.grid.pp == 2 and p.grid.micro_batches == 4 and p.optimizer.clip_norm == 1)
  local mtp = run("--mtp-num-layers 2 --pipeline-model-parallel-size 2 "
    .. "--pipeline-model-parallel-layout Ettt|tmmL")
  assert(mtp.model.mtp_layers == 2 and mtp.model.mtp_factor == 0.1)
  local stages = run("--pipeline-model-parallel-size 2 --kv-channels 8 --multi-latent-attention "
    .. "--moe-router-pre-softmax --moe-router-score-function sigmoid "
    .. "--pipeline-model-parallel-layout Et|t|t|tL")
  assert(stages.system.pipeline.options.chunks == 2)
  local t = run "--tensor-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel"
  assert(t.grid.etp == 2 and t.grid.cp_comm == "p2p")
  local less = run "--recompute-granularity selective --recompute-modules moe_act layernorm"
  assert(less.predicted.memory_gib < run().predicted.memory_gib)
  t = run "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --sequence-parallel"
  assert(t.grid.tp == 2 and t.grid.micro_batches == 4)
  -- GPT's form: LayerNorm, GELU, learned positions; no dispatcher named is the all-gather.
  local gpt = moe.from_megatron { cluster = moe.cluster.h100 { nodes = 2 }, arguments = LINE:gsub(
    "%-%-swiglu ", ""):gsub("%-%-normalization.-rope ", ""):gsub("%-%-moe%-token.-alltoall", "")
    .. " --expert-model-parallel-size 8" }
  assert(gpt.system.dispatcher.name == "allgather" and gpt.predicted.ms > 0)
  assert(gpt.model:parameters() == (128 + 32) * 64 + 4 * 4 * 64 * 64 + 2 * norms
    + 4 * (8 * (2 * 64 * 256 + 64)))
end)

test("an argument that is not built, not known or damaged is named", function()
  for more, part in pairs {
    ["--context-parallel-size 2 --cp-comm-type a2a"] = "cp-comm-type: 'a2a' is not built",
    ["--tensor-model-parallel-size 2"] = "2 without sequence-",
    ["--num-layer 3"] = "did you mean 'num-layers'?",
    ["--num-layers x"] = "num-layers: 'x' is not allowed; give a number",
    ["--num-experts -8"] = "num-experts: '-8' is not allowed; give a whole number from 1",
    ["--moe-router-topk 20"] = "moe-router-topk: 20 is more than num-experts = 8",
    ["--group-query-attention --num-query-groups 3"] = "num-query-groups: 3 does not divide",
    ["--rotary-percent 1.5"] = "rotary-percent: 1.5 is not allowed",
    ["--num-layers $N"] = "the script does not set this variable",
    ["--moe-layer-freq [0]*9"] = "moe-layer-freq: has 9 entries for num-layers = 4",
    ["--moe-layer-freq junk"] = "moe-layer-freq: 'junk' is not a number or a list",
    ["--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend uccl"] = "'uccl' is not built",
    ["--position-embedding-type none"] = "'none' is not built",
    ["--moe-token-dispatcher-type mine"] = "'mine' is not built; give one of: alltoall,",
    ["--mtp-num-layers 0.5"] = "mtp-num-layers: '0.5' is not allowed; give a whole number from 0",
    ["--recompute-granularity full --recompute-num-layers 2"] = "recompute-num-layers: only full",
    ["--global-batch-size 24"] = "global-batch-size: 24 is no multiple",
    ["--recompute-granularity selective --recompute-modules mlp"] = "'mlp' is not built; only",
    ["--recompute-granularity selective --recompute-modules moe_act --moe-layer-freq 2"] =
      "moe_act beside dense layers is not built",
    ["--moe-pad-expert-input-to-capacity"] = "'true': only false is built",
    ["--qk-layernorm flase"] = "qk-layernorm: 'flase' is not allowed; give true or false",
    ["--use-tp-pp-dp-mapping"] = "another order of ranks is not built",
    ["--data-parallel-sharding-strategy optim"] = "FSDP is not built",
    ["--fp8-format hybrid"] = "fp8-format: products in fp8 here is not built",
    ["--optimizer muon"] = "optimizer: 'muon' is not built",
    ["--data-path 'x"] = "a quote (') is not closed",
  } do
    local ok, why = pcall(run, more)
    assert(not ok, more)
    has(why.message or why, part)
  end
end)

local ITERATIONS = [[
 iteration 1/ 9 | elapsed time per iteration (ms): 900.0 | lm loss: 2.4E+00 |
 iteration 2/ 9 | elapsed time per iteration (ms): 300.0 | lm loss: 2.4E+00 |
[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0 | reserved: 3
 iteration 3/ 9 | elapsed time per iteration (ms): 100.0 | lm loss: 2.4E+00 |
 iteration 4/ 9 | elapsed time per iteration (ms): 104.0 | lm loss: 2.4E+00 |
]]

test("logs of steps are read, and damaged ones refused at their line", function()
  local log = of_text(ITERATIONS, step_log.read)
  assert(log.ms == 102 and log.memory_gib == 2 and #log.steps == 4 and log.steps[1].loss == 2.4)
  has(of_text((ITERATIONS:gsub("104.0", "x")), step_log.read), "file:5: elapsed time per iteration")
  has(of_text((ITERATIONS:gsub("elapsed.*", "")), step_log.read), "file:1: 'elapsed time")
  has(of_text((ITERATIONS:gsub("104.0 .*", "10")), step_log.read), "was it cut off?")
  has(of_text(ITERATIONS .. ITERATIONS, step_log.read), "file:6: step 1 comes after step 4")
  has(of_text("nothing\n", step_log.read), "it has no line of a step")
  has(of_text(ITERATIONS .. "STEP-1: loss = 1, step_time = 0.5 sec\n", step_log.read),
    "a line of tutel in a log of megatron")
  local titan = "[rank0]:2025 - root - INFO - \27[31mstep: %d\27[0m  loss: 1.5  memory: "
    .. "3.5GiB(1%%)  tps: 1,0%d  mfu: 1%%\n"
  local rates = of_text(titan:format(1, 10) .. titan:format(2, 20), step_log.read)
  assert(rates.tokens_per_s == 1015 and rates.memory_gib == 3.5 and rates.steps[2].rank == 0)
end)

-- A row of nccl-tests whose bus bandwidth is `factor` times the algorithm's.
local function row(size, redop, factor)
  return ("%d %d float %s -1 100 %.2f %.2f 0 100 1 1 0\n"):format(size, size / 4, redop,
    size / 1e5, size / 1e5 * factor)
end

test("tables of nccl-tests are told apart by name or by numbers", function()
  local head, stop = "# nThread 1 nGpus 8\n# size count type redop root time\n",
    "# Avg bus bandwidth : 1\n"
  local function read(body, how) return of_text(body, nccl_tests.read, how or {}) end
  local sums = head .. row(1e6, "sum", 1.75) .. row(1e7, "sum", 1.75) .. stop
  assert(read(sums).kind == "all_reduce" and read(sums).ranks == 8)
  has(read(head .. row(1e6, "sum", 0.875) .. row(1e7, "sum", 0.875) .. stop), "busbw = 87.5")
  has(read("# Collective test starting: all_gather_perf_mpi\n" .. head
    .. row(1e6, "none", 0.875) .. row(1e7, "none", 0.875) .. stop), "all_gather_perf_mpi")
  has(read(sums .. sums), "it has 2 tables")
  assert(#read(sums .. sums, { table = 2 }).rows == 2)
  has(read((sums:gsub("# nThread[^\n]*\n", ""))), "{ ranks = 16 }")
  local prefixed = sums:gsub("[^\n]+", "0: node1: %0")
  assert(read(prefixed).kind == "all_reduce")
  local report = { args = { "/x/alltoall_perf" }, config = { devices = { { rank = 0, group = 0 },
    { rank = 1, group = 0 } } }, out_of_bounds = { count = 0 }, results = {} }
  for i = 1, 2 do
    report.results[i] = { size = 10 ^ i, count = 1, type = "float", redop = "none",
      out_of_place = { time = i, alg_bw = 1, bus_bw = 0.5, nwrong = core.null } }
  end
  local json = read(core.json_encode(report))
  assert(json.kind == "all_to_all" and json.ranks == 2 and json.rows[2][1] == 100)
  report.results[2].out_of_place = nil
  has(read(core.json_encode(report)), "its field 'out_of_place' is missing")
end)

test("a profile is added up by lanes and kinds, and refused where nothing is known", function()
  local kineto = require "moe.formats.kineto"
  local function profile(events, rules)
    return of_text(core.json_encode { traceEvents = events }, kineto.read, rules or {})
  end
  local function kernel(name, lane, first, us)
    return { ph = "X", cat = "kernel", name = name, tid = lane, ts = first, dur = us }
  end
  local events = { kernel("sm90_gemm", 7, 0, 1000), kernel("ncclDevKernel_AllReduce", 9, 500, 1000),
    kernel("gemm", 7, 2000, 1000), kernel("mine", 7, 3000, 500), { ph = "X", cat = "cpu_op" } }
  local p = profile(events)
  assert(p.ms == 3.5 and p.compute_ms == 2.5 and p.comm_ms == 1 and p.hidden_ms == 0.5)
  assert(p.exposed_ms == 0.5 and p.idle_ms == 0.5 and p.kinds.gemm.count == 2)
  assert(p.others.mine.ms == 0.5 and p.lanes["9"].communication)
  assert(profile(events, { { "mine", "attention" } }).kinds.attention.ms == 0.5)
  -- Idle from 1500 to 2000: the host launched the next kernel at 1800, 200 us before it began.
  events[3].args = { correlation = 5, device = 0 }
  events[6] = { ph = "X", cat = "cuda_runtime", ts = 1800, dur = 5, args = { correlation = 5 } }
  events[7] = { ph = "X", cat = "user_annotation", name = "ProfilerStep#3", ts = 0, dur = 4000 }
  events[2].args = { dtype = "BFloat16", ["In msg nelems"] = 512, ["Group size"] = 8 }
  p = profile(events)
  assert(p.idle.host == 0.3 and p.idle.launched == 0.2 and p.idle.unknown == 0)
  assert(p.no_idle_ms == 3 and p.all_hidden_ms == 3 and p.steps[1].step == 3)
  assert(core.json_encode(p.collectives) == '{"all_reduce":{"ranks":8,"rows":[[1024,1000]]}}')
  local plan = { spans = function() return {
    { kind = "linear_dw", begin_ms = 1, end_ms = 4.5 }, { kind = "all_reduce", begin_ms = 0,
    end_ms = 1 } } end }
  local laid = of_text(core.json_encode { traceEvents = events }, moe.profile, { plan = plan })
  assert(core.json_encode(laid.beside[1]) == '{"kind":"gemm","ms":2,"plan_ms":3.5}')
  assert(laid.beside[#laid.beside].kind == "all_reduce")
  events[1].args = { device = 1 }
  has(profile(events), "event 3 ran on device 0, others on 1; give the profile of one GPU")
  has(profile { kernel("gemm", 7, 0, -1) }, "event 1 has no name, ts and dur from 0")
  has(profile { events[1], events[4] }, "no collective is recognised")
  has(profile { events[2], events[4] }, "no GEMM is recognised; give rules = { { 'part of a name'")
  has(profile {}, "it has no kernels of a GPU")
  has(profile { { ph = "X", cat = "kernel" } }, "event 1 has no name, ts and dur")
  has(of_text("\31\139\8", kineto.read, {}), "it is compressed")
end)
