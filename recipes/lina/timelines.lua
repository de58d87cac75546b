-- Figures 7 and 8: what becomes of one MoE layer's backward when the gradients of the layer above it
-- are all-reduced meanwhile? Simulated on Lina's testbed, 16 GPUs; the layer, which the paper does
-- not describe, is as wide as GPT-2 XL and has the tokens that make figure 7c's 24.6 ms: fitted. Who
-- is faster is not.
local moe = require "moe"

local CELL_MS = 1
local GRADIENT = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }

local VARIANTS = {
  { "baseline", "7a", {} },
  { "naive priority", "7b", { moe.pass.priority { hold = false } } },
  { "deferred", "7c", { moe.pass.fixed {} } },
  { "micro-ops", "8a", { moe.pass.priority {}, moe.pass.chunked { bytes = 10e6 } } },
  { "+ pipelining", "8b", { moe.pass.priority {}, moe.pass.chunked { bytes = 10e6 },
    moe.pass.micro_ops { bytes = 10e6 } } },
}

-- The layer's backward from the gradient of its combine on, ms: its all-to-alls, the all-reduces of
-- the block above, which begin to be ready before it, and the experts.
local function layer_of(variant, efficiency)
  local passes = {}
  for i, pass in ipairs(variant[3]) do passes[i] = pass end
  passes.all_reduce = GRADIENT
  if #passes == 0 then passes = { all_reduce = GRADIENT } end
  local system = moe.system(#passes > 0 and "variant" or "lina_baseline")(passes)
  local plan = moe.plan { system = system,
    cluster = moe.cluster.lina { nodes = 4, sharing_efficiency = efficiency },
    model = moe.model.lina { size = "gpt2", layers = 3, hidden = 1600, heads = 25, ffn = 6400,
      batch_per_device = 6, moe_every = 2 } }
  local layer = { a2a = {}, reduce = {}, expert = {}, last = 0, reduced = 0, sum = 0 }
  local begin
  for _, span in ipairs(plan:spans()) do
    local backward = span.op:match "%.dx$" or span.op:match "%.dw$"
    if span.op == "b1.moe.combine.dx" then begin = span.begin_ms end
    local list = span.kind == "all_reduce" and layer.reduce
      or span.op:match "^b1%.moe%.fc" and backward and layer.expert
      or span.op:match "^b1%.moe%.a2a" and span.kind == "all_to_all" and backward and layer.a2a
    if list then list[#list + 1] = span end
  end
  local function since(ms) return ms - begin end
  for _, list in ipairs { layer.a2a, layer.reduce, layer.expert } do
    for _, span in ipairs(list) do
      span.from, span.to, span.ready = since(span.begin_ms), since(span.end_ms), since(span.post_ms)
    end
  end
  for _, span in ipairs(layer.a2a) do
    layer.last = math.max(layer.last, span.to)
    layer.sum = layer.sum + span.to - span.ready
  end
  -- Gradients that were ready before the layer's all-to-alls were over.
  for _, span in ipairs(layer.reduce) do
    if span.ready < layer.last then layer.reduced = math.max(layer.reduced, span.to) end
  end
  return layer
end

local function bar(list, most)
  local cells = {}
  for i = 1, most do
    cells[i] = "."
    for _, span in ipairs(list) do
      local from, to = (i - 1) * CELL_MS, i * CELL_MS
      if math.min(span.to, to) - math.max(span.from, from) >= CELL_MS / 2 then cells[i] = "#" end
    end
  end
  return table.concat(cells)
end

local readings, rows = {}, { { "sharing efficiency", "variant", "figure", "all-to-alls over, ms",
  "posted or on the wire, ms", "all-reduces over, ms" } }
for _, efficiency in ipairs { 0.7, 1, 0.85, 0.5 } do
  local by = {}
  for _, variant in ipairs(VARIANTS) do
    local layer = layer_of(variant, efficiency)
    by[variant[1]] = layer
    rows[#rows + 1] = { ("%.2f"):format(efficiency), variant[1], variant[2],
      ("%.1f"):format(layer.last), ("%.1f"):format(layer.sum), ("%.1f"):format(layer.reduced) }
  end
  rows[#rows + 1] = {}
  readings[#readings + 1] = by
end
print(moe.table(rows))

print(("\nFrom the gradient of the combine on, %g ms a cell, sharing efficiency 0.7"):format(CELL_MS))
for _, variant in ipairs(VARIANTS) do
  local layer = readings[1][variant[1]]
  local most = math.ceil(layer.reduced / CELL_MS) + 2
  print(("%-15s all-to-all  %s"):format(variant[1], bar(layer.a2a, most)))
  print(("%-15s all-reduce  %s"):format("", bar(layer.reduce, most)))
  print(("%-15s experts     %s"):format("", bar(layer.expert, most)))
end

local function last(name) return function(by) return by[name].last end end
local fitted = "tokens of the layer, to figure 7c"
moe.judge { name = "lina_timelines", title = "one MoE layer's backward", readings = readings,
  claims = {
    moe.claim { id = "lina-036", value = last "baseline", fitted = fitted },
    moe.claim { id = "lina-037", value = last "naive priority", fitted = fitted },
    moe.claim { id = "lina-038", value = last "deferred", fitted = fitted },
    moe.claim { id = "lina-037-order",
      value = function(by) return by["naive priority"].last > by.baseline.last end },
    moe.claim { id = "lina-038-order",
      value = function(by) return by.deferred.last < by.baseline.last end },
    moe.claim { id = "lina-040", neutral = 0,
      value = function(by) return 100 * (1 - by["micro-ops"].reduced / by.deferred.reduced) end },
    moe.claim { id = "lina-040-order",
      value = function(by) return by["micro-ops"].last < 1.05 * by.deferred.last end },
  } }
