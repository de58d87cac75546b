-- Figure 5 of PipeMoE: a layer in four chunks in three cases. A chunk's transfer takes longer than
-- its experts (condition Q1 of the paper); it is shorter, and the experts determine the layer's
-- time (not Q1, but Q2); or it is shorter, but transfers determine the time (neither). Layers of
-- table IV are simulated by the event engine, and their last op ends when the paper's f_2, f_3, f_4
-- predict. Then whole plans with such a layer at degree 4 are simulated, for `--out`.
local moe = require "moe"

local COLUMNS, R = 96, 4

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

-- Returns a lane as text, in which each span is filled with the number of its chunk.
local function lane_text(spans, lane, column_s)
  local cells = {}
  for i = 1, COLUMNS do cells[i] = " " end
  for _, span in ipairs(spans) do
    if span.lane == lane then
      local first = math.floor(span.begin_s / column_s + 0.5) + 1
      local last = math.max(first, math.floor(span.end_s / column_s + 0.5))
      local mark = span.op == "dispatch" and "D" or span.op == "combine" and "C" or "E"
      for i = first, math.min(last, COLUMNS) do
        cells[i] = i == first and mark or i == first + 1 and tostring(span.chunk) or "-"
      end
    end
  end
  return table.concat(cells)
end

local CASES = {
  { name = "a: Q1", layer = largest(64, 1), q1 = true, q2 = false },
  { name = "b: not Q1, Q2 (experts twice as long, as in the backward)", layer = largest(16, 2),
    q1 = false, q2 = true },
  { name = "c: neither", layer = largest(16, 1), q1 = false, q2 = false },
}

for _, case in ipairs(CASES) do
  local l = case.layer
  local q1, q2 = conditions(l)
  assert(q1 == case.q1 and q2 == case.q2, case.name)
  local run = moe.pipemoe.simulate { devices = l.devices, rows = l.rows, hidden = l.hidden,
    ffn = l.ffn, experts_per_device = l.experts_per_device, alpha_a = l.alpha_a,
    beta_a = l.beta_a, alpha_gemm = l.alpha_gemm, beta_gemm = l.beta_gemm, degree = R,
    spans = true }
  -- Both GEMMs of a chunk are drawn as one box.
  local boxes = {}
  for _, span in ipairs(run.spans) do
    if span.op ~= "fc2" then boxes[#boxes + 1] = span end
    for _, other in ipairs(run.spans) do
      if span.op == "fc1" and other.op == "fc2" and other.chunk == span.chunk then
        span.end_s = other.end_s
      end
    end
  end
  print(("\n%s: %d GPUs, B %d, L %d, M %d, H %d"):format(case.name, l.devices, l.batch, l.seq,
    l.hidden, l.ffn))
  print("network |" .. lane_text(boxes, "comm", run.time_s / COLUMNS) .. "|")
  print("experts |" .. lane_text(boxes, "compute", run.time_s / COLUMNS) .. "|")
  print(("ends at %.3f ms, %s says %.3f ms"):format(1e3 * run.time_s,
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
  name = "pipemoe_fig05", title = "steps with one MoE layer in four chunks, on 64 and 16 GPUs",
  over = { gpus = { 64, 16 } },
  case = function(p)
    local l = largest(p.gpus, 1)
    return {
      model = moe.model.gpt2_moe { name = "one_layer", layers = 2, hidden = l.hidden, heads = 64,
        ffn = l.ffn, seq = l.seq, batch_per_device = l.batch, gate = "top2", capacity_factor = 1,
        experts_per_device = l.experts_per_device },
      cluster = cluster_of(l),
      systems = { moe.system "degree4" { moe.pass.capacity_pipeline { degree = R } },
        moe.system "pipemoe" { moe.pass.pipemoe { alpha_a = l.alpha_a, beta_a = l.beta_a,
          alpha_e = 2 * l.alpha_gemm, beta_e = 2 * l.beta_gemm } } } }
  end,
}
