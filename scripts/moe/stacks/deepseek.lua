-- DeepSeek's framework as the published trace of V3's training shows it (deepseek-ai/profile-data,
-- H800, 2025): products in fp8 with a scale per 128 numbers, rows exchanged by DeepEP. Kernels are
-- counted in the trace, and what is said to be from it is fitted to it: recipes/deepseek_trace.lua
-- shows which times are then fitted and which predicted.
--
-- A pass reads or writes an operand once. A cast reads two bytes of a number and writes one, and a
-- scale of four per 128 numbers.
local CAST = 1.55

return function(assumed)
  local casts = assumed { value = 0.65, lo = 0.45, hi = 0.75, source = "from the trace",
    why = "3.7 ms of casts and transposes per layer for the bytes that are counted here" }
  local function cast(operand, kernels, moves)
    return { of = operand, kernels = kernels, moves = moves, products = "fp8_block" }
  end
  return {
    doc = "DeepSeek's framework by its published trace: fp8 per block of 128, with its casts",
    host_launch_us = assumed { value = 40, lo = 5, hi = 47, source = "from the trace, under the "
      .. "profiler; low end: PyTorch's smallest op",
      why = "regions of host code take 35 us (mlp) to 47 us (attention) per kernel" },
    host_op_us = 0,
    waits = { "exchange_counts" },  -- notify_dispatch
    memory = {
      others = 1, linear = casts, linear_dx = casts, linear_dw = casts, attend = casts,
      attend_dx = casts, expert_linear = casts, expert_linear_dx = casts, expert_linear_dw = casts,
      -- PyTorch's of 7,168 columns reach 0.59 and 0.45 of H200's data sheet; the device is taken to
      -- reach 0.89 (tests/bench/results/gpu-steps-2026-11-29-h200.json).
      rmsnorm = 0.66, rmsnorm_dx = 0.51, rmsnorm_dw = 0.51,
    },
    ops = {
      -- A second kernel turns the scales; gradients of inputs need weights along the other axis.
      linear = { cast("x", 2, CAST) },
      linear_dx = { cast("dy", 2, CAST), cast("w", 1, 1) },
      linear_dw = { cast("dy", 1, CAST), cast("x", 1, CAST) },
      -- Of the experts' two products one has its rows in fp8 from the wire, the other's are cast by
      -- the activation and in the backward by a kernel. For gradients of weights rows in fp8 are
      -- read and written again along the other axis.
      expert_linear = { cast("w", 1, 1) },
      expert_linear_dx = { cast("dy", 1, CAST / 2) },
      expert_linear_dw = { cast("dy", 1, (CAST + 1) / 2), cast("x", 1, (CAST + 1) / 2) },
      -- The result is kept for the backward in 12 bits per number.
      attend = { { of = "ctx", kernels = 1, moves = 1.75 } },
      attend_dx = { { of = "ctx", kernels = 1, moves = 1.75 } },
      -- From the trace: small kernels of 1 to 70 us, whose times do not follow their bytes.
      gate = { { of = "probs", kernels = 37, moves = 150 } },
      gate_dlogits = { { of = "probs", kernels = 26, moves = 70 } },
      dispatch = { { of = "slots", kernels = 2, moves = 0 } },  -- where each row goes, and counts
    },
  }
end
