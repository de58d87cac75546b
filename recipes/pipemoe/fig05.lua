-- Figure 5 of PipeMoE: a layer in four chunks in three cases. A chunk's transfer takes longer than
-- its experts (condition Q1 of the paper); it is shorter, and the experts determine the layer's
-- time (not Q1, but Q2); or it is shorter, but transfers determine the time (neither). For a layer
-- of each case the paper's f_2, f_3 or f_4 is held against the end of its last chunk. Then steps of
-- models with such a layer are simulated; `--out` draws their timelines.
local moe = require "moe"

local R = 4

-- Returns the largest layer with ffn = 8192. Its backward is represented by experts that take twice
-- as long.
local function largest(gpus, experts)
  local layers = moe.pipemoe.layers { devices = gpus }
  local layer = layers[#layers]
  layer.alpha_gemm, layer.beta_gemm = experts * layer.alpha_gemm, experts * layer.beta_gemm
  return layer
end

-- Returns alpha_a, beta_a n_d, alpha_e and beta_e n_e of the layer, in the paper's notation.
local function parts(layer)
  return layer.alpha_a, layer.beta_a * layer.lines.n_d, 2 * layer.alpha_gemm,
    2 * layer.beta_gemm * layer.lines.n_e
end

local function conditions(layer)
  local alpha_a, wire, alpha_e, work = parts(layer)
  return alpha_a + wire / R >= alpha_e + work / R,
    2 * (R - 1) * alpha_a + 2 * (R - 1) / R * wire < R * alpha_e + work
end

-- Returns the layer's time by the paper: Eq. 25 and 40, or Eq. 33 if the experts determine it.
local function formula(layer, experts_decide)
  local alpha_a, wire, alpha_e, work = parts(layer)
  if not experts_decide then return 2 * R * alpha_a + 2 * wire end
  return 2 * alpha_a + work + 2 * wire / R + R * alpha_e
end

local CASES = {
  { name = "a: Q1", layer = largest(64, 1), q1 = true, q2 = false },
  { name = "b: not Q1, Q2 (experts twice as long, as in the backward)", layer = largest(16, 2),
    q1 = false, q2 = true },
  { name = "c: neither", layer = largest(16, 1), q1 = false, q2 = false },
}

print "Layers of table IV: dtype f16, capacity factor 1; routing: even, 2 choices per token"
for _, case in ipairs(CASES) do
  local l = case.layer
  local q1, q2 = conditions(l)
  assert(q1 == case.q1 and q2 == case.q2, case.name)
  local t = l.lines
  t.degree, t.by, t.alpha_e, t.beta_e = R, "recurrence", 2 * l.alpha_gemm, 2 * l.beta_gemm
  print(("%s: %d GPUs, B %d, L %d, M %d, H %d: the last chunk ends at %.3f ms, %s says %.3f ms")
    :format(case.name, l.devices, l.batch, l.seq, l.hidden, l.ffn, 1e3 * moe.pipemoe.time(t),
    q1 and "f_2" or q2 and "f_3" or "f_4", 1e3 * formula(l, q2)))
end
print ""

-- Returns a moebench cluster with the times of the layer's lines: a table of all-to-alls, and a
-- rate and launch time for GEMMs.
local function cluster_of(l)
  local function us(bytes) return 1e6 * (l.alpha_a + l.beta_a * bytes) end
  return moe.cluster.custom { name = ("pipemoe%d"):format(l.devices), nodes = l.devices / 4,
    devices_per_node = 4,
    device = { name = "2080Ti", gemm_flops_per_s = 2 / l.beta_gemm, memory_bytes_per_s = 616e9,
      vector_flops_per_s = 13e12, launch_us = 1e6 * l.alpha_gemm },
    intra = { bytes_per_s = 12e9, latency_us = 5 }, nic = { bytes_per_s = 12.5e9, latency_us = 5 },
    collectives = { all_to_all = { { 0, us(0) }, { 1e12, us(1e12) } } } }
end

return moe.experiment {
  name = "pipemoe_fig05", title = "steps with one MoE layer in four chunks, in the three cases",
  over = { case = { "a", "b", "c" } },
  case = function(p)
    local l = CASES[p.case:byte() - 96].layer
    return {
      model = moe.model.gpt2_moe { name = "one_layer", dtype = "f16", layers = 2, hidden = l.hidden,
        heads = 64, ffn = l.ffn, seq = l.seq, batch_per_device = l.batch, gate = "top2",
        capacity_factor = 1, experts_per_device = l.experts_per_device },
      cluster = cluster_of(l),
      systems = { moe.system "degree4" { moe.pass.capacity_pipeline { degree = R } },
        moe.system "pipemoe" { moe.pass.pipemoe { alpha_a = l.alpha_a, beta_a = l.beta_a,
          alpha_e = 2 * l.alpha_gemm, beta_e = 2 * l.beta_gemm } } } }
  end,
}
