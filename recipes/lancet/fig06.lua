-- Figure 6 of Lancet: how far should a pipeline reach beyond the MoE layer? Shown is the forward
-- time on 16 A100s over the number of ops before each MoE layer that are in the range that is cut:
-- from none (only all-to-alls and experts) to all ops back to the previous MoE layer. (a) fewer
-- layers, larger batch; (b) more layers, smaller batch. The number of ops after the MoE layer is
-- not varied, since after the last MoE layer only the head follows.
local moe = require "moe"

local BEFORE = { 0, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 16, 18, 19 }

local function name_of(before) return "before_" .. before end

local systems = { moe.system "raf_rows" {}, moe.system "lancet_partition" {} }
for _, before in ipairs(BEFORE) do
  systems[#systems + 1] = moe.system(name_of(before)) { moe.pass.irregular_a2a {},
    moe.pass.used_rows {}, moe.pass.partition { before = before, after = 0 } }
end

-- Returns, for the range around the second MoE layer, its number of parts and the time of its ops
-- when they are not cut.
local function range_of(run)
  for _, line in ipairs(run.log) do
    local parts, was = line:match "to 'b3%.moe%.combine' in (%d+) parts: .* ms, was ([%d.]+) ms"
    if parts then return parts, tonumber(was) end
  end
end

local function show(R)
  for size, some in R:by "size" do
    local model = some.runs[1].parameters
    print(("\nGPT2-%s-MoE, %d layers, %d rows per GPU"):format(size, model.layers,
      model.batch_per_device))
    local orig = some:where { system = "raf_rows" }.runs[1]
    local _, alone = range_of(some:where { system = name_of(0) }.runs[1])
    local rows = { { "range", "ops before", "their ms", "parts", "forward ms", "of Orig" } }
    for run in some:each() do
      local before, parts, was = run.system:match "^before_(%d+)$", range_of(run)
      local label = before and "" or run == orig and "Orig" or "as the pass chooses"
      rows[#rows + 1] = { label, before or "-", before and was - alone or "-",
        before and parts or "-", run.forward_ms, 100 * run.forward_ms / orig.forward_ms }
    end
    print(moe.table(rows, { "", "", "%.2f", "", "%.2f", "%.1f%%" }))
    local best = some:where { system = function(s) return s:match "^before" end }
      :best { "forward_ms" }.runs[1]
    local function rise(before)
      local run = some:where { system = name_of(before) }.runs[1]
      return 100 * (run.forward_ms / best.forward_ms - 1)
    end
    print(("Best: %s ops before; %.1f%% longer with none, %.1f%% longer with all."):format(
      best.system:match "%d+", rise(0), rise(BEFORE[#BEFORE])))
  end
end

-- Returns whether the best range is neither the shortest nor the longest, for every model.
local function inner(R)
  local function forward(size, before)
    return R:where { size = size, system = name_of(before) }:get "forward_ms"[1]
  end
  for size in R:by "size" do
    local least = math.huge
    for i = 2, #BEFORE - 1 do least = math.min(least, forward(size, BEFORE[i])) end
    if least >= forward(size, 0) or least >= forward(size, BEFORE[#BEFORE]) then return false end
  end
  return true
end

return moe.experiment {
  name = "lancet_fig06", title = "forward time against the range, 2 p4de nodes, 32 experts",
  over = { size = { "S", "L" } },
  params = { reading = "artifact" },
  case = function(p)
    return {
      -- All MoE layers, also the first, have the ops of two blocks before them.
      model = moe.model.lancet { size = p.size, gpu = "p4de", reading = p.reading,
        moe_first = false },
      cluster = moe.cluster.p4de { nodes = 2 }, systems = systems }
  end,
  show = show,
  claims = { moe.claim { id = "lancet-028", value = inner,
    note = "The rise at the long end is kernel launches, and GEMMs of fewer rows as they are "
      .. "measured on A100." } },
}
