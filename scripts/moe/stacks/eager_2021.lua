-- Eager PyTorch 1.10 of 2021 with DeepSpeed 0.5's MoE layer, in single precision.
--
-- Kernels and passes are counted in the sources: PyTorch 1.10 (aten/src/ATen/native, torch/optim),
-- Hugging Face's GPT-2 and Megatron's for where dropout stands (its rate is above 0), DeepSpeed's
-- deepspeed/moe/sharded_moe.py. A pass reads or writes an operand once; dropout's mask has one byte
-- per element, a quarter of a pass. What the op here does itself in its one kernel is left out.
-- Nothing here is fitted to the time of a step.
return function(assumed)
  return {
    doc = "eager PyTorch 1.10: unfused bias, dropout, residual, mask and optimizer; DeepSpeed's "
      .. "dispatch by one-hot masks",
    host_launch_us = assumed { value = 7, lo = 4, hi = 12,
      why = "5 to 7 us for the smallest op, 4 us on a GPU",
      source = "pytorch/pytorch issues 41383 and 82793; high end: none: a guess" },
    -- At batch 1 to 8 a forward of Transformer-XL base takes the same 16 ms on an A100 (NVIDIA's
    -- DeepLearningExamples, TF32, pure Python), so that the host takes them: 1 ms per layer of some
    -- 24 kernels and 10 ops of the graph here, 83 us per op. The backward has no Python, and three
    -- ops of a layer's step in ten are forward ones.
    host_op_us = assumed { value = 25, lo = 0, hi = 80,
      why = "modules in Python: 83 us in a forward, none in the backward",
      source = "NVIDIA's DeepLearningExamples, Transformer-XL base on A100: 16 ms a forward" },
    sources = { ops = "counted in the sources of PyTorch 1.10, GPT-2 of Hugging Face, DeepSpeed" },
    ops = {
      -- Tokens and positions are looked up apart: a row added, then dropout.
      embedding = {
        { of = "x", with = "wpe", kernels = 2, moves = 2 },
        { of = "x", kernels = 1, moves = 2.25 },
      },
      -- Zeros, then tokens in order (a sort of six kernels), then sums; the dropout before.
      embedding_dw = { { of = "dx", kernels = 8, moves = 2.25 } },
      -- Moments, then rows (layer_norm_kernel.cu before its vectorized kernel of 1.11).
      layernorm = { { of = "x", kernels = 1, moves = 1 } },
      -- Two sums per row, then factors, then rows. A gradient that comes from two sides is added by
      -- a kernel of its own; the one beside a residual goes through dropout.
      layernorm_dx = {
        { of = "dy", kernels = 1, moves = 1 },
        { of = "x", kernels = 1, moves = 1 },
        { of = "acc", kernels = 2, moves = 4.25 },
      },
      -- A bias is added in place after a product of three axes (pytorch/pytorch issue 39661 and its
      -- fix, 72728, of 2022). Dropout writes its rows and mask; the sum reads and writes rows.
      linear = {
        { of = "y", with = "bias", kernels = 1, moves = 2 },
        { of = "residual", kernels = 2, moves = 4.25 },
      },
      linear_dx = { { of = "acc", kernels = 1, moves = 2 } },
      linear_dw = { { of = "dy", with = "db", kernels = 1, moves = 1 } },
      expert_linear = { { of = "y", with = "bias", kernels = 1, moves = 2 } },
      expert_linear_dx = { { of = "acc", kernels = 1, moves = 2 } },
      expert_linear_dw = { { of = "dy", with = "db", kernels = 1, moves = 1 } },
      gelu = { { of = "x", with = "bias", kernels = 1, moves = 2 } },
      -- matmul of four axes copies queries, keys, values and the heads' results, which are not in
      -- order (2 passes each, of a third of qkv or of ctx); the gradient of the split is a concat.
      attn_score = { { of = "qkv", kernels = 2, moves = 4 / 3 } },
      -- Scale, mask, dropout.
      attn_softmax = { { of = "prob", kernels = 3, moves = 2 + 2 + 2.25 } },
      attn_context = { { of = "ctx", kernels = 2, moves = 4 } },
      attn_context_dx = { { of = "dctx", kernels = 2, moves = 4 } },
      attn_softmax_dx = { { of = "dscore", kernels = 3, moves = 2 + 2 + 2.25 } },
      attn_score_dx = { { of = "dqkv", kernels = 3, moves = 4 / 3 + 2 } },
      -- log_softmax, nll_loss, zeros, their two gradients: 6 passes, of which 2 are the op's own.
      cross_entropy = { { of = "logits", kernels = 4, moves = 4 } },
      -- top2gating has some 50 kernels on [tokens, experts], half of them of int64.
      gate = { { of = "probs", kernels = 50, moves = 100 } },
      gate_dlogits = { { of = "probs", kernels = 20, moves = 40 } },
      -- Two products of gates and places each write a mask (top2gating), their sum reads both and
      -- writes one; it becomes bool and float again for the dispatch. The products with tokens and
      -- slots read it (the op's own).
      dispatch = { { of = "masks", kernels = 5, moves = 2 + 3 + 1.25 + 1.25 } },
      dispatch_dx = {
        { of = "masks", kernels = 0, moves = 0 },
        { of = "acc", kernels = 1, moves = 2 },
      },
      combine = {
        { of = "masks", kernels = 0, moves = 0 },
        { of = "residual", kernels = 2, moves = 4.25 },
      },
      combine_dx = { { of = "masks", kernels = 0, moves = 0 } },
      -- The gradient of the mask, then of both choices' gates.
      combine_dweight = { { of = "masks", kernels = 2, moves = 2 } },
      -- Per parameter: zero_grad, the sum into .grad, and torch.optim's own kernels: mul_, add_ and
      -- add_ of SGD; mul_, add_, mul_, addcmul_, sqrt, div, add_, addcdiv_ and the decay of AdamW.
      sgd = { { of = "w", kernels = 4, moves = 1 + 3 + 2 + 3 + 3 - 5 } },
      adamw = { { of = "w", kernels = 10, moves = 1 + 3 + 22 - 7 } },
    },
  }
end
