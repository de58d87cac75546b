-- Eager PyTorch of 2021 with DeepSpeed 0.5's MoE layer, one expert per token and no dropout, as
-- Lancet's artifact runs it (models/benchmark/pytorch/{utils,torch_bencher}.py: k = 1, use_rts =
-- False, turn_off_dropout). Counted in its docker/resources/sharded_moe.py, top1gating.
return function(assumed)
  local stack = require "moe.stacks.eager_2021"(assumed)
  stack.doc = "eager_2021 with one expert per token, thus one mask, and without dropout"
  stack.sources.ops = "as eager_2021, and DeepSpeed 0.5's sharded_moe.py in Lancet's artifact"
  local ops, sum = stack.ops, { of = "residual", kernels = 1, moves = 2 }
  ops.embedding = { ops.embedding[1] }
  ops.embedding_dw = { { of = "dx", kernels = 7, moves = 0 } }
  ops.layernorm_dx[3] = { of = "acc", kernels = 1, moves = 2 }
  ops.linear[2], ops.combine[2] = sum, sum
  ops.attn_softmax = { { of = "prob", kernels = 2, moves = 2 + 2 } }
  ops.attn_softmax_dx = { { of = "dscore", kernels = 2, moves = 2 + 2 } }
  -- On [tokens, experts], with int64 of two passes: argmax, the mask and its sum, the means of the
  -- loss, topk, the mask of those kept, places (cumsum, difference, product, sum), scores by mask.
  ops.gate = { { of = "probs", kernels = 24, moves = 42 } }
  ops.gate_dlogits = { { of = "probs", kernels = 1, moves = 3 } }
  -- A product of scores and places writes the mask, which becomes bool and float again.
  ops.dispatch = { { of = "masks", kernels = 3, moves = 1 + 1.25 + 1.25 } }
  -- The gradient of the mask gives that of the scores.
  ops.combine_dweight = { { of = "masks", kernels = 1, moves = 1 } }
  return stack
end
