-- Published figures of PipeMoE (Shi et al., INFOCOM 2023), indexed by id. Where a mean and a
-- largest value are given, the id of the largest ends in -max.
local figures = {}

local function add(id, figure, value, unit, text)
  figures[id] = { figure = figure, value = value, unit = unit, text = text }
end

add("pipemoe-006", "figure 4", 33.3, "%", "layers whose best degree among 1, 2, 4, 8 is not 2")
add("pipemoe-007", "figure 4", 78, "%",
  "by how much longer the worst of degrees 1, 2, 4, 8 takes than the best: the largest over "
    .. "layers, on the cluster where it is smallest")
add("pipemoe-007-max", "figure 4", 102, "%",
  "by how much longer the worst of degrees 1, 2, 4, 8 takes than the best: the largest over "
    .. "layers, on the cluster where it is largest")

-- Table VI: by how much a layer is faster than with Tutel at a fixed degree, for degrees 1, 2, 4
-- and 8. Columns: number of the first id, GPUs, means, largest values; in % of Tutel's time.
for _, row in ipairs {
  { 32, 16, { 16.8, 11.5, 3.4, 8.6 }, { 43.1, 26.1, 26.0, 35.0 } },
  { 36, 32, { 15.6, 3.5, 6.1, 12.9 }, { 33.8, 9.8, 33.9, 44.4 } },
  { 40, 64, { 12.5, 5.3, 8.6, 17.2 }, { 34.9, 12.0, 42.5, 45.8 } },
} do
  local first, gpus, mean, most = unpack(row)
  for i, degree in ipairs { 1, 2, 4, 8 } do
    local id = ("pipemoe-%03d"):format(first + i - 1)
    local text = ("reduction of a layer's time relative to degree %d, %d GPUs, "):format(degree,
      gpus)
    add(id, "table VI", mean[i], "%", text .. "mean")
    add(id .. "-max", "table VI", most[i], "%", text .. "at most")
  end
end

add("pipemoe-044", "section V-C", 86.1, "%",
  "layers whose chosen degree is at least as good as each of 1, 2, 4, 8")
add("pipemoe-045", "section V-C", 8.3, "%", "reduction of a layer's time relative to Tutel, mean")
add("pipemoe-095", "section V-E", 289, "ms",
  "time of the layer with batch 2, seq 2048, hidden 8192, ffn 4096 and 2 experts per GPU on 64 "
    .. "GPUs at degree 2")
add("pipemoe-096", "section V-E", 1, "yes/no",
  "the layer of pipemoe-095 is faster at degree 8 than at 2")

return figures
