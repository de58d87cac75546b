-- Figure 11 of Pro-Prophet: speed-ups of single MoE layers of MoE-GPT-M on 16 GPUs, whose loads
-- have different skews. Simulated; two constants are fitted (shared.lua). The paper shows randomly
-- chosen layers and does not publish its routing. Here each expert of each layer has a popularity
-- exp(sigma z) with z normal; with sigma = 1.2 most layers have the skew of the paper's figure 3 (3
-- of 16 experts get over half of the inputs, the lightest 3 under 5%).
local moe = require "moe"
local shared = require "shared"

local STEPS = { 2, 3, 4 }  -- the first step has no copies yet
local DEVICES, TOKENS, LAYERS = 16, 1024, 12
local SYSTEMS = { plain = shared.plain, fm = shared.shadowing, pp = moe.system "prophet" {} }

-- Values of what the paper does not give: first all as assumed, then with one changed at a time.
-- where_held: the time of copies for one layer that delay another layer counts for the other layer.
local READINGS = { {}, { sigma = 1 }, { sigma = 1.4 }, { seed = 2 }, { k = 2 },
  { where_held = true }, { nic = 0.95 }, { gemm = 0.25 } }

local function routing(reading)
  return moe.workload "log_normal" { sigma = reading.sigma or 1.2, drift = 0.05,
    seed = reading.seed or 1 }
end

-- Returns how long in the interval from .. to no device computes; 0 if `to` is not after `from`.
local function idle(spans, from, to)
  if from >= to then return 0 end
  local sum, known = 0, from
  for _, span in ipairs(spans) do  -- in order of begin
    if span.lane == "compute" and span.end_ms > known then
      sum = sum + math.max(0, math.min(span.begin_ms, to) - known)
      known = span.end_ms
    end
  end
  return sum + math.max(0, to - known)
end

-- Returns the milliseconds of each layer on the first device, from its gate to its combine, forward
-- and backward. Time in which experts or their gradients are transferred while no device computes
-- counts for the layer to which they belong.
local function layers_ms(spans, where_held)
  local at, ms, copies = {}, {}, {}
  for _, span in ipairs(spans) do
    local copy = span.kind == "copy_experts" or span.kind == "return_gradients"
    if span.rank == 1 then at[span.op] = span end
    if span.rank == 1 and copy and not where_held then copies[#copies + 1] = span end
  end
  for layer = 1, LAYERS do
    local prefix = ("b%d."):format(layer - 1)
    local function of(op) return at[prefix .. op] end
    ms[layer] = 0
    for _, part in ipairs { { of("moe.logits").begin_ms, of("moe.combine").end_ms },
      { of("moe.combine.dx").begin_ms, of("ln2.dx").begin_ms } } do
      ms[layer] = ms[layer] + part[2] - part[1]
      for _, c in ipairs(copies) do
        ms[layer] = ms[layer] - idle(spans, math.max(c.begin_ms, part[1]),
          math.min(c.end_ms, part[2]))
      end
    end
    for _, c in ipairs(copies) do
      local own = c.op:sub(1, #prefix) == prefix
      ms[layer] = ms[layer] + (own and idle(spans, c.begin_ms, c.end_ms) or 0)
    end
  end
  return ms
end

-- Returns the milliseconds of each layer, means over steps.
local function layers_of(system, reading)
  local plan = moe.plan { cluster = shared.cluster("hpwnv", DEVICES / 4, reading), system = system,
    model = moe.model.proprophet { size = "M", k = reading.k or 1, routing = routing(reading) } }
  local ms = {}
  for _, step in ipairs(STEPS) do
    local spans = plan:spans { step = step, all_ranks = true }
    for layer, one in ipairs(layers_ms(spans, reading.where_held)) do
      ms[layer] = (ms[layer] or 0) + one / #STEPS
    end
  end
  return ms
end

-- Returns, for each layer, { ms under plain expert parallelism, fm = FasterMoE's speed-up over
-- that, pp = Pro-Prophet's }.
local function measure(reading)
  local ms, out = {}, {}
  for name, system in pairs(SYSTEMS) do ms[name] = layers_of(system, reading) end
  for layer, plain in ipairs(ms.plain) do
    out[layer] = { ms = plain, fm = plain / ms.fm[layer], pp = plain / ms.pp[layer] }
  end
  return out
end

-- Returns the share of a layer's inputs that go to the three experts with most inputs.
local function heaviest_3(layer)
  local inputs = {}
  for _, row in ipairs(moe.loads { routing = routing {}, ranks = DEVICES, tokens = TOKENS,
    experts = DEVICES, layer = layer, step = STEPS[1] }) do
    for expert, n in ipairs(row) do inputs[expert] = (inputs[expert] or 0) + n end
  end
  table.sort(inputs, function(x, y) return x > y end)
  return (inputs[1] + inputs[2] + inputs[3]) / (DEVICES * TOKENS)
end

local function show(values)
  local rows = { { "layer", "heaviest 3", "plain, ms", "FasterMoE", "Pro-Prophet", "over it" } }
  for layer, m in ipairs(values[1]) do
    rows[#rows + 1] = { layer, 100 * heaviest_3(layer), m.ms, m.fm, m.pp, m.pp / m.fm }
  end
  print "MoE layers, forward and backward: speed-ups over plain expert parallelism, k = 1"
  print(moe.table(rows, { "", "%.0f%%", "%.2f", "%.2fx", "%.2fx", "%.2fx" }))
end

local claims = {}
local add = shared.claims_to(claims)
local function claim(id, pick, value)
  add("046" .. id, function(layers)
    local all = {}
    for i, m in ipairs(layers) do all[i] = value(m) end
    return pick(unpack(all))
  end)
end
for _, bound in ipairs { "min", "max" } do
  claim("-" .. bound, math[bound], function(m) return m.pp end)
  claim("-fm-" .. bound, math[bound], function(m) return m.pp / m.fm end)
end

moe.judge { name = "proprophet_fig11", title = "Figure 11", claims = claims,
  readings = READINGS, measure = measure, show = show }
