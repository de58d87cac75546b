-- Published figures of Pro-Prophet (arXiv 2411.10003), indexed by id: the value, what was measured,
-- and where in the paper it is printed. A row of speed-ups in a table has two ids, ending in -fm
-- for FasterMoE and -pp for Pro-Prophet, both relative to DeepSpeed-MoE. A range has two ids,
-- ending in -min and -max.
local figures = {}

local function add(id, figure, value, unit, text)
  figures["proprophet-" .. id] = { figure = figure, value = value, unit = unit, text = text }
end

local function add_range(id, figure, least, most, text)
  add(id .. "-min", figure, least, "x", text .. ", at least")
  add(id .. "-max", figure, most, "x", text .. ", at most")
end

add("001", "abstract", 2.66, "x", "speed-up of the step over DeepSpeed-MoE, at most")
add("002", "abstract", 11.01, "x", "balance of device loads (RB) relative to FasterMoE's, at most")
add("003", "section I", 1.5, "x", "speed-up of the step over FasterMoE, at most")
add("004", "figure 3", 50, "%", "inputs of the 3 heaviest of 16 experts, at least")
add("004-light", "figure 3", 5, "%", "inputs of the 3 lightest of 16 experts, at most")

-- Table I: shares of a step in a system that copies experts to all devices and waits for the
-- copies. For MoE-GPT-M the three parts add up to 28.2, where the printed sum is 29.2.
for id, row in pairs {
  ["005"] = { "S", 29.9, 6.8, 11.6, 11.5 }, ["006"] = { "M", 29.2, 3.2, 12.5, 12.5 },
  ["007"] = { "L", 34.5, 2.6, 14.2, 17.7 }, ["008"] = { "DS", 33.8, 6.1, 13.8, 13.9 },
  ["009"] = { "DM", 37.1, 6.1, 16.1, 14.9 },
} do
  local model, all, search, place, reduce = unpack(row)
  local text = ("share of a step of MoE-GPT-%s: "):format(model)
  add(id, "table I", all, "%", text .. "all parts of balancing, which block the step")
  add(id .. "-search", "table I", search, "%", text .. "search for experts to copy")
  add(id .. "-place", "table I", place, "%", text .. "copies of parameters")
  add(id .. "-reduce", "table I", reduce, "%", text .. "sums of gradients")
end

-- Adds rows of tables IV and V: the speed-ups of FasterMoE and of Pro-Prophet relative to
-- DeepSpeed-MoE, with k choices per token. first: the number of the first row's id.
local function add_table(figure, gpus, k, first, rows)
  for i, row in ipairs(rows) do
    local model, faster, prophet = unpack(row)
    local id = ("%03d"):format(first + i - 1)
    local text = (" over DeepSpeed-MoE, MoE-GPT-%s, k = %d, %s"):format(model, k, gpus)
    add(id .. "-fm", figure, faster, "x", "speed-up of FasterMoE" .. text)
    add(id .. "-pp", figure, prophet, "x", "speed-up of Pro-Prophet" .. text)
  end
end

local NVLINK, OLDER = "16 RTX 3090, NVLink in pairs", "8 RTX 2080Ti"
add_table("table IV", NVLINK, 1, 26, { { "S", 1.63, 1.98 }, { "M", 1.99, 2.22 },
  { "L", 1.62, 1.8 }, { "DS", 1.34, 1.7 }, { "DM", 1.68, 2.26 } })
add_table("table IV", NVLINK, 2, 31, { { "S", 2.31, 2.62 }, { "M", 1.82, 2.1 },
  { "L", 1.94, 2.23 }, { "DS", 1.77, 1.94 }, { "DM", 1.84, 2.07 } })
add_table("table V", OLDER, 1, 36, { { "S", 1.2, 1.3 }, { "M", 1.02, 1.18 },
  { "DS", 1.12, 1.3 }, { "DM", 0.96, 1.26 } })
add_table("table V", OLDER, 2, 40, { { "S", 1.56, 1.91 }, { "M", 1.29, 1.94 },
  { "DS", 1.44, 1.64 }, { "DM", 1.25, 1.58 } })

-- Figure 10: 16 and 32 RTX 3090 that are connected by PCIe inside a node.
add_range("023", "figure 10", 1.47, 2.66, "speed-up over DeepSpeed-MoE, k = 1")
add("024", "figure 10", 1.19, "x", "speed-up over FasterMoE, k = 1, mean")
add("024-max", "figure 10", 1.31, "x", "speed-up over FasterMoE, k = 1, at most")
add_range("025", "figure 10", 1.36, 2.37, "speed-up over DeepSpeed-MoE, k = 2")
add_range("025-fm", "figure 10", 1.05, 1.48, "speed-up over FasterMoE, k = 2")

add_range("046", "figure 11", 1.6, 2.25, "speed-up of one layer of MoE-GPT-M over DeepSpeed-MoE")
add_range("046-fm", "figure 11", 1.09, 1.49, "speed-up of one layer of MoE-GPT-M over FasterMoE")
add("047", "figure 12", 1.34, "x",
  "speed-up over FasterMoE, MoE-GPT-M, k = 1, mean of 100 iterations")
add("051", "figure 13", 1, "yes/no", "mean error of the performance model's times is below 5%")

-- Figure 14: the gain of each part of Pro-Prophet over the system with the parts before it.
for k, row in ipairs { { 1.26, 1.14, 1.03 }, { 1.12, 1.01, 1.02 } } do
  local of = (", MoE-GPT-M, k = %d"):format(k)
  add("052-" .. k, "figure 14", row[1], "x", "planner alone over the baseline" .. of)
  add("053-" .. k, "figure 14", row[2], "x", "scheduler over the planner alone" .. of)
  add("054-" .. k, "figure 14", row[3], "x", "both combined over the scheduler" .. of)
end

-- Figure 15: the planner compared with top2 and top3, which copy the 2 or 3 experts with most
-- tokens to all devices.
add_range("048", "figure 15", 1.77, 1.82, "speed-up of the planner over top2, k = 1")
add_range("049", "figure 15", 2.04, 2.1, "speed-up of the planner over top3, k = 1")
add_range("050", "figure 15", 1.38, 1.4, "speed-up of the planner over top2 and top3, k = 2")

add("055", "figure 16", 11.01, "x",
  "balance of device loads (RB) by the planner divided by FasterMoE's, in the layer where it is "
    .. "largest")

return figures
