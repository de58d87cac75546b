-- Figure 16 of Lancet: how much does each pass by itself gain over RAF on 32 GPUs? raf_rows is RAF
-- without padding; none of Lancet's systems pads.
local moe = require "moe"

local SYSTEMS = { "raf_rows", "lancet_dw", "lancet_partition", "lancet" }

local function gain(R, system)
  return R:ratio { "iteration_ms", of = system, to = "raf" }[1]
end

local function show(R)
  local rows = { { "cluster", "model", "batch", "raf ms", unpack(SYSTEMS) } }
  for _, group in R:by { "gpu", "size" } do
    local raf = group:where { system = "raf" }.runs[1]
    local row = { raf.cluster, raf.model,
      raf.parameters.batch_per_device, ("%.0f"):format(raf.iteration_ms) }
    for _, system in ipairs(SYSTEMS) do row[#row + 1] = ("%.3fx"):format(gain(group, system)) end
    rows[#rows + 1] = row
  end
  print(moe.table(rows))
end

-- Returns by how much the gain of the weight-gradient schedule is above that of the partition.
local function lead_of_dw(group)
  return gain(group, "lancet_dw") - gain(group, "lancet_partition")
end

-- The paper's statements on models S and L; each function returns whether it holds on one cluster.
local function together(S, L)
  for _, group in ipairs { S, L } do
    local alone = math.max(gain(group, "lancet_dw"), gain(group, "lancet_partition"))
    if gain(group, "lancet") <= alone then return false end
  end
  return true
end
local function dw_leads_on_l(_, L) return lead_of_dw(L) > 0 end
local function closer_on_s(S, L) return math.abs(lead_of_dw(S)) < math.abs(lead_of_dw(L)) end

local NOTE = "The paper explains L's lead of weight gradients by its small kernels, which lose "
  .. "more when they are cut."

-- Returns the claim that a statement holds on both clusters.
local function claim_of(id, holds, note)
  return moe.claim { id = id, note = note, value = function(R)
    local S, L = R:where { size = "S" }, R:where { size = "L" }
    if #R.runs == 0 then return nil end
    return holds(S:where { gpu = "p4de" }, L:where { gpu = "p4de" })
      and holds(S:where { gpu = "p3dn" }, L:where { gpu = "p3dn" })
  end }
end

return moe.experiment {
  name = "lancet_fig16", title = "each pass alone on 4 nodes, speed-up over RAF, Switch gate",
  over = { gpu = { "p4de", "p3dn" }, size = { "S", "L" } },
  params = { reading = "artifact" },
  case = function(p)
    local model = moe.model.lancet { size = p.size, gpu = p.gpu, reading = p.reading }
    local systems = { moe.system "raf" {} }
    for i, name in ipairs(SYSTEMS) do systems[i + 1] = moe.system(name) {} end
    return { model = model, cluster = moe.cluster[p.gpu] { nodes = 4 },
      systems = systems }
  end,
  show = show, claims = { claim_of("lancet-042", together),
    claim_of("lancet-042-L", dw_leads_on_l, NOTE), claim_of("lancet-042-S", closer_on_s, NOTE) },
}
