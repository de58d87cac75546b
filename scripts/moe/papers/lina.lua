-- Published figures of Lina's schedulers for training and inference (Li et al., USENIX ATC 2023),
-- indexed by id: the value, what was measured, and where in the paper it is printed. Where a number
-- is given for several numbers of experts (equal to the numbers of GPUs), the id ends in the number
-- of experts.
local figures = {}

local function add(id, figure, value, unit, text)
  figures["lina-" .. id] = { figure = figure, value = value, unit = unit, text = text }
end

-- Adds one figure for each entry of values: number of experts -> value.
local function by_experts(id, figure, values, unit, text)
  for experts, value in pairs(values) do
    add(("%s-%d"):format(id, experts), figure, value, unit,
      ("%s, %d experts"):format(text, experts))
  end
end

add("002", "figure 10", 1.57, "x", "speed-up of the step, mean over numbers of experts")
add("005", "section 2.2", 34.1, "%", "all-to-all's share of the time, mean")

-- Table 1, training. Columns: number of the id of the milliseconds, layers, experts, all-to-all ms,
-- all-to-all's share of the step in % (its id is the next number).
for _, row in ipairs {
  { 6, 12, 4, 259, 36.7 }, { 10, 24, 4, 589, 35.4 }, { 14, 36, 4, 979, 38.2 },
  { 18, 12, 16, 333, 39.5 }, { 22, 24, 16, 715, 37.6 }, { 26, 36, 16, 1145, 36.8 },
} do
  local id, layers, experts, ms, percent = unpack(row)
  local text = ("all-to-all of a training step, %d layers, %d experts"):format(layers, experts)
  add(("%03d"):format(id), "table 1", ms, "ms", text)
  add(("%03d"):format(id + 1), "table 1", percent, "%", text)
end

add("030", "figure 2", 74.9, "%", "all-to-all's share of one MoE layer's forward")
by_experts("032", "figure 4", { [2] = 33.4, [16] = 44.5 }, "%", "all-to-all's share of the step")
add("033", "figure 3", 1.83, "x", "slowdown of all-to-alls while an all-reduce runs, median")
add("033-max", "figure 3", 4.14, "x", "slowdown of all-to-alls while an all-reduce runs, at most")

-- The backward of one MoE layer. The paper does not describe the layer whose milliseconds it gives,
-- so only the order of the schedules can be compared; these have the ids ending in -order.
add("036", "figure 7a", 29.0, "ms", "end of both all-to-alls of the layer: baseline")
add("037", "figure 7b", 30.9, "ms",
  "end of both all-to-alls of the layer: priority without micro-ops")
add("038", "figure 7c", 24.6, "ms", "end of both all-to-alls of the layer: all-reduces deferred")
add("037-order", "figure 7", 1, "yes/no", "priority without micro-ops is slower than the baseline")
add("038-order", "figure 7", 1, "yes/no", "deferring all-reduces makes all-to-alls faster")
add("040", "figure 8a", 21.7, "%",
  "by how much earlier the all-reduce ends with micro-ops than when it is deferred")
add("040-order", "figure 8a", 1, "yes/no", "micro-ops do not prolong the all-to-alls")

add("060", "section 7.2", 2, "experts", "experts per device that packing chooses")
add("060-xl", "section 7.2", 4, "experts",
  "experts per device that packing chooses, Transformer-XL with 16 experts")

by_experts("062", "figure 10", { [2] = 1.71, [4] = 1.37, [8] = 1.73, [16] = 1.47 }, "x",
  "speed-up of the step")
by_experts("064-fwd", "figure 11", { [2] = 1.84, [8] = 1.89 }, "x", "speed-up of an MoE layer's "
  .. "forward")
by_experts("064-bwd", "figure 12", { [2] = 2.41, [8] = 2.32 }, "x", "speed-up of an MoE layer's "
  .. "backward")
by_experts("075", "figure 13", { [4] = 2.21, [8] = 2.39, [16] = 2.31 }, "x",
  "speed-up of the backward's all-to-alls")

-- Tables 3 and 4, 16 experts. Columns: id, model, pipelining efficiency without and with packing,
-- GPU utilization without and with packing, peak memory without and with packing; all in %.
for _, row in ipairs {
  { "xl", "Transformer-XL", 33, 86, 66.2, 83.4, 72.1, 100 },
  { "gpt2", "GPT-2", 36, 85, 62.3, 78.2, 83.8, 100 },
  { "bert2gpt2", "BERT2GPT2", 34, 79, 63.5, 82.5, 74.3, 94.2 },
} do
  local id, name, without, with, low, high, memory, packed = unpack(row)
  local function named(text) return ("%s, %s"):format(text, name) end
  add("076-" .. id, "table 3", without, "%", named "pipelining efficiency without packing")
  add("077-" .. id, "table 3", with, "%", named "pipelining efficiency with packing")
  add("067-" .. id, "table 4", high - low, "points", named "increase of GPU utilization by packing")
  add("068-" .. id, "table 4", packed - memory, "points",
    named "increase of peak memory by packing")
end
add("079", "table 3", 2.43, "x", "factor by which packing raises pipelining efficiency, mean")

add("080", "figure 14", 1.24, "x", "speed-up of the step by priority alone, mean")
by_experts("081", "figure 14", { [2] = 1.36, [4] = 1.36, [8] = 1.41, [16] = 1.42 }, "x",
  "speed-up of the step by priority and micro-ops")
add("080-fixed", "figure 14", 1, "yes/no", "the schedule 'fixed' is the slowest of the four")
add("082", "figure 15", 30, "MB", "size of a micro-op with the fastest step")
add("083", "figure 15", 1, "yes/no", "steps with micro-ops above 50 MB are slower than with 30 MB")
add("083-small", "figure 15", 1, "yes/no",
  "steps with micro-ops below 10 MB are slower than with 30 MB")
add("085", "section 7.2.2", 1.7, "%", "by how much longer all-reduces take in micro-ops of 30 MB")

-- Inference. Speed-ups are over the baseline, one expert per device; "of ideal" is the time
-- divided by that with a balanced gate.
local XL, BERT = "Transformer-XL", "BERT-Large"
by_experts("087", "figure 16", { [4] = 1.54, [16] = 1.45 }, "x", XL .. ", median batch, speed-up")
by_experts("088", "figure 16", { [4] = 1.36, [16] = 1.46 }, "x", BERT .. ", median batch, speed-up")
add("089-xl", "figure 16", 1.82, "x", XL .. ", 16 experts, 95th percentile batch, speed-up")
add("089-bert", "figure 16", 1.68, "x", BERT .. ", 16 experts, 95th percentile batch, speed-up")
by_experts("090", "figure 17", { [8] = 1.87, [16] = 1.77 }, "x",
  XL .. ", 95th percentile MoE layer, speed-up")
by_experts("091", "figure 17", { [8] = 1.58, [16] = 1.81 }, "x",
  BERT .. ", 95th percentile MoE layer, speed-up")
add("092", "figure 18", 1.96, "x", "95th percentile of a layer's all-to-alls, speed-up, mean")
add("092-max", "figure 18", 2.5, "x", "95th percentile of a layer's all-to-alls, speed-up, at most")
for _, row in ipairs { { "xl", XL, 24.0, 26.7 }, { "bert", BERT, 18.6, 33.1 } } do
  add("093-" .. row[1], "figure 16", row[3], "%",
    row[2] .. ", 16 experts, increase of the median batch time without estimation")
  add("094-" .. row[1], "figure 16", row[4], "%",
    row[2] .. ", 16 experts, increase of the 95th percentile batch time without fine-tuning")
end
add("096", "section 7.3.1", 23, "%", "layers in which phase 2 places experts again")
for _, row in ipairs {
  { 98, XL, 1, 1.41, 1.32, 76.5, 31.6 }, { 99, XL, 3, 1.16, 1.04, 25.7, 60.4 },
  { 100, XL, 6, 1.19, 1.11, 22.5, 71.4 }, { 101, BERT, 1, 1.34, 1.35, 71.3, 28.3 },
  { 102, BERT, 3, 1.07, 1.04, 32.2, 63.5 }, { 103, BERT, 6, 1.09, 1.11, 27.1, 66.0 },
} do
  local id, model, path, median, tail, tuned, accuracy = unpack(row)
  local function path_figure(what, value, unit, text)
    add(("%03d-%s"):format(id, what), "table 5", value, unit,
      ("%s, path length %d: %s"):format(model, path, text))
  end
  path_figure("median", median, "x", "median batch time over that with a balanced gate")
  path_figure("tail", tail, "x", "95th percentile batch time over that with a balanced gate")
  path_figure("tuned", tuned, "%", "layers in which phase 2 places experts again")
  path_figure("accuracy", accuracy, "%", "estimates that name the most popular experts correctly")
end
add("099-order", "table 5", 1, "yes/no", "paths of 3 layers give better estimates than paths of 1")
add("100-order", "table 5", 1, "yes/no",
  "batches take longer with paths of 6 layers than with paths of 3")

return figures
