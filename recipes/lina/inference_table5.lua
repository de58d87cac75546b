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
local cluster = moe.cluster.lina { nodes = 4 }

local LAWS = {
  { name = "classes", drift = 0.3 }, { name = "classes", drift = 0.1 },
  { name = "classes", drift = 0.6 }, { name = "markov", drift = 0.1 },
}
local function routing_of(law)
  if law.name == "markov" then return moe.workload "markov" { ratio = 5.56, drift = law.drift } end
  return moe.lina.token_classes { classes = 128, skew = 1, stray = 0.2, ratio = 1.3,
    drift = law.drift }
end

-- Measures one routing model and one way to count. Returns model -> path length -> result, with
-- medians and 95th percentiles relative to the ideal gate.
local function measure(reading)
  local law, way, out = reading.law, reading.way, {}
  for _, model in ipairs(MODELS) do
    out[model.size] = {}
    for _, path in ipairs(PATHS) do
      law.traces = law.traces or {}
      local key = model.size .. path
      law.traces[key] = law.traces[key] or moe.lina.trace {
        model = moe.model.lina { size = model.size, gate = "switch", layers = 12,
          batch_per_device = 8 },
        devices = 16, batches = 30, profile_batches = 20, path = path, routing = routing_of(law) }
      local function run(system)
        return moe.lina.inference { trace = law.traces[key], cluster = cluster, system = system,
          normalise = way.normalise, schedule = way.schedule }
      end
      local r, ideal = run "lina", run "ideal"
      r.median, r.tail = r.median_ms / ideal.median_ms, r.p95_ms / ideal.p95_ms
      r.paths = law.traces[key].paths
      out[model.size][path] = r
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
          one.paths, ("%.2f"):format(one.median), ("%.2f"):format(one.tail),
          ("%.1f%%"):format(100 * one.fine_tuning), ("%.1f%%"):format(100 * one.accuracy) }
      end
    end
  end
  print(moe.table(rows))
end

local claims = {}
for _, model in ipairs(MODELS) do
  for _, path in ipairs(PATHS) do
    local id = ("lina-%03d-"):format(model.ids[path])
    local function field(name, factor)
      return function(r) return factor * r[model.size][path][name] end
    end
    local reason = "the paper's is of trained models and their texts, ours of made-up routing"
    for _, c in ipairs {
      { id .. "median", field("median", 1), neutral = 1 },
      { id .. "tail", field("tail", 1), neutral = 1 },
      { id .. "tuned", field("fine_tuning", 100), reason = reason },
      { id .. "accuracy", field("accuracy", 100), reason = reason },
    } do
      claims[#claims + 1] = moe.claim { id = c[1], value = c[2], neutral = c.neutral,
        within = 0.25, not_comparable = c.reason }
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
  head = "Numbers: dtype tf32, 4 bytes; batch 8 of 512 tokens per device, no capacity; routing: "
    .. "one choice per\ntoken by made-up laws, no gate runs",
  readings = readings, measure = measure, show = show, claims = claims }
