-- Figure 16 of Pro-Prophet: how much better its planner balances the devices in each layer than
-- FasterMoE's shadowing. Inputs are only counted: both policies plan from the same loads for which
-- the balance is then computed, and nothing is timed or simulated. The paper's routing is not
-- published: loads are drawn with the skew of its figure 3 (3 of 16 experts get over half of the
-- inputs, the lightest 3 under 5%).
local moe = require "moe"

local DEVICES, TOKENS, LAYERS = 16, 1024, 12
local HIDDEN, FFN, SEQ = 1024, 2048, 256  -- MoE-GPT-M, in single precision

-- The rates that the planner uses; the paper prints none. bytes_per_s is what a device receives.
local FLOPS = 20e12
local RATES = { input_bytes = 4 * HIDDEN, expert_bytes = 4 * 2 * HIDDEN * FFN,
  bytes_per_s = 20e9 / 8, copy_bytes_per_s = 50e9 / 8,
  inputs_per_s = FLOPS / (4 * HIDDEN * FFN) }
-- Time of a block's attention in the forward, as the authors' code counts it; backward: twice.
local FNEC_S = 4 * TOKENS * (SEQ * HIDDEN + HIDDEN ^ 2) / FLOPS

-- The defaults of the public fastmoe code for the network (50 Gb/s) and GEMMs (11.5 TFLOP/s).
local FASTMOE = { bytes_per_s = 50e9 / 8, inputs_per_s = 11.5e12 / (4 * HIDDEN * FFN) }

-- Returns a layer's counts, routed[expert][device].
local function counts_of(skew, k, layer)
  local loads = moe.loads { routing = skew, ranks = DEVICES, tokens = TOKENS, experts = DEVICES,
    k = k, layer = layer }
  local out = {}
  for expert = 1, DEVICES do
    out[expert] = {}
    for device = 1, DEVICES do out[expert][device] = loads[device][expert] end
  end
  return out
end

-- Returns the balance (RB) that both policies reach on one layer, and the ratio.
local function compare(counts, alpha, constants)
  local shadowing = moe.prophet.place(moe.merged(RATES, constants,
    { policy = "fastermoe_shadowing", routed = counts }))
  local planner = moe.prophet.plan(moe.merged(RATES, { routed = counts, alpha = alpha, equation = 8,
    fnec_s = FNEC_S, bnec_s = 2 * FNEC_S }))
  return { planner = planner.rb, shadowing = shadowing.rb, ratio = planner.rb / shadowing.rb,
    selected = #planner.selected }
end

local function layers_of(skew, k)
  local out = {}
  for layer = 1, LAYERS do out[layer] = counts_of(skew, k, layer) end
  return out
end

-- Values on which the outcome depends: the skew (source_ragged: every device has its own popularity
-- of experts and number of tokens), alpha, which ends the planner's search, and the rates that
-- FasterMoE uses.
local readings = {}
for _, law in ipairs { { "zipf", 1.1 }, { "zipf", 0.9 }, { "zipf", 1.3 }, { "source_ragged" } } do
  local name, s = unpack(law)
  local skew = moe.workload(name) { s = s, seed = 1 }
  local layers = { layers_of(skew, 1), layers_of(skew, 2) }
  for _, alpha in ipairs { 1, 0.5, 3 } do
    for _, own in ipairs { true, false } do
      for k = 1, 2 do
        readings[#readings + 1] = { law = s and ("%s %g"):format(name, s) or name, k = k,
          layers = layers[k], alpha = alpha, constants = own and FASTMOE or {},
          rates = own and "its defaults" or "the planner's" }
      end
    end
  end
end

local function measure(reading)
  local out = { layers = {}, most = 0, below = 0 }
  for i, counts in ipairs(reading.layers) do
    local l = compare(counts, reading.alpha, reading.constants)
    out.layers[i], out.most = l, math.max(out.most, l.ratio)
    if l.ratio < 1 then out.below = out.below + 1 end
  end
  return out
end

local function show(values)
  local rows = { { "layer", "RB planner", "RB FasterMoE", "ratio", "k = 2: planner", "FasterMoE",
    "ratio" } }
  for layer = 1, LAYERS do
    local a, b = values[1].layers[layer], values[2].layers[layer]  -- of the first two readings
    rows[#rows + 1] = { layer, a.planner, a.shadowing, a.ratio, b.planner, b.shadowing, b.ratio }
  end
  print "RB: balance degree before over after; alpha = 1, k = 1 choice per token"
  print(moe.table(rows, { "", "%.2f", "%.2f", "%.2f", "%.2f", "%.2f", "%.2f" }))

  rows = { { "loads", "alpha", "FasterMoE's rates", "k", "ratio, most", "layers below 1" } }
  for i, r in ipairs(readings) do
    rows[#rows + 1] = { r.law, r.alpha, r.rates, r.k, ("%.2f"):format(values[i].most),
      ("%d of %d"):format(values[i].below, LAYERS) }
  end
  print "\nBy skew and alpha; the paper has one layer below 1 at k = 1 and two at k = 2"
  print(moe.table(rows))
end

moe.judge { name = "proprophet-fig16", readings = readings,
  measure = measure, show = show, head = "Numbers: dtype f32; 1024 tokens per device, no capacity; "
    .. "routing: choices of the laws below, no gate runs",
  claims = {
    moe.claim { id = "proprophet-055", neutral = 1, value = function(r) return r.most end,
      not_comparable = "a maximum over layers whose routing is not published" } } }
