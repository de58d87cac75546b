-- Megatron-LM of 2025 (core 0.13 to 0.15) with Transformer Engine, its all-to-all dispatcher with
-- fused permutation, without recorded graphs.
--
-- Kernels and passes are counted in the sources: megatron/core/transformer (attention.py,
-- moe/router.py, moe/moe_utils.py, moe/token_dispatcher.py), megatron/core/fusions, Transformer
-- Engine (pytorch/module/linear.py and grouped_linear.py, pytorch/permutation.py,
-- triton/permutation.py). A pass reads or writes an operand once. What the op here does itself in
-- its one kernel is left out. Nothing here is fitted to the time of a step.
--
-- In fp8 one kernel reads an operand and writes it twice, along both axes, for the product and for
-- the gradient of the weights; weights are cast once per micro-batch.
local function casts(own, operand, weights)
  for _, products in ipairs { "fp8", "fp8_block" } do
    own[#own + 1] = { of = operand, kernels = 1, moves = 2, products = products }
    if weights then own[#own + 1] = { of = "w", kernels = 1, moves = 2, products = products } end
  end
  return own
end

-- Returns host times of kinds of ops as assumed constants.
local function host(assumed, us)
  for kind, value in pairs(us) do
    us[kind] = assumed { value = value, lo = value / 2, hi = value * 1.5,
      why = "thread time of megatron-core 0.16.1 on one core" }
  end
  return us
end

return function(assumed)
  return {
    doc = "Megatron-LM of 2025 with Transformer Engine, fused permutation and no recorded graphs",
    host_launch_us = assumed { value = 5, lo = 4, hi = 7,
      why = "5 to 7 us for PyTorch's smallest op (pytorch/pytorch issue 41383), 4 us at best" },
    -- A module in Python with an autograd function: 83 us per op in the forward of Transformer-XL
    -- (stacks/eager_2021.lua), half of the ops run in the backward, which has no Python modules.
    host_op_us = assumed { value = 25, lo = 10, hi = 60,
      why = "modules and autograd functions in Python" },
    -- One layer of megatron-core 0.16.1 (its own modules, not Transformer Engine's; 128 experts,
    -- top-8, all-to-all dispatcher, unfused permutation and rotary) run by PyTorch 2.15 on tiny
    -- tensors on one core of an AMD EPYC at 2.x GHz: the least thread time of 300 calls of each
    -- part, forward and backward, which also has the tensors' own arithmetic. About 9 ms per layer.
    -- What TransformerLayer does itself is attend's. Newer cores take less, fused kernels fewer
    -- calls, Transformer Engine's modules more Python: 0.5 to 1.5 times.
    host_us = host(assumed, {
      rmsnorm = 158, rmsnorm_dx = 160, linear = 160, linear_dx = 75, linear_dw = 75, rope = 228,
      attend = 1387, attend_dx = 545, gate_logits = 100, gate = 563, gate_dlogits = 349,
      exchange_counts = 250, dispatch = 790, dispatch_dx = 516, combine = 466, combine_dx = 286,
      all_to_all = 110, gather_rows = 65, scatter_rows = 65, add = 0,
    }),
    -- The host reads how many tokens go where, before it launches the exchange
    -- (token_dispatcher.py, _maybe_dtoh_and_synchronize).
    waits = { "exchange_counts" },
    -- Training steps on A100, H100 and MI250: compute beside collectives took 18.9% longer in the
    -- mean and 40% at most (arXiv 2507.03114). A dispatch beside a GEMM took 18% longer, a combine
    -- 1% (DeepEP issue 184); in DeepSeek's trace both took 1.28 to 1.84 times as long as alone.
    overlap = {
      gemm = assumed { value = 1.189, lo = 1, hi = 1.4, why = "the mean of measured steps" },
      memory = assumed { value = 1.189, lo = 1, hi = 1.4, why = "the mean of measured steps" },
      transfer = assumed { value = 1.2, lo = 1, hi = 1.84, why = "a dispatch beside a GEMM" },
    },
    -- Measured inside Megatron on B200 (SimuMax 4dcaae5, b200_bf16_ceperm.json): 0.666 of the data
    -- sheet's rate, permutations 0.50, the cross entropy 0.32; of the 0.82 that one reaches
    -- alone. That other GPUs reach the same shares is assumed.
    memory = {
      others = assumed { value = 0.81, lo = 0.65, hi = 1, why = "as measured on B200" },
      dispatch = 0.61, dispatch_dx = 0.62, combine = 0.61, combine_dx = 0.62, cross_entropy = 0.40,
    },
    ops = {
      -- The residual is added by a kernel of its own (fused_bias_dropout.py): it reads the result
      -- and writes the sum; the op here has read the residual.
      linear = casts({ { of = "residual", kernels = 1, moves = 2 } }, "x", true),
      linear_dx = casts({ { of = "acc", kernels = 1, moves = 2 } }, "dy"),
      expert_linear = casts({}, "x", true), expert_linear_dx = casts({}, "dy"),
      -- softmax, topk, scatter of probabilities and map, sums for the balance loss, histogram,
      -- cumsum, masks: kernels on [tokens, experts], in fp32.
      gate = { { of = "probs", kernels = 16, moves = 12 } },
      gate_dlogits = { { of = "probs", kernels = 8, moves = 8 } },
      -- The map of rows; behind the exchange rows are sorted by expert, one more pass in and out.
      dispatch = { { of = "slots", kernels = 3, moves = 2 } },
      dispatch_dx = { { of = "acc", kernels = 1, moves = 2 } },
      combine = {
        { of = "slots", kernels = 2, moves = 2 },
        { of = "residual", kernels = 1, moves = 2 },
      },
      combine_dx = { { of = "dslots", kernels = 2, moves = 2 } },
      -- Gradients are read for the norm and scaled by the factor of clipping.
      adamw = { { of = "g", kernels = 2, moves = 3 } },
    },
  }
end
