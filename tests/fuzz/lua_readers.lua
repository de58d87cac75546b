-- moebench run tests/fuzz/lua_readers.lua --trust --set inputs=100000: readers of foreign forms in
-- Lua get damaged files. Each must answer or raise a user error; another fault fails the run.
local moe = require "moe"
local configs = require "moe.models.configs"
local core = require "moe.core"
local errors = require "moe.base.errors"
local kineto = require "moe.formats.kineto"
local loads = require "moe.formats.loads"
local megatron_arguments = require "moe.formats.megatron_arguments"
local nccl_tests = require "moe.formats.nccl_tests"
local step_log = require "moe.formats.step_log"

local set = core.args.set
local inputs, seed = tonumber(set.inputs or 1000), tonumber(set.seed or 1)
local function random(n)
  seed = (seed * 1103515245 + 12345) % 2147483648
  return math.floor(seed / 65536) % n + 1
end

local TOKENS = { "\n", " ", "-1", "0", "1e999", "nan", "\"", "'", "$", "${", "}", "(", ")", "[",
  "]", "{", "null", "true", "--", ":", "#", ",", "\0", "\255", "9999999999999999999", "size", "|" }

local function damaged(text)
  for _ = 1, random(4) do
    local at, n = random(#text + 1), random(8)
    local how = random(4)
    if how == 1 then
      text = text:sub(1, at - 1) .. text:sub(at + n)
    elseif how == 2 then
      text = text:sub(1, at - 1) .. TOKENS[random(#TOKENS)] .. text:sub(at)
    elseif how == 3 then
      local from = random(#text + 1)
      text = text:sub(1, at - 1) .. text:sub(from, from + n * 4) .. text:sub(at + n)
    else
      text = text:sub(1, at)
    end
  end
  return text
end

local real, text = core.read_file, nil
core.read_file = function() return text end
core.trace_write = function() return "path" end

local LINE = [[
ARGS=(--num-layers 4 --hidden-size 64)
torchrun pretrain_gpt.py ${ARGS[@]} --num-attention-heads 4 --num-experts 8 --seq-length 32 \
  --micro-batch-size 1 --swiglu --bf16 --normalization RMSNorm --position-embedding-type rope \
  --disable-bias-linear --moe-token-dispatcher-type alltoall --vocab-size 100 --save $DIR \
  --recompute-granularity selective --recompute-modules moe_act layernorm
]]
local CONFIGS = {}
for name, row in pairs(configs.TYPES) do
  local fields = core.library_json "models/class_defaults.json"[row.class].fields
  fields.model_type = name
  CONFIGS[#CONFIGS + 1] = core.json_encode(fields)
end
local ROWS = "# nThread 1 nGpus 8\n# size count type redop root time\n"
  .. "1000000 250000 float sum -1 100 10 17.5 0 100 1 1 0\n"
  .. "2000000 500000 float sum -1 190 10 17.5 0 100 1 1 0\n# Avg bus bandwidth : 1\n"
local REPORT = core.json_encode { args = { "alltoall_perf" }, config = { devices = { { rank = 0,
  group = 0 } } }, out_of_bounds = { count = 0 }, results = { { size = 8, count = 1, type = "float",
  redop = "none", out_of_place = { time = 1, alg_bw = 1, bus_bw = 1, nwrong = 0 } } } }
local PROFILE = core.json_encode { traceEvents = { { ph = "X", cat = "kernel", name = "gemm",
  tid = 7, ts = 0, dur = 5, args = { device = 0 } }, { ph = "X", cat = "kernel", name = "allreduce",
  tid = 9, ts = 8, dur = 5, args = { dtype = "Half", ["In msg nelems"] = 4, ["Group size"] = 8,
  correlation = 3 } }, { ph = "X", cat = "cuda_runtime", ts = 7, args = { correlation = 3 } } } }
local COUNTS = { "[[[3,1,2,0],[2,2,2,0]],[[6,0,0,0],[1,2,1,2]]]",
  '{"a":"b","loads":[[4,8],[2,10]]}',
  "step,layer,expert,tokens\n1,3,0,5\n1,3,1,7\n1,4,1,12\n",
  "\147NUMPY\1\0\65\0{'descr': '<i2', 'fortran_order': False, 'shape': (1, 2, 3), }   "
    .. "\1\0\2\0\3\0\2\0\2\0\2\0" }
local READERS = {
  { function() return CONFIGS[random(#CONFIGS)] end, function()
    local config = errors.call(nil, core.json_decode, text, "config.json")
    if type(config) ~= "table" then return end
    local stand_in, row = {}, configs.TYPES[config.model_type]
    for _, part in pairs(row and row.stands or {}) do
      stand_in[part[1]] = { flops = 1, bytes = 1 }
    end
    return configs.fields(config, "config.json", nil, stand_in)
  end },
  { function() return COUNTS[random(#COUNTS)] end, function() return loads.read "x" end },
  { function() return COUNTS[random(#COUNTS)] end, function()
    return loads.import { files = { "x" }, to = "t", ranks = random(3), k = random(2),
      tokens = random(9) - 1 }
  end },
  { function() return '{"phy2log":[[0,1,2,3,0,2],[3,2,1,0,1,1]],"logcnt":[]}' end,
    function() return moe.eplb.policy(moe.eplb.read("x", { devices = 3 })) end },
  { function() return LINE end, function() return megatron_arguments.parse(text, "x") end },
  { function() return "MODEL_ARGS:\n  --num-layers: 4\n  --swiglu: true # x\n" end,
    function() return megatron_arguments.parse(text, "x") end },
  { function() return LINE end, function()
    return moe.from_megatron { arguments = "x", cluster = moe.cluster.h100 { nodes = 1 } }
  end, every = 200 },
  { function() return " iteration 1/ 9 | elapsed time per iteration (ms): 9.5 | lm loss: 2.4 |\n"
    .. "max allocated: 2048.0\n" end, function() return step_log.read "x" end },
  { function() return "[rank0]: step: 1 loss: 1.5 memory: 3.5GiB(1%) tps: 1,010 mfu: 1%\n" end,
    function() return step_log.read "x" end },
  { function() return ROWS end, function() return nccl_tests.read "x" end },
  { function() return REPORT end, function() return nccl_tests.read "x" end },
  { function() return PROFILE end, function() return kineto.read("x", {}) end },
}

local answers, faults = 0, 0
for i = 1, inputs do
  for _, reader in ipairs(READERS) do
    if i % (reader.every or 1) == 0 then
      text = damaged(reader[1]())
      local ok, why = pcall(reader[2])
      if ok then
        answers = answers + 1
      elseif type(why) ~= "table" or why.kind ~= "user" then
        faults = faults + 1
        if faults <= 10 then print(tostring(why), ("%q"):format(text:sub(1, 400))) end
      end
    end
  end
end
core.read_file = real
print(("%d inputs per reader, %d answers, %d faults"):format(inputs, answers, faults))
os.exit(faults == 0 and 0 or 1)
