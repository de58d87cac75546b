-- Table 5 of Lina: paths of 1, 3 and 6 layers. Simulated on two kinds of made-up routing (synthetic
-- traces): tokens that keep a class through all layers, which several layers show better than one;
-- and Markov routing, in which the next choice depends only on the last layer's. The accuracies of
-- estimates depend on the trained models and their texts, so they are not comparable; whether
-- longer paths help is comparable.
local moe = require "moe"

local MODELS = {
  { size = "transformer_xl", name = "Transformer-XL", ids = { [1] = 98, [3] = 99, [6] = 100 } },
  { size = "bert_large", name = "BERT-Large", ids = { [1] = 101, [3] = 102, [6] = 103 } },
}
local PATHS = { 1, 3, 6 }
local DEVICES, BATCHES, PROFILED, LAYERS, TOKENS = 16, 30, 20, 12, 8 * 512  -- tokens of a GPU
local cluster = moe.cluster.lina { nodes = DEVICES / 4 }

local LAWS = {
  { name = "classes", drift = 0.3 }, { name = "classes", drift = 0.1 },
  { name = "classes", drift = 0.6 }, { name = "markov", drift = 0.1 },
}
-- Durations of the phases: as measured in the paper (section 7.3), or of phase 1 alone as
-- tests/bench/bench_lina.cpp measures it, with phase 2 by the links.
local SWAPS = {
  paper = { place_ms = 6.2, resume_ms = 1.45, rerun_ms = 6.2, host_bytes_per_s = 25e9 },
  closed_form = { place_ms = 0.2, host_bytes_per_s = 25e9 },
}

-- Sets the law's routing, and the capacity factor at which no choice of the batches that are served
-- is dropped.
local function complete(law)
  if law.routing then return end
  law.routing = law.name == "markov" and moe.workload "markov" { ratio = 5.56, drift = law.drift }
    or moe.workload "token_classes" { classes = 128, skew = 1, stray = 0.2, ratio = 1.3,
      drift = law.drift }
  law.capacity_factor = moe.lina.capacity_factor { routing = law.routing, ranks = DEVICES,
    tokens = TOKENS, experts = DEVICES, k = 1, layers = LAYERS, step = PROFILED + 1,
    batches = BATCHES }
end

local function serve(model, law, passes, popularity, way)
  return moe.infer { executor = "simulate", batches = BATCHES, first_batch = PROFILED + 1,
    cluster = cluster, system = moe.system "served" (passes), popularity = popularity,
    model = moe.model.lina { size = model.size, gate = "switch", layers = LAYERS,
      batch_per_device = 8, capacity_factor = law.capacity_factor,
      routing = popularity and law.routing }, swaps = SWAPS[way.schedule or "paper"] }
end

-- Measures one routing model and one way to count. Returns model -> path length -> result, with
-- medians and 95th percentiles relative to the ideal gate.
local function measure(reading)
  local law, way, out = reading.law, reading.way, {}
  complete(law)
  local irregular, used = moe.pass.irregular_a2a {}, moe.pass.used_rows {}
  for _, path in ipairs(PATHS) do
    local popularity = moe.lina.popularity { routing = law.routing, ranks = DEVICES,
      tokens = TOKENS, experts = DEVICES, k = 1, layers = LAYERS, batches = PROFILED, path = path }
    local lina = moe.pass.lina_inference { path = path, normalise = way.normalise }
    for _, model in ipairs(MODELS) do
      local ideal = moe.values(serve(model, law, { irregular, used }, nil, way).answer_ms)
      local r = serve(model, law, { lina, irregular, used }, popularity, way)
      local ms, share = moe.values(r.answer_ms), r.again.placed / r.again.of
      out[model.size] = out[model.size] or {}
      out[model.size][path] = { median = ms:quantile(0.5) / ideal:quantile(0.5),
        tail = ms:quantile(0.95) / ideal:quantile(0.95), fine_tuning = share,
        accuracy = 1 - share, paths = popularity.paths }
    end
  end
  return out
end

local WAYS = { {}, { normalise = true }, { schedule = "closed_form" },
  { normalise = true, schedule = "closed_form" } }
local readings = {}
for _, law in ipairs(LAWS) do
  for i, way in ipairs(WAYS) do
    if law == LAWS[1] or i == 1 then
      readings[#readings + 1] = { law = law, way = way, name = ("%s, drift %g%s%s"):format(law.name,
        law.drift, way.normalise and ", scaled" or "", way.schedule and ", closed form" or "") }
    end
  end
end

local function show(values)
  local rows = { { "routing", "estimates", "phases", "model", "path", "paths known",
    "median of ideal", "95% of ideal", "fine-tuned", "accuracy" } }
  for i, reading in ipairs(readings) do
    local law, way = reading.law, reading.way
    for _, model in ipairs(MODELS) do
      for _, path in ipairs(PATHS) do
        local one = values[i][model.size][path]
        rows[#rows + 1] = { ("%s, drift %g"):format(law.name, law.drift),
          way.normalise and "scaled" or "as printed", way.schedule or "paper", model.name, path,
          one.paths, one.median, one.tail, 100 * one.fine_tuning, 100 * one.accuracy }
      end
    end
  end
  print(moe.table(rows, { "", "", "", "", "", "", "%.2f", "%.2f", "%.1f%%", "%.1f%%" }))
end

local claims = {}
for _, model in ipairs(MODELS) do
  for _, path in ipairs(PATHS) do
    local id = ("lina-%03d-"):format(model.ids[path])
    local function field(name, factor)
      return function(r) return factor * r[model.size][path][name] end
    end
    local reason = "the paper's is of trained models and their texts, ours of made-up routing"
    for _, c in ipairs { { "median", "median", 1, neutral = 1 }, { "tail", "tail", 1, neutral = 1 },
        { "tuned", "fine_tuning", 100, why = reason },
        { "accuracy", "accuracy", 100, why = reason } } do
      claims[#claims + 1] = moe.claim { id = id .. c[1], value = field(c[2], c[3]),
        neutral = c.neutral, within = 0.25, not_comparable = c.why }
    end
  end
end
claims[#claims + 1] = moe.claim { id = "lina-099-order",
  not_published = "the law by which its models route", value = function(r)
  local xl = r.transformer_xl
  return xl[3].accuracy > xl[1].accuracy
end }
claims[#claims + 1] = moe.claim { id = "lina-100-order", value = function(r)
  local xl = r.transformer_xl
  return xl[6].median > xl[3].median
end }

moe.judge { name = "lina_table5", title = "the length of sample paths, made-up routing",
  head = "Numbers: dtype tf32, 4 bytes; batch 8 of 512 tokens per device, no drops; routing: one "
    .. "choice per\ntoken by made-up laws, no gate runs",
  readings = readings, measure = measure, show = show, claims = claims }
