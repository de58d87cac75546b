-- Published figures of Lancet (Jiang et al., MLSys 2024), indexed by id: the value, what was
-- measured, and where in the paper it is printed. Where a mean and a largest value are given, the
-- id of the largest ends in -max; where one sentence gives a number for each cluster, ids end in
-- the cluster's GPU.
local figures = {}

local function add(id, figure, value, unit, text)
  figures[id] = { figure = figure, value = value, unit = unit, text = text }
end

add("lancet-026", "section 1", 40, "%", "all-to-all's share of the step, at most")
add("lancet-027", "figure 2", 3.36, "x",
  "all-to-all's time divided by the experts' time, V100, at most")
add("lancet-031", "slides", 1.3, "x", "speed-up of the step, at most")
add("lancet-032", "slides", 77, "%", "reduction of exposed communication, at most")
add("lancet-033", "slides", 20, "min", "time to make a plan for a model, at most")

-- Speed-up over the fastest of DeepSpeed, Tutel and RAF: mean and largest over models and nodes.
for _, row in ipairs {
  { "034", "figure 11", "Switch", "A100", 1.17, 1.21 },
  { "035", "figure 11", "Switch", "V100", 1.22, 1.30 },
  { "036", "figure 12", "Batch Prioritized", "A100", 1.17, 1.24 },
  { "037", "figure 12", "Batch Prioritized", "V100", 1.21, 1.24 },
} do
  local number, figure, gate, gpu, mean, most = unpack(row)
  local text = ("speed-up over the best baseline, %s gate, %s, "):format(gate, gpu)
  add("lancet-" .. number, figure, mean, "x", text .. "mean")
  add(("lancet-%s-max"):format(number), figure, most, "x", text .. "at most")
end

-- Reduction of exposed communication on 4 nodes.
for _, row in ipairs {
  { "038", "RAF", "A100", 69 }, { "038", "RAF", "V100", 83 },
  { "039", "Tutel", "A100", 66 }, { "039", "Tutel", "V100", 77 },
} do
  local number, baseline, gpu, percent = unpack(row)
  add(("lancet-%s-%s"):format(number, gpu), "figure 13", percent, "%",
    ("reduction of exposed communication relative to %s, %s, at most"):format(baseline, gpu))
end

-- Statements of the paper: the value 1 means that the statement holds.
for _, row in ipairs {
  { "023", "section 5.1", "the best number of parts of a range is at most 4" },
  { "028", "figure 6",
    "the best range to cut is neither all-to-alls and experts alone nor the longest range" },
  { "042", "figure 16", "both passes together gain more than either pass alone" },
  { "042-L", "figure 16", "GPT2-L gains more from weight gradients than from the partition" },
  { "042-S", "figure 16", "the two passes' gains differ less on GPT2-S than on GPT2-L" },
} do
  add("lancet-" .. row[1], row[2], 1, "yes/no", row[3])
end

add("lancet-040", "figure 14", 3.83, "%", "error of the predicted time of a step, mean")
add("lancet-041", "figure 15", 20, "min", "time to make a plan for most of the models, at most")

return figures
