-- Figures 7 and 8 of Lina: what happens to the backward of an MoE layer while the gradients of the
-- block above it are all-reduced? Simulated on Lina's testbed with 16 GPUs. The paper describes
-- neither the layer nor its model. Ours is as wide as GPT-2 XL and has either 5 rows per GPU, with
-- which the layer takes about the 24.6 ms of figure 7c (fitted), or 2 rows, with which its
-- all-to-alls are shorter than an all-reduce.
local moe = require "moe"

local ROWS, EFFICIENCIES, CELL_MS = { 5, 2 }, { 0.7, 1, 0.5 }, 1
local WHOLE = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }

-- Figure 7c, the schedule of an oracle: no all-reduce begins before the layer's all-to-alls end.
local deferred = moe.policy.schedule { name = "deferred", apply = function(s, g)
  local pair = g:ops { kind = "all_to_all", phase = "backward" }
  for _, op in ipairs(g:ops { kind = "all_reduce" }) do
    if s:free(pair[#pair], op) then s:before(pair[#pair], op) end
  end
end }

-- Variants: name, figure, passes. In the baseline the transfers of the two lanes share links; under
-- priority only one transfer runs at a time.
local VARIANTS = {
  { "baseline", "7a" },
  { "naive priority", "7b", moe.pass.priority { hold = false } },
  { "deferred", "7c", deferred {} },
  { "micro-ops", "8a", moe.pass.priority {}, moe.pass.chunked { bytes = 10e6 } },
  { "+ pipelining", "8b", moe.pass.priority {}, moe.pass.chunked { bytes = 10e6 },
    moe.pass.micro_ops { bytes = 10e6 } },
}

local function spans_of(variant, rows, efficiency)
  local name = #variant > 2 and "variant" or "lina_baseline"
  return moe.plan { system = moe.system(name) { all_reduce = WHOLE, unpack(variant, 3) },
    cluster = moe.cluster.lina { nodes = 4, sharing_efficiency = efficiency },
    model = moe.model.lina { size = "gpt2", layers = 3, hidden = 1600, heads = 25, ffn = 6400,
      batch_per_device = rows, moe_every = 2 } }:spans()
end

-- The spans of the layer's backward; times count from the begin of the gradient of its combine.
local function layer_of(spans)
  local layer = { a2a = {}, reduce = {}, expert = {}, over = 0 }
  local begin
  for _, span in ipairs(spans) do
    if span.op == "b1.moe.combine.dx" then begin = span.begin_ms end
    local backward = span.op:match "%.d[xw]$"
    local list = span.kind == "all_reduce" and layer.reduce
      or backward and span.kind == "all_to_all" and layer.a2a
      or backward and span.op:match "^b1%.moe%.fc" and layer.expert
    if list then list[#list + 1] = span end
  end
  for _, list in ipairs { layer.a2a, layer.reduce, layer.expert } do
    for _, span in ipairs(list) do
      span.from, span.to = span.begin_ms - begin, span.end_ms - begin
      span.ready = span.post_ms - begin
    end
  end
  for _, span in ipairs(layer.a2a) do layer.over = math.max(layer.over, span.to) end
  return layer
end

-- Returns the time when all all-reduces with these names have ended.
local function reduced(layer, names)
  local over = 0
  for _, span in ipairs(layer.reduce) do
    if names[span.op] then over = math.max(over, span.to) end
  end
  return over
end

local function measure(reading)
  local by, pending = {}, {}
  for _, variant in ipairs(VARIANTS) do
    by[variant[1]] = layer_of(spans_of(variant, reading.rows, reading.efficiency))
  end
  -- All-reduces whose gradients are complete when the layer begins, and which have not ended by
  -- then in the baseline.
  for _, span in ipairs(by.baseline.reduce) do
    if span.ready <= 0 and span.to > 0 then pending[span.op] = true end
  end
  for _, layer in pairs(by) do layer.reduced = reduced(layer, pending) end
  return by
end

local function bar(list, most)
  local cells = {}
  for i = 1, most do
    cells[i] = "."
    for _, span in ipairs(list) do
      local inside = math.min(span.to, i * CELL_MS) - math.max(span.from, (i - 1) * CELL_MS)
      if inside >= CELL_MS / 2 then cells[i] = "#" end
    end
  end
  return table.concat(cells)
end

local function draw(by)
  for _, variant in ipairs(VARIANTS) do
    local layer = by[variant[1]]
    local most = math.ceil(math.max(layer.over, layer.reduced) / CELL_MS) + 1
    for i, lane in ipairs { "a2a", "expert", "reduce" } do
      print(("%-15s %-7s %s"):format(i == 1 and variant[1] or "", lane, bar(layer[lane], most)))
    end
  end
end

local readings = {}
for _, rows in ipairs(ROWS) do
  for _, efficiency in ipairs(EFFICIENCIES) do
    readings[#readings + 1] = { rows = rows, efficiency = efficiency }
  end
end

local function show(values)
  local cells = { { "rows", "sharing efficiency", "variant", "figure", "all-to-alls over, ms",
    "pending all-reduces over, ms" } }
  for i, reading in ipairs(readings) do
    for _, variant in ipairs(VARIANTS) do
      local layer = values[i][variant[1]]
      cells[#cells + 1] = { reading.rows, reading.efficiency, variant[1], variant[2], layer.over,
        layer.reduced }
    end
    cells[#cells + 1] = {}
  end
  print(moe.table(cells, { "", "%.1f", "", "", "%.1f", "%.1f" }))
  for i, rows in ipairs(ROWS) do
    print(("From the gradient of the combine on, %g ms a cell, %d rows, sharing efficiency %.1f")
      :format(CELL_MS, rows, EFFICIENCIES[1]))
    draw(values[1 + (i - 1) * #EFFICIENCIES])
  end
end

local function over(name) return function(by) return by[name].over end end
local fitted = "rows of the layer, to figure 7c"
moe.judge { name = "lina_timelines", title = "one MoE layer's backward", readings = readings,
  measure = measure, show = show, claims = {
    moe.claim { id = "lina-036", value = over "baseline", fitted = fitted },
    moe.claim { id = "lina-037", value = over "naive priority", fitted = fitted },
    moe.claim { id = "lina-038", value = over "deferred", fitted = fitted },
    moe.claim { id = "lina-037-order",
      value = function(by) return by["naive priority"].over > by.baseline.over end },
    moe.claim { id = "lina-038-order",
      value = function(by) return by.deferred.over < by.baseline.over end },
    moe.claim { id = "lina-040", neutral = 0,
      value = function(by) return 100 * (1 - by["micro-ops"].reduced / by.deferred.reduced) end },
    moe.claim { id = "lina-040-order",
      value = function(by) return by["micro-ops"].over <= 1.1 * by.deferred.over end },
  } }
