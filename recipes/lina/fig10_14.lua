-- Figures 10 to 14 and tables 3 and 4 of Lina: its training scheduler, and parts of it, compared
-- with its baseline on three models with 2 to 16 experts and as many GPUs. Simulated; no constant
-- is fitted to these figures. How much two collectives slow each other down is the cluster's
-- sharing efficiency, which is fitted to the worst slowdown of figure 3; gains.lua shows the gain
-- over the whole range of this efficiency.
local moe = require "moe"

local SIZES, EXPERTS = { "transformer_xl", "gpt2", "bert2gpt2" }, { 2, 4, 8, 16 }
local NAMES = { "lina_baseline", "lina_fixed", "lina_priority", "lina_partition",
  "lina_pipelining", "lina" }
local systems = {}
for i, name in ipairs(NAMES) do systems[i] = moe.system(name) {} end

-- Returns a step's time, including the copies from host memory of what does not fit in a device.
local function step_ms(run)
  return run.iteration_ms + (run.packing and run.packing.offload_ms or 0)
end

local function field(name) return function(run) return run[name] end end

-- Returns value(run) of the baseline divided by that of the system, or by its least(run), mean over
-- points; nil without any.
local function speedup_of(R, system, value, points, least)
  local out, base = {}, {}
  for run in R:where(points):where { system = "lina_baseline" }:each() do
    base[run.model .. run.devices] = value(run)
  end
  for run in R:where(points):where { system = system }:each() do
    local mine = (least or value)(run)
    if mine > 0 then out[#out + 1] = base[run.model .. run.devices] / mine end
  end
  return moe.values(out):mean()
end

local function show_steps(R)
  local rows = { { "model", "GPUs", "baseline ms", "fixed", "priority", "+ partition",
    "+ pipelining", "+ packing", "experts x", "a2a over FFN" } }
  for key, group in R:by { "model", "devices" } do
    local by = {}
    for run in group:each() do by[run.system] = run end
    local row = { key[1], key[2], ("%.0f"):format(by.lina_baseline.iteration_ms) }
    for i = 2, #NAMES do
      row[#row + 1] = ("%.2fx"):format(step_ms(by.lina_baseline) / step_ms(by[NAMES[i]]))
    end
    local packing = by.lina.packing
    row[#row + 1] = packing.n
    row[#row + 1] = ("%.2f"):format(packing.trace[1].a2a_ms / packing.trace[1].ffn_ms)
    rows[#rows + 1] = row
  end
  print(moe.table(rows))
end

local LAYER = { "moe_forward_ms", "moe_backward_ms", "a2a_backward_ms", "a2a_wait_ms",
  "a2a_transfer_ms", "all_reduce_wait_ms", "all_reduce_transfer_ms" }

local function show_layers(R)
  local rows = { { "16 GPUs", "system", "layer forward", "backward", "its a2a", "a2a wait",
    "transfer", "all-reduce wait", "transfer", "efficiency", "busy", "peak GB" } }
  for run in R:where { experts = 16 }:each() do
    local row = { run.model, run.system }
    for _, key in ipairs(LAYER) do row[#row + 1] = ("%.1f"):format(run[key]) end
    row[#row + 1] = ("%.0f%%"):format(100 * run.pipelining_efficiency)
    row[#row + 1] = ("%.0f%%"):format(100 * run.compute_ms / run.iteration_ms)
    row[#row + 1] = ("%.1f"):format(run.peak_bytes / 1e9)
    rows[#rows + 1] = row
  end
  print "\nAn MoE layer, mean, and a step's collectives, ms; pipelining efficiency; compute"
  print(moe.table(rows))
end

local claims = {}

local function claim(t)
  t.within = t.within or 0.25
  claims[#claims + 1] = moe.claim(t)
end

-- For figure 14, where nothing is packed: no order of a system's ops is shorter than their bound.
local BY = "the busiest lane and the longest path of the same ops, over the baseline as simulated"
local function bound_of(system, points)
  return function(R) return speedup_of(R, system, step_ms, points, field "lower_bound_ms") end
end

-- Makes a claim on the speed-up with this number of experts, mean over models.
local function speedup(id, experts, system, value, bound)
  claim { id = ("%s-%d"):format(id, experts), neutral = 1, value = function(R)
    return speedup_of(R, system, value, { experts = experts })
  end, bound = bound, bound_by = bound and BY }
end

claim { id = "lina-002", neutral = 1, value = function(R)
  return speedup_of(R, "lina", step_ms, {})
end }
for _, experts in ipairs(EXPERTS) do speedup("lina-062", experts, "lina", step_ms) end
for _, experts in ipairs { 2, 8 } do
  speedup("lina-064-fwd", experts, "lina", field "moe_forward_ms")
  speedup("lina-064-bwd", experts, "lina", field "moe_backward_ms")
end
for _, experts in ipairs { 4, 8, 16 } do
  speedup("lina-075", experts, "lina", field "a2a_backward_ms")
end
claim { id = "lina-080", neutral = 1, value = function(R)
  return speedup_of(R, "lina_priority", step_ms, {})
end, bound = bound_of("lina_priority", {}), bound_by = BY }
for _, experts in ipairs(EXPERTS) do
  speedup("lina-081", experts, "lina_partition", step_ms,
    bound_of("lina_partition", { experts = experts }))
end
claim { id = "lina-080-fixed", value = function(R)
  local fixed = speedup_of(R, "lina_fixed", step_ms, {})
  for _, name in ipairs { "lina_priority", "lina_partition", "lina_pipelining" } do
    if speedup_of(R, name, step_ms, {}) <= fixed then return false end
  end
  return fixed <= 1
end }

-- Returns the run with 16 experts, for claims on the packing controller and on tables 3 and 4.
local function at_16(R, model, system)
  return R:where { experts = 16, model = model, system = system }.runs[1]
end
local MODELS = { xl = "Transformer-XL", gpt2 = "GPT-2", bert2gpt2 = "BERT2GPT2" }
for _, id in ipairs { "xl", "gpt2", "bert2gpt2" } do
  local model = MODELS[id]
  local function percent(system)
    return function(R)
      local run = at_16(R, model, system)
      -- The efficiency is defined only if the run has all-to-alls.
      return run and run.a2a_transfer_ms > 0 and 100 * run.pipelining_efficiency or nil
    end
  end
  claim { id = "lina-076-" .. id, neutral = 0, value = percent "lina_pipelining",
    bound = function(R)
      local run = at_16(R, model, "lina_pipelining")
      return run and 100 * math.min(1, run.compute_ms / run.alone_ms.all_to_all)
    end, bound_by = "all compute of the step beside its all-to-alls, each of them alone" }
  claim { id = "lina-077-" .. id, neutral = 0, value = percent "lina" }
  local function growth(value)
    return function(R)
      local before, after = at_16(R, model, "lina_baseline"), at_16(R, model, "lina")
      return before and after and 100 * (value(after) - value(before))
    end
  end
  claim { id = "lina-067-" .. id, neutral = 0, note = "Ours is the compute lane's, not that of "
    .. "the multiprocessors.", value = growth(function(run)
      return run.compute_ms / step_ms(run)
    end) }
  claim { id = "lina-068-" .. id, neutral = 0, value = growth(function(run)
    return math.min(1, run.peak_bytes / run.memory_bytes)
  end) }
end
claim { id = "lina-079", neutral = 1, value = function(R)
  local ratios = {}
  for _, model in pairs(MODELS) do
    local before, after = at_16(R, model, "lina_pipelining"), at_16(R, model, "lina")
    if before and after and after.a2a_transfer_ms > 0 then
      ratios[#ratios + 1] = after.pipelining_efficiency / before.pipelining_efficiency
    end
  end
  return moe.values(ratios):mean()
end }
claim { id = "lina-060-xl", neutral = 1, value = function(R)
  local run = at_16(R, MODELS.xl, "lina")
  return run and run.packing.n
end }
claim { id = "lina-060", neutral = 1, label = "mean of the others", value = function(R)
  local n = {}
  for run in R:where { system = "lina" }:each() do
    if run.model ~= MODELS.xl or run.devices ~= 16 then n[#n + 1] = run.packing.n end
  end
  return moe.values(n):mean()
end }

return moe.experiment {
  name = "lina_fig10_14", title = "Lina's training scheduler and its parts",
  over = { size = SIZES, experts = EXPERTS },
  case = function(p)
    return { model = moe.model.lina { size = p.size }, systems = systems,
      cluster = moe.cluster.lina { nodes = math.max(1, p.experts / 4),
        devices_per_node = math.min(4, p.experts) } }
  end,
  show = function(R)
    print "Step of the baseline, and speed-ups over it"
    show_steps(R)
    show_layers(R)
  end,
  claims = claims,
}
