-- Lesson 10. How do I replay the routing of another training? Three formats are read: lines
-- "layer,expert" (csv), a file of JSON lines per rank by Megatron-LM's RouterTracer (megatron), and
-- TensorRT-LLM's slot_dispatch_matrix of one layer (tensorrt). traces/ has 16 tokens in each. An
-- import is a file in the output folder, which `routing` takes in place of a gate.
-- Run it: build/release/moebench run recipes/lessons/10_trace.lua  (under a second)
-- Try next: record = "own.trace" in moe.train writes one of a training of yours; moe.trace.export
-- writes the three formats.
local moe = require "moe"

local files = {
  csv = { "traces/routing.csv" },
  megatron = { "traces/rank0.jsonl", "traces/rank1.jsonl" },
  tensorrt = { "traces/dispatch.json" },
}
local imported = {}
local rows = { { "format", "steps", "layers", "ranks", "tokens", "experts", "choices by token" } }
for _, format in ipairs { "csv", "megatron", "tensorrt" } do
  imported[format] = moe.trace.import { format = format, files = files[format],
    to = format .. ".trace" }
  local t = moe.trace.read(imported[format])
  rows[#rows + 1] = { format, t.steps, t.layers, t.ranks, t.tokens, t.experts,
    t.choices and "yes" or "no, counts" }
end
print(moe.table(rows))

print "\nTokens of the first layer by source rank and expert"
for _, format in ipairs { "csv", "megatron", "tensorrt" } do
  local loads = moe.loads { routing = moe.trace(imported[format]) {}, ranks = 2, tokens = 8,
    experts = 4 }
  print(("%-8s  rank 1: %s   rank 2: %s"):format(format, table.concat(loads[1], " "),
    table.concat(loads[2], " ")))
end

print "\nReplayed on two ranks of this machine"
for _, capacity_factor in ipairs { 1, 2 } do
  local r = moe.train { ranks = 2, steps = 2, model = moe.model.gpt2_moe { vocab = 256, layers = 4,
    hidden = 64, heads = 4, seq = 8, batch_per_device = 1, experts = 4,
    capacity_factor = capacity_factor, routing = moe.trace(imported.megatron) { cycle = true } } }
  print(("capacity factor %d: %d and %d of 16 tokens are dropped in the two layers"):format(
    capacity_factor, r.moe[1][1].dropped, r.moe[1][2].dropped))
end
